//! The one gate: a body becomes an [`Admitted`] request here or a fault that names the field.
//!
//! Every generation route passes `admit_fields`; no route checks a parameter by itself, so a limit cannot be missing
//! from one of them. What needs the tokenizer (does the prompt fit the context?) is the tokenizer's to check.
//! The bodies of routes that a tokenizer answers by itself are in `tokens`. The shapes of prompts and stop strings are
//! in `prompts`, those of chats in `chat`, the sampling parameters in `sampling`, grammars in `grammar`.

mod answer_or_call;
mod chat;
pub(crate) mod fields;
mod grammar;
pub mod json;
mod messages;
mod pooled;
mod prompts;
pub mod reasoning;
mod sampling;
mod schemas;
mod tokens;
pub mod tools;
pub(crate) mod unknown;

use crate::admission::grammar::{grammar, limited};
use crate::admission::json::{Fields, as_integer};
pub use crate::admission::pooled::{
    Embed, Rerank, Score, Texts, admit_embed, admit_rerank, admit_score, renamed,
};
use crate::admission::prompts::Cut;
use crate::admission::reasoning::ReasoningPlan;
use crate::admission::sampling::{logprobs, sampling, seed};
pub use crate::admission::tokens::{admit_apply_template, admit_count, admit_detokenize, admit_tokenize};
use crate::admission::tools::{CallPlan, CallReading, Tools, tools};
use crate::admission::unknown::{field_names, in_its_words, leftovers, members_of, synonyms};
use pinion_api::Translated;
use pinion_api::responses::Asked;
use pinion_config::{Pooling, SamplingDefaults};
use pinion_protocol::detokenizer_inbox::TextForm;
use pinion_protocol::limits::{CHOICES_MAX, LOGPROB_ALTERNATIVES_MAX, USER_BYTES_MAX};
use pinion_protocol::tokenizer_inbox::{Prompt, Truncation};
use pinion_protocol::{Fault, FaultCode, Reasoning, Sampling};
use pinion_text::tools::Shape;
use serde_json::Value;
use std::sync::Arc;

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
    /// How tool calls are read where the model is free to make one.
    pub calls: CallReading,
    /// Whether the reasoning of chats is told from their answers.
    pub reasons: bool,
    /// How tokens are drawn where a request does not say it.
    pub defaults: SamplingDefaults,
    /// An unknown field is refused.
    pub strict_fields: bool,
    /// How the model pools, if it does.
    pub pooling: Option<Pooling>,
}

/// A generation request in which every value is in range.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// Answer as a stream.
    pub stream: bool,
    /// A lower value is served earlier.
    pub priority: i32,
    /// On whose account it runs, among those of the same key.
    pub user: Option<String>,
    /// Send a usage chunk at the end of the stream.
    pub include_usage: bool,
    /// Send the counts so far with every chunk.
    pub usage_in_chunks: bool,
    /// How to draw.
    pub sampling: Sampling,
    /// The seed is the client's.
    pub has_seed: bool,
    /// What to continue; each is answered for itself.
    pub prompts: Vec<Prompt>,
    /// How much of each is used.
    pub truncation: Truncation,
    /// Answers for each prompt.
    pub choices_per_prompt: u32,
    /// Strings that end the text.
    pub stop: Vec<String>,
    /// How the text is made of its tokens. `marks` is false here; the plan for reasoning has it.
    pub form: TextForm,
    /// How tool calls are found in the text, if there may be any.
    pub calls: Option<CallPlan>,
    /// How reasoning is found in the text, if it is looked for.
    pub reasoning: Option<ReasoningPlan>,
    /// Whether the answer says where its time went.
    pub timings: bool,
    /// What the answer shows besides the text.
    pub shown: Shown,
    /// Names of unknown fields.
    pub ignored: Vec<String>,
}

