//! The one gate: a body becomes an [`Admitted`] request here or a fault that names the field.
//!
//! Every generation route calls [`admit`]; no route checks a parameter by itself, so a limit cannot be missing
//! from one of them. What needs the tokenizer (does the prompt fit the context?) is the tokenizer's to check.
//! The shapes of prompts and stop strings are in [`crate::prompts`].

use crate::json::{Fields, as_integer};
use crate::prompts;
use pinion_protocol::limits::TEMPERATURE_MAX;
use pinion_protocol::tokenizer_inbox::Prompt;
use pinion_protocol::{Fault, FaultCode, Sampling};
use serde_json::Value;

/// `max_tokens` of `/v1/completions` when the client names none, as OpenAI has it.
const COMPLETIONS_TOKENS_DEFAULT: u32 = 16;
/// `max_new_tokens` of `/generate` when the client names none.
const GENERATE_TOKENS_DEFAULT: u32 = 64;
/// Temperatures below this are greedy: dividing logits by less overflows an f32.
const TEMPERATURE_GREEDY_BELOW: f64 = 1e-5;

/// A way to ask for generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /generate`.
    Generate,
}

/// What admission measures requests against.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The served model's name.
    pub model: String,
    /// Ids are below this.
    pub vocab_size: u32,
    /// Tokens of prompt and answer together.
    pub max_model_len: u32,
}

/// A generation request in which every value is in range.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// Answer as a stream.
    pub stream: bool,
    /// Send a usage chunk at the end of the stream.
    pub include_usage: bool,
    /// How to draw.
    pub sampling: Sampling,
    /// What to continue.
    pub prompt: Prompt,
    /// Strings that end the text.
    pub stop: Vec<String>,
}

/// Fields that would change the answer and that this version cannot honour, each with the values that mean
/// "not wanted". Absent and null always pass.
type Harmless = fn(&Value) -> bool;

