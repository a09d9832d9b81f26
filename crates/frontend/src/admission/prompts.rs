//! The shapes in which clients give prompts and stop strings; those of chats are in [`crate::admission::chat`].
//!
//! Called by [`crate::admission`] only.

use crate::admission::json::{Fields, wrong_type};
use crate::admission::{Limits, token_id};
use pinion_protocol::limits::{STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX};
use pinion_protocol::tokenizer_inbox::{Prompt, Truncation};
use pinion_protocol::{Fault, FaultCode};
use serde_json::Value;

const PROMPT_SHAPES: &str = "a string, an array of token ids, or an array of these";

/// `prompt`, which may be a list of up to `most` prompts.
/// A prompt of ids is truncated here as far as that makes it fit.
pub(crate) fn prompts(
    fields: &mut Fields,
    limits: &Limits,
    (most, truncation): (usize, Truncation),
) -> Result<Vec<Prompt>, Fault> {
    let Some(value) = fields.take("prompt") else { return Err(Fault::field("prompt", "prompt is required")) };
    let items = match value {
        Value::String(text) => return Ok(vec![Prompt::Text(text)]),
        Value::Array(items) => items,
        other => return Err(wrong_type("prompt", PROMPT_SHAPES, &other)),
    };
    match items.first() {
        None => return Err(Fault::field("prompt", "prompt must not be an empty array")),
        Some(Value::Number(_)) => return Ok(vec![prompt_ids(&items, limits, truncation)?]),
        Some(_) => {}
    }
    if items.len() > most {
        let message = format!("prompt may have at most {most} prompts here, got {}", items.len());
        return Err(Fault::field("prompt", message));
    }
    let one = |item: Value| match item {
        Value::String(text) => Ok(Prompt::Text(text)),
        Value::Array(ids) => prompt_ids(&ids, limits, truncation),
        other => Err(wrong_type("prompt", PROMPT_SHAPES, &other)),
    };
    items.into_iter().map(one).collect()
}

/// `add_special_tokens`: whether texts get what the tokenizer puts around every text, as they do unless a client wants
/// none of it.
pub(crate) fn framed(fields: &mut Fields, prompts: Vec<Prompt>) -> Result<Vec<Prompt>, Fault> {
    if fields.boolean("add_special_tokens")?.unwrap_or(true) {
        return Ok(prompts);
    }
    let bare = |prompt| match prompt {
        Prompt::Text(text) => Prompt::Bare(text),
        Prompt::Bare(_) | Prompt::Chat(_) | Prompt::Ids(_) => prompt,
    };
    Ok(prompts.into_iter().map(bare).collect())
}

fn prompt_ids(items: &[Value], limits: &Limits, truncation: Truncation) -> Result<Prompt, Fault> {
    if items.is_empty() {
        return Err(Fault::field("prompt", "prompt must have at least one token"));
    }
    // What the answer needs of the context the tokenizer knows, and cuts again.
    let kept = truncation.kept(limits.max_model_len, Some(0)).min(items.len());
    let items = if truncation.keeps_first() { &items[..kept] } else { &items[items.len() - kept..] };
    ids("prompt", items, limits).map(Prompt::Ids)
}

/// The end of a prompt that is cut if a request does not say which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Its beginning.
    Left,
    /// Its end.
    Right,
}

/// `truncate_prompt_tokens`: this number of the prompt's tokens, or with -1 as many as fit; `truncation_side`: which of
/// its ends is cut.
pub(crate) fn truncation(fields: &mut Fields, default: Cut) -> Result<Truncation, Fault> {
    const NAME: &str = "truncate_prompt_tokens";
    const SIDE: &str = "truncation_side";
    let last = match fields.integer(NAME, -1..=i128::from(i32::MAX))? {
        None => Truncation::Never,
        Some(-1) => Truncation::Fit,
        Some(0) => return Err(Fault::field(NAME, format!("{NAME} must be -1 or at least 1, got 0"))),
        Some(count) => Truncation::Last(u32::try_from(count).unwrap_or(u32::MAX - 1)),
    };
    let cut = match fields.string(SIDE)?.as_deref() {
        None => default,
        Some("left") => Cut::Left,
        Some("right") => Cut::Right,
        Some(other) => return Err(wrong_type(SIDE, "\"left\" or \"right\"", &Value::from(other))),
    };
    Ok(if cut == Cut::Left { last } else { last.of_first() })
}

/// Token ids, fewer than the context holds and each in the vocabulary.
pub(crate) fn ids(name: &str, items: &[Value], limits: &Limits) -> Result<Vec<u32>, Fault> {
    if items.len() > limits.max_model_len as usize {
        let message = format!(
            "{name} has {} tokens; this model's maximum context length is {} tokens",
            items.len(),
            limits.max_model_len
        );
        let fault = Fault::new(FaultCode::ContextLengthExceeded, message);
        return Err(Fault { param: Some(name.to_owned()), ..fault });
    }
    items.iter().map(|item| token_id(name, item, limits)).collect()
}

/// `stop`: a string or up to [`STOP_STRINGS_MAX`] of them, none empty.
pub(crate) fn stop(fields: &mut Fields) -> Result<Vec<String>, Fault> {
    let wanted = "a string or an array of strings";
    let strings = match fields.take("stop") {
        None => Vec::new(),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(items)) => {
            let as_string = |item: Value| match item {
                Value::String(text) => Ok(text),
                other => Err(wrong_type("stop", wanted, &other)),
            };
            items.into_iter().map(as_string).collect::<Result<_, _>>()?
        }
        Some(other) => return Err(wrong_type("stop", wanted, &other)),
    };
    if strings.len() > STOP_STRINGS_MAX {
        let message = format!("stop may have at most {STOP_STRINGS_MAX} strings, got {}", strings.len());
        return Err(Fault::field("stop", message));
    }
    if strings.iter().any(|text| text.is_empty() || text.len() > STOP_STRING_BYTES_MAX) {
        let message = format!("each stop string must have from 1 to {STOP_STRING_BYTES_MAX} bytes");
        return Err(Fault::field("stop", message));
    }
    Ok(strings)
}