/// What an answer shows besides the generated text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The prompt's text goes ahead of the answer's, and with `logprobs` the scores of its tokens.
    pub echo: bool,
    /// Number of likeliest tokens beside each token.
    pub logprobs: Option<u32>,
    /// The scores of the prompt's tokens in a member of their own, with this number of likeliest ones.
    pub prompt_logprobs: Option<u32>,
    /// Number of each prompt's answers that are shown, the likeliest first.
    pub best: Option<u32>,
    /// The ids of prompt and answer.
    pub token_ids: bool,
    /// How tokens are written beside their scores.
    pub style: TokenStyle,
}

/// How tokens are written beside their scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TokenStyle {
    /// As `token_id:` and the id, in place of what they show.
    pub as_ids: bool,
    /// The answer's text has the names of special tokens.
    pub special: bool,
}

impl Shown {
    /// What the engine is asked to report about the prompt.
    fn asked(&self) -> Option<u32> {
        self.prompt_logprobs.max(self.logprobs.filter(|_| self.echo))
    }
}

/// Fields that would change the answer and that this version cannot honour, each with the values that mean
/// "not wanted". Absent and null always pass.
type Harmless = fn(&Value) -> bool;

const fn unsupported() -> [(&'static str, Harmless); 20] {
    let zero: Harmless = |v| v.as_f64() == Some(0.0);
    let no: Harmless = |v| v.as_bool() == Some(false);
    let empty_array: Harmless = |v| v.as_array().is_some_and(Vec::is_empty);
    let no_choice: Harmless = |v| matches!(v.as_str(), Some("none" | "auto"));
    [
        ("logprobs", no),
        ("top_logprobs", zero),
        ("prompt_logprobs", |_| false),
        ("echo", no),
        ("return_token_ids", no),
        ("suffix", |v| v.as_str() == Some("")),
        ("tools", empty_array),
        ("tool_choice", no_choice),
        ("functions", empty_array),
        ("function_call", no_choice),
        ("response_format", |v| v.get("type").and_then(Value::as_str) == Some("text")),
        ("modalities", |v| v.as_array().is_some_and(|all| all.iter().all(|m| m == "text"))),
        ("use_beam_search", no),
        ("guided_json", |_| false),
        ("guided_regex", |_| false),
        ("chat_template", |_| false),
        ("guided_choice", |_| false),
        ("guided_grammar", |_| false),
        ("guided_whitespace_pattern", |_| false),
        ("structured_outputs", |_| false),
    ]
}

/// Admits a generation request, or says which field is wrong. `fresh_seed` is used if the client gives no
/// seed.
pub fn admit(api: Api, body: &[u8], limits: &Limits, fresh_seed: u64) -> Result<Admitted, Fault> {
    let mut fields = Fields::parse(body)?;
    let used = synonyms(api, &mut fields)?;
    admit_fields(api, fields, limits, fresh_seed).map_err(|fault| in_its_words(fault, &used))
}

/// Reads a body of `/v1/responses`.
pub fn ask_response(body: &[u8]) -> Result<Asked, Fault> {
    Asked::parse(Fields::parse(body)?.into_members())
}

/// Admits what was read of it, behind the conversation of an earlier response. Gives the items of the whole
/// conversation as a JSON array, too.
pub fn admit_response(
    asked: Asked,
    earlier: Option<&str>,
    limits: &Limits,
    fresh_seed: u64,
) -> Result<(Admitted, Arc<str>), Fault> {
    let (translated, items) = asked.chat(earlier)?;
    let admitted = admit_translated("ResponseRequest", translated, limits, fresh_seed)?;
    Ok((admitted, Value::Array(items).to_string().into()))
}

/// Admits a body of `/v1/messages`: the chat that it asks for.
pub fn admit_message(body: &[u8], limits: &Limits, fresh_seed: u64) -> Result<Admitted, Fault> {
    let translated = pinion_api::messages::chat(Fields::parse(body)?.into_members())?;
    admit_translated("MessageRequest", translated, limits, fresh_seed)
}

/// Admits the chat that a body of the published schema `of` asks for.
fn admit_translated(of: &str, body: Translated, limits: &Limits, fresh_seed: u64) -> Result<Admitted, Fault> {
    let admitted = admit_fields(Api::Chat, Fields::of(body.chat), limits, fresh_seed)?;
    let ignored = leftovers(|| members_of(of), &Fields::of(body.rest), limits.strict_fields)?;
    Ok(Admitted { ignored, ..admitted })
}

fn admit_fields(api: Api, mut fields: Fields, limits: &Limits, fresh_seed: u64) -> Result<Admitted, Fault> {
    check_model(&mut fields, limits)?;
    let shown = shown(api, &mut fields)?;
    let mut tools = match api {
        Api::Chat => tools(&mut fields, limits.calls)?,
        Api::Completions | Api::Generate => Tools::default(),
    };
    let written = grammar(api, &mut fields)?;
    let grammar = limited(tools.grammar(written)?, &mut fields, limits)?;
    let Tools { offered, plan: calls, .. } = tools;
    check_unsupported(api, &mut fields)?;
    // A completion continues its prompt; a chat does only if asked to.
    let continues = api != Api::Chat || fields.get("continue_final_message") == Some(&Value::Bool(true));
    let (prompts, truncation) = prompt(api, &mut fields, limits, offered, &shown)?;
    let (choices_per_prompt, best) = choices(api, &mut fields, prompts.len())?;
    let stop = prompts::stop(&mut fields)?;
    let include_stop = fields.boolean("include_stop_str_in_output")?.unwrap_or(false);
    let special = !fields.boolean("skip_special_tokens")?.unwrap_or(true);
    let form = TextForm { include_stop, special, continues, marks: false };
    let shown = Shown { best, style: TokenStyle { special, ..shown.style }, ..shown };
    // It is for tokenizers written in Python; a text from tokenizer.json is the same either way.
    fields.boolean("spaces_between_special_tokens")?;
    let reasoning = match api {
        Api::Chat => reasoning(&mut fields, limits, calls.as_ref(), &stop)?,
        Api::Completions | Api::Generate => None,
    };
    // Candidates are told apart by their logprobs.
    let logprobs = shown.logprobs.or(best.map(|_| 0));
    let prompt_logprobs = shown.asked();
    let seed = seed(&mut fields)?;
    let sampling = sampling(api, &mut fields, limits, seed.unwrap_or(fresh_seed))?;
    let begins = if reasoning.is_some() { Reasoning::Possible } else { Reasoning::None };
    let sampling = Sampling { logprobs, prompt_logprobs, grammar, reasoning: begins, ..sampling };
    if sampling.max_tokens == Some(0) && !shown.echo && shown.prompt_logprobs.is_none() {
        return Err(Fault::field("max_tokens", "max_tokens may be 0 only with echo or prompt_logprobs"));
    }
    let (priority, user) = (priority(&mut fields)?, user(&mut fields)?);
    let Delivery { stream, include_usage, usage_in_chunks, timings } = delivery(api, &mut fields, &shown)?;
    let ignored = leftovers(|| field_names(api), &fields, limits.strict_fields)?;
    let admitted = Admitted {
        priority,
        user,
        stream,
        include_usage,
        usage_in_chunks,
        sampling,
        has_seed: seed.is_some(),
        prompts,
        truncation,
        choices_per_prompt,
        stop,
        form,
        timings,
        shown,
        calls,
        reasoning,
        ignored,
    };
    Ok(admitted)
}

/// What is to be continued, and how much of it is used.
fn prompt(
    api: Api,
    fields: &mut Fields,
    limits: &Limits,
    tools: Option<Value>,
    shown: &Shown,
) -> Result<(Vec<Prompt>, Truncation), Fault> {
    let truncation = prompts::truncation(fields, Cut::Left)?;
    if truncation != Truncation::Never && (shown.echo || shown.prompt_logprobs.is_some()) {
        let message = "truncate_prompt_tokens leaves out what echo and prompt_logprobs show";
        return Err(Fault::field("truncate_prompt_tokens", message));
    }
    let list = (if api == Api::Completions { CHOICES_MAX } else { 1 }, truncation);
    let prompts = match api {
        Api::Completions => {
            let prompts = prompts::prompts(fields, limits, list)?;
            prompts::framed(fields, prompts)?
        }
        Api::Generate => prompts::prompts(fields, limits, list)?,
        Api::Chat => vec![chat::prompt(fields, tools)?],
    };
    Ok((prompts, truncation))
}

/// How the answer leaves.
struct Delivery {
    stream: bool,
    include_usage: bool,
    usage_in_chunks: bool,
    timings: bool,
}

fn delivery(api: Api, fields: &mut Fields, shown: &Shown) -> Result<Delivery, Fault> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    if stream && shown.prompt_logprobs.is_some() {
        return Err(Fault::field("prompt_logprobs", "prompt_logprobs are not available when stream is true"));
    }
    if stream && shown.best.is_some() {
        return Err(Fault::field("best_of", "best_of above n is not available when stream is true"));
    }
    let (include_usage, usage_in_chunks) = stream_options(fields, stream)?;
    let timings = fields.boolean("timings")?.unwrap_or(false);
    if timings && stream && api == Api::Generate {
        return Err(Fault::field("timings", "timings have no place in a stream of bare text"));
    }
    Ok(Delivery { stream, include_usage, usage_in_chunks, timings })
}