const fn unsupported() -> [(&'static str, Harmless); 22] {
    let one: Harmless = |v| v.as_f64() == Some(1.0);
    let zero: Harmless = |v| v.as_f64() == Some(0.0);
    let no: Harmless = |v| v.as_bool() == Some(false);
    let empty_array: Harmless = |v| v.as_array().is_some_and(Vec::is_empty);
    let empty_object: Harmless = |v| v.as_object().is_some_and(serde_json::Map::is_empty);
    let no_choice: Harmless = |v| matches!(v.as_str(), Some("none" | "auto"));
    [
        ("n", one),
        ("best_of", one),
        ("logprobs", no),
        ("top_logprobs", zero),
        ("prompt_logprobs", |_| false),
        ("echo", no),
        ("suffix", |v| v.as_str() == Some("")),
        ("tools", empty_array),
        ("tool_choice", no_choice),
        ("functions", empty_array),
        ("function_call", no_choice),
        ("response_format", |v| v.get("type").and_then(Value::as_str) == Some("text")),
        ("modalities", |v| v.as_array().is_some_and(|all| all.iter().all(|m| m == "text"))),
        ("logit_bias", empty_object),
        ("presence_penalty", zero),
        ("frequency_penalty", zero),
        ("repetition_penalty", one),
        ("min_p", zero),
        ("stop_token_ids", empty_array),
        ("use_beam_search", no),
        ("guided_json", |_| false),
        ("guided_regex", |_| false),
    ]
}

/// Admits a generation request, or says which field is wrong. `fresh_seed` is used if the client gives no
/// seed.
pub fn admit(api: Api, body: &[u8], limits: &Limits, fresh_seed: u64) -> Result<Admitted, Fault> {
    let mut fields = Fields::parse(body)?;
    check_model(&mut fields, limits)?;
    check_unsupported(&mut fields)?;
    let prompt = match api {
        Api::Completions | Api::Generate => prompts::prompt(&mut fields, limits)?,
        Api::Chat => prompts::messages(&mut fields)?,
    };
    let stop = prompts::stop(&mut fields)?;
    let sampling = sampling(api, &mut fields, fresh_seed)?;
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let include_usage = stream_options(&mut fields, stream)?;
    Ok(Admitted { stream, include_usage, sampling, prompt, stop })
}

/// Admits a `/tokenize` request.
pub fn admit_tokenize(body: &[u8], limits: &Limits) -> Result<Prompt, Fault> {
    let mut fields = Fields::parse(body)?;
    check_model(&mut fields, limits)?;
    match (fields.take("prompt"), fields.take("messages")) {
        (Some(Value::String(text)), None) => Ok(Prompt::Text(text)),
        (Some(other), None) => Err(crate::json::wrong_type("prompt", "a string", &other)),
        (None, Some(messages)) => prompts::rendered(messages),
        (Some(_), Some(_)) => Err(Fault::field("messages", "give either prompt or messages, not both")),
        (None, None) => Err(Fault::field("prompt", "prompt or messages is required")),
    }
}

/// Admits a `/detokenize` request.
pub fn admit_detokenize(body: &[u8], limits: &Limits) -> Result<Vec<u32>, Fault> {
    let mut fields = Fields::parse(body)?;
    check_model(&mut fields, limits)?;
    match fields.take("tokens") {
        None => Err(Fault::field("tokens", "tokens is required")),
        Some(Value::Array(items)) => prompts::ids("tokens", &items, limits),
        Some(other) => Err(crate::json::wrong_type("tokens", "an array of token ids", &other)),
    }
}

/// Whether `name` is served here; also the check of `GET /v1/models/{id}`.
pub fn check_model_name(name: &str, limits: &Limits) -> Result<(), Fault> {
    if name == limits.model {
        return Ok(());
    }
    let name = crate::json::quoted(&Value::String(name.to_owned()));
    let message = format!("the model {name} does not exist here; this service has \"{}\"", limits.model);
    Err(Fault { param: Some("model".to_owned()), ..Fault::new(FaultCode::ModelNotFound, message) })
}

fn check_model(fields: &mut Fields, limits: &Limits) -> Result<(), Fault> {
    fields.string("model")?.map_or(Ok(()), |name| check_model_name(&name, limits))
}

fn check_unsupported(fields: &mut Fields) -> Result<(), Fault> {
    for (name, harmless) in unsupported() {
        if fields.take(name).is_some_and(|value| !harmless(&value)) {
            return Err(Fault::field(name, format!("this value of {name} is not supported by this version")));
        }
    }
    Ok(())
}

fn sampling(api: Api, fields: &mut Fields, fresh_seed: u64) -> Result<Sampling, Fault> {
    let temperature = fields
        .number("temperature", "a number from 0 to 100", |t| (0.0..=f64::from(TEMPERATURE_MAX)).contains(&t))?
        .unwrap_or(1.0);
    let top_p =
        fields.number("top_p", "a number above 0 and at most 1", |p| p > 0.0 && p <= 1.0)?.unwrap_or(1.0);
    let top_k = fields.integer("top_k", -1..=i128::from(i32::MAX))?.filter(|k| *k > 0);
    let seed = fields.integer("seed", i128::from(i64::MIN)..=i128::from(u64::MAX))?;
    let max_tokens = max_tokens(api, fields)?;
    let (ignore_eos, greedy) = match api {
        Api::Completions | Api::Chat => (fields.boolean("ignore_eos")?.unwrap_or(false), false),
        Api::Generate => {
            let stop_on_eos = fields.boolean("stop_on_eos")?.unwrap_or(true);
            (!stop_on_eos, !fields.boolean("do_sample")?.unwrap_or(false))
        }
    };
    let greedy = greedy || temperature < TEMPERATURE_GREEDY_BELOW;
    Ok(Sampling {
        temperature: if greedy { 0.0 } else { temperature as f32 },
        top_p: (top_p as f32).max(f32::MIN_POSITIVE),
        top_k: top_k.and_then(|k| u32::try_from(k).ok()),
        seed: seed.map_or(fresh_seed, |seed| seed as u64),
        max_tokens,
        ignore_eos,
    })
}

/// `None` is "until the context is full".
fn max_tokens(api: Api, fields: &mut Fields) -> Result<Option<u32>, Fault> {
    let range = 1..=i128::from(i32::MAX);
    let (names, default): (&[&str], _) = match api {
        Api::Completions => (&["max_tokens"], Some(COMPLETIONS_TOKENS_DEFAULT)),
        Api::Chat => (&["max_completion_tokens", "max_tokens"], None),
        Api::Generate => (&["max_new_tokens"], Some(GENERATE_TOKENS_DEFAULT)),
    };
    let mut chosen = None;
    for name in names {
        let given = fields.integer(name, range.clone())?;
        chosen = chosen.or(given);
    }
    Ok(chosen.and_then(|count| u32::try_from(count).ok()).or(default))
}

/// Returns `include_usage`.
fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, Fault> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(Fault::field("stream_options", "stream_options is allowed only when stream is true"));
    }
    let include_usage = options
        .boolean("include_usage")
        .map_err(|fault| Fault { param: Some("stream_options.include_usage".to_owned()), ..fault })?;
    Ok(include_usage.unwrap_or(false))
}

/// A token id from a JSON value.
pub(crate) fn token_id(name: &str, value: &Value, limits: &Limits) -> Result<u32, Fault> {
    let id = as_integer(value).and_then(|id| u32::try_from(id).ok()).filter(|id| *id < limits.vocab_size);
    id.ok_or_else(|| {
        let wanted = format!("made of token ids from 0 to {}", limits.vocab_size.saturating_sub(1));
        crate::json::wrong_type(name, &wanted, value)
    })
}