/// `include_reasoning`, and whether there is any.
fn reasoning(
    fields: &mut Fields,
    limits: &Limits,
    calls: Option<&CallPlan>,
    stop: &[String],
) -> Result<Option<ReasoningPlan>, Fault> {
    let is_shown = fields.boolean("include_reasoning")?.unwrap_or(true);
    let call_mark = match calls.map(|calls| &calls.shape) {
        Some(Shape::Free(format)) => Some(format.mark()),
        Some(Shape::List | Shape::Arguments(_)) | None => None,
    };
    Ok(limits.reasons.then(|| ReasoningPlan::new(is_shown, stop, call_mark)))
}

fn shown(api: Api, fields: &mut Fields) -> Result<Shown, Fault> {
    let logprobs = logprobs(api, fields)?;
    let echo = api == Api::Completions && fields.boolean("echo")?.unwrap_or(false);
    let prompt_logprobs = match api {
        Api::Completions | Api::Chat => {
            fields.integer("prompt_logprobs", 0..=i128::from(LOGPROB_ALTERNATIVES_MAX))?
        }
        // Left to the fields that are not supported.
        Api::Generate => None,
    };
    let prompt_logprobs = prompt_logprobs.and_then(|n| u32::try_from(n).ok());
    let token_ids = match api {
        Api::Completions | Api::Chat => fields.boolean("return_token_ids")?.unwrap_or(false),
        // Left to the fields that are not supported.
        Api::Generate => false,
    };
    let as_ids = match api {
        Api::Completions | Api::Chat => fields.boolean("return_tokens_as_token_ids")?.unwrap_or(false),
        // It shows no scores.
        Api::Generate => false,
    };
    let style = TokenStyle { as_ids, special: false };
    Ok(Shown { echo, logprobs, prompt_logprobs, best: None, token_ids, style })
}

/// As vLLM has it: a lower value is served earlier.
fn priority(fields: &mut Fields) -> Result<i32, Fault> {
    let given = fields.integer("priority", i128::from(i32::MIN)..=i128::from(i32::MAX))?;
    Ok(given.and_then(|priority| i32::try_from(priority).ok()).unwrap_or(0))
}

/// Any name of the client's choice; it is a tenant where fair shares are by user.
fn user(fields: &mut Fields) -> Result<Option<String>, Fault> {
    const NAME: &str = "user";
    let user = fields.string(NAME)?;
    if user.as_ref().is_some_and(|user| user.len() > USER_BYTES_MAX) {
        return Err(Fault::field(NAME, format!("{NAME} may have at most {USER_BYTES_MAX} bytes")));
    }
    Ok(user)
}

/// `n`, and `best_of`: how many answers each prompt gets, and how many of them are shown if that is fewer.
fn choices(api: Api, fields: &mut Fields, prompt_count: usize) -> Result<(u32, Option<u32>), Fault> {
    let most = if api == Api::Generate { 1 } else { CHOICES_MAX as i128 };
    let n = fields.integer("n", 1..=most)?.unwrap_or(1);
    let best_of = fields.integer("best_of", 1..=most)?.unwrap_or(n);
    if best_of < n {
        return Err(Fault::field(
            "best_of",
            format!("best_of must be at least n, which is {n}; got {best_of}"),
        ));
    }
    if best_of > n && api != Api::Completions {
        return Err(Fault::field("best_of", "best_of above n is for completions"));
    }
    let count = best_of as usize * prompt_count;
    if count > CHOICES_MAX {
        let name = if best_of > n { "best_of" } else { "n" };
        let message = format!(
            "{prompt_count} prompts with {name} = {best_of} are {count} choices; {CHOICES_MAX} are allowed"
        );
        return Err(Fault::field(name, message));
    }
    Ok((best_of as u32, (best_of > n).then_some(n as u32)))
}

/// Whether `name` is served here; also the check of `GET /v1/models/{id}`.
pub fn check_model_name(name: &str, limits: &Limits) -> Result<(), Fault> {
    if name == limits.model {
        return Ok(());
    }
    let name = crate::admission::json::quoted(&Value::String(name.to_owned()));
    let message = format!("the model {name} does not exist here; this service has \"{}\"", limits.model);
    Err(Fault { param: Some("model".to_owned()), ..Fault::new(FaultCode::ModelNotFound, message) })
}

fn check_model(fields: &mut Fields, limits: &Limits) -> Result<(), Fault> {
    fields.string("model")?.map_or(Ok(()), |name| check_model_name(&name, limits))
}

fn check_unsupported(api: Api, fields: &mut Fields) -> Result<(), Fault> {
    // A chat may name one of the model's templates.
    let is_read = |name: &str| api == Api::Chat && name == "chat_template";
    for (name, harmless) in unsupported().into_iter().filter(|(name, _)| !is_read(name)) {
        if fields.take(name).is_some_and(|value| !harmless(&value)) {
            let message = match name {
                "functions" => {
                    "functions has become tools: send {\"type\": \"function\", \"function\": ..} there"
                        .to_owned()
                }
                "function_call" => "function_call has become tool_choice".to_owned(),
                _ => format!("this value of {name} is not supported by this version"),
            };
            return Err(Fault::field(name, message));
        }
    }
    Ok(())
}

/// Returns `include_usage`, and whether every chunk has the counts, which is for those only that want them at the end.
fn stream_options(fields: &mut Fields, stream: bool) -> Result<(bool, bool), Fault> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok((false, false)) };
    if !stream {
        return Err(Fault::field("stream_options", "stream_options is allowed only when stream is true"));
    }
    let mut option = |name: &str| {
        let value = options.boolean(name);
        let value =
            value.map_err(|fault| Fault { param: Some(format!("stream_options.{name}")), ..fault })?;
        Ok::<bool, Fault>(value.unwrap_or(false))
    };
    let include_usage = option("include_usage")?;
    Ok((include_usage, option("continuous_usage_stats")? && include_usage))
}

/// A token id from a JSON value.
pub(crate) fn token_id(name: &str, value: &Value, limits: &Limits) -> Result<u32, Fault> {
    let id = as_integer(value).and_then(|id| u32::try_from(id).ok()).filter(|id| *id < limits.vocab_size);
    id.ok_or_else(|| {
        let wanted = format!("made of token ids from 0 to {}", limits.vocab_size.saturating_sub(1));
        crate::admission::json::wrong_type(name, &wanted, value)
    })
}
