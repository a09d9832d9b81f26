//! The fields that say how tokens are drawn, each checked against its range.
//!
//! Called by [`crate::admission`] only. Names and meanings are OpenAI's, and vLLM's where OpenAI has none.

use crate::admission::json::{Fields, as_integer, wrong_type};
use crate::admission::{Api, Limits, token_id};
use pinion_protocol::limits::{
    ADDITIVE_PENALTY_MAX, LOGIT_BIAS_ENTRIES_MAX, LOGIT_BIAS_MAX, LOGPROB_ALTERNATIVES_MAX,
    REPETITION_PENALTY_MAX, REPETITION_PENALTY_MIN, STOP_TOKEN_IDS_MAX, TEMPERATURE_MAX,
};
use pinion_protocol::{Fault, Reasoning, Sampling};
use serde_json::Value;

/// `max_tokens` of `/v1/completions` when the client names none, as OpenAI has it.
const COMPLETIONS_TOKENS_DEFAULT: u32 = 16;
/// Of `/generate` when the client names none.
const GENERATE_TOKENS_DEFAULT: u32 = 64;
/// Temperatures below this are greedy: dividing logits by less overflows an f32.
const TEMPERATURE_GREEDY_BELOW: f64 = 1e-5;

/// The `seed` that asks for a fresh one, as vLLM and llama-server have it.
const SEED_FRESH: i128 = -1;

/// The client's seed, if it wants a certain one.
pub(crate) fn seed(fields: &mut Fields) -> Result<Option<u64>, Fault> {
    let given = fields.integer("seed", i128::from(i64::MIN)..=i128::from(u64::MAX))?;
    Ok(given.filter(|seed| *seed != SEED_FRESH).map(|seed| seed as u64))
}

/// All of them but those about logprobs and the grammar.
pub(crate) fn sampling(api: Api, fields: &mut Fields, limits: &Limits, seed: u64) -> Result<Sampling, Fault> {
    let defaults = &limits.defaults;
    let temperature = fields
        .number("temperature", "a number from 0 to 100", |t| (0.0..=f64::from(TEMPERATURE_MAX)).contains(&t))?
        .or(defaults.temperature)
        .unwrap_or(1.0);
    let top_p = fields.number("top_p", "a number above 0 and at most 1", |p| p > 0.0 && p <= 1.0)?;
    let top_p = top_p.or(defaults.top_p).unwrap_or(1.0);
    let top_k = fields.integer("top_k", -1..=i128::from(i32::MAX))?;
    let top_k = top_k.or(defaults.top_k.map(i128::from)).filter(|k| *k > 0);
    let min_p = fields.number("min_p", "a number from 0 to 1", |p| (0.0..=1.0).contains(&p))?;
    let max_tokens = max_tokens(api, fields)?;
    let (ignore_eos, greedy) = match api {
        Api::Completions | Api::Chat => (fields.boolean("ignore_eos")?.unwrap_or(false), false),
        Api::Generate => {
            let stop_on_eos = fields.boolean("stop_on_eos")?.unwrap_or(true);
            (!stop_on_eos, !fields.boolean("do_sample")?.unwrap_or(false))
        }
    };
    let greedy = greedy || temperature < TEMPERATURE_GREEDY_BELOW;
    // A penalty among the model's own defaults does not count: the client did not ask for it.
    let names_penalty = PENALTIES.iter().any(|name| fields.has(name));
    let sampling = Sampling {
        temperature: if greedy { 0.0 } else { temperature as f32 },
        top_p: (top_p as f32).max(f32::MIN_POSITIVE),
        top_k: top_k.and_then(|k| u32::try_from(k).ok()),
        min_p: min_p.or(defaults.min_p).unwrap_or(0.0) as f32,
        repetition_penalty: repetition_penalty(fields, limits)?,
        frequency_penalty: additive_penalty(fields, "frequency_penalty")?,
        presence_penalty: additive_penalty(fields, "presence_penalty")?,
        seed,
        max_tokens,
        min_tokens: min_tokens(fields, limits, max_tokens)?,
        ignore_eos,
        logit_bias: logit_bias(fields, limits)?,
        logprobs: None,
        prompt_logprobs: None,
        stop_token_ids: stop_token_ids(fields, limits)?,
        grammar: None,
        reasoning: Reasoning::None,
        continues: false,
    };
    check_reach(fields, names_penalty && sampling.reads_output())?;
    Ok(sampling)
}

const PENALTIES: [&str; 3] = ["repetition_penalty", "frequency_penalty", "presence_penalty"];

/// `repeat_last_n`, how far back penalties look. Clients of llama-server send its default with every request; here they
/// look at the whole text.
fn check_reach(fields: &mut Fields, is_penalised: bool) -> Result<(), Fault> {
    const NAME: &str = "repeat_last_n";
    match fields.integer(NAME, -1..=i128::from(i32::MAX))? {
        Some(reach) if reach != -1 && is_penalised => {
            Err(Fault::field(NAME, format!("{NAME} must be -1 beside a penalty: it looks at the whole text")))
        }
        Some(_) | None => Ok(()),
    }
}

/// How many alternatives to report with each token, if any: a number for completions, a switch and a number for chats.
pub(crate) fn logprobs(api: Api, fields: &mut Fields) -> Result<Option<u32>, Fault> {
    let count = |given: i128| u32::try_from(given).unwrap_or(0);
    let most = 0..=i128::from(LOGPROB_ALTERNATIVES_MAX);
    match api {
        // Left to the fields that are not supported.
        Api::Generate => Ok(None),
        Api::Completions => match fields.take("logprobs") {
            None | Some(Value::Bool(false)) => Ok(None),
            // OpenAI stops at 5, vLLM at 20.
            Some(given) => match as_integer(&given).filter(|n| most.contains(n)) {
                Some(given) => Ok(Some(count(given))),
                None => {
                    let wanted = format!("an integer from 0 to {LOGPROB_ALTERNATIVES_MAX}");
                    Err(wrong_type("logprobs", &wanted, &given))
                }
            },
        },
        Api::Chat => {
            let wanted = fields.boolean("logprobs")?.unwrap_or(false);
            let alternatives = fields.integer("top_logprobs", most)?;
            match (wanted, alternatives.map_or(0, count)) {
                (true, alternatives) => Ok(Some(alternatives)),
                (false, 0) => Ok(None),
                (false, _) => {
                    Err(Fault::field("top_logprobs", "top_logprobs is allowed only when logprobs is true"))
                }
            }
        }
    }
}

/// `None` is "as many as the model's makers say", or until the context is full: what -1 asks for, as in llama-server,
/// and what a chat gets that names no number.
fn max_tokens(api: Api, fields: &mut Fields) -> Result<Option<u32>, Fault> {
    // Nothing may be what is wanted where the prompt is shown; admission knows whether it is.
    let least = i128::from(api != Api::Completions);
    let (names, default): (&[&str], _) = match api {
        Api::Completions => (&["max_tokens"], Some(COMPLETIONS_TOKENS_DEFAULT)),
        Api::Chat => (&["max_completion_tokens", "max_tokens"], None),
        Api::Generate => (&["max_new_tokens", "max_tokens"], Some(GENERATE_TOKENS_DEFAULT)),
    };
    let (mut chosen, mut is_open) = (None, false);
    for name in names {
        match fields.integer(name, -1..=i128::from(i32::MAX))? {
            Some(-1) => is_open = true,
            Some(count) if count < least => {
                return Err(Fault::field(
                    name,
                    format!("{name} must be -1 or at least {least}, got {count}"),
                ));
            }
            given => chosen = chosen.or(given),
        }
    }
    let default = default.filter(|_| !is_open);
    Ok(chosen.and_then(|count| u32::try_from(count).ok()).or(default))
}

/// At most what may be generated; if that is "until the context is full", the tokenizer compares again.
fn min_tokens(fields: &mut Fields, limits: &Limits, max_tokens: Option<u32>) -> Result<u32, Fault> {
    let most = max_tokens.unwrap_or(u32::MAX).min(limits.max_model_len);
    let given = fields.integer("min_tokens", 0..=i128::from(most))?;
    Ok(given.and_then(|count| u32::try_from(count).ok()).unwrap_or(0))
}

fn repetition_penalty(fields: &mut Fields, limits: &Limits) -> Result<f32, Fault> {
    let range = |p| (f64::from(REPETITION_PENALTY_MIN)..=f64::from(REPETITION_PENALTY_MAX)).contains(&p);
    let given = fields.number("repetition_penalty", "a number from 0.01 to 100", range)?;
    Ok(given.or(limits.defaults.repetition_penalty).unwrap_or(1.0) as f32)
}

fn additive_penalty(fields: &mut Fields, name: &str) -> Result<f32, Fault> {
    let range = |p: f64| p.abs() <= f64::from(ADDITIVE_PENALTY_MAX);
    Ok(fields.number(name, "a number from -2 to 2", range)?.unwrap_or(0.0) as f32)
}

/// `{"<token id>": bias}`, as OpenAI has it.
fn logit_bias(fields: &mut Fields, limits: &Limits) -> Result<Vec<(u32, f32)>, Fault> {
    const NAME: &str = "logit_bias";
    let map = match fields.take(NAME) {
        None => return Ok(Vec::new()),
        // What llama-server and clients in PHP have for an object without members.
        Some(Value::Array(items)) if items.is_empty() => return Ok(Vec::new()),
        Some(Value::Object(map)) => map,
        Some(other) => return Err(wrong_type(NAME, "an object of token ids and numbers", &other)),
    };
    if map.len() > LOGIT_BIAS_ENTRIES_MAX {
        let message = format!("{NAME} may have at most {LOGIT_BIAS_ENTRIES_MAX} entries, got {}", map.len());
        return Err(Fault::field(NAME, message));
    }
    let entry = |(key, value): (String, Value)| {
        let id = key.parse().ok().filter(|id: &u32| *id < limits.vocab_size && id.to_string() == key);
        let id = id.ok_or_else(|| {
            let wanted =
                format!("made of token ids from 0 to {} as keys", limits.vocab_size.saturating_sub(1));
            wrong_type(NAME, &wanted, &Value::String(key))
        })?;
        let bias = value.as_f64().filter(|bias| bias.abs() <= f64::from(LOGIT_BIAS_MAX));
        let bias = bias.ok_or_else(|| wrong_type(NAME, "made of numbers from -100 to 100", &value))?;
        Ok((id, bias as f32))
    };
    map.into_iter().map(entry).collect()
}

fn stop_token_ids(fields: &mut Fields, limits: &Limits) -> Result<Vec<u32>, Fault> {
    const NAME: &str = "stop_token_ids";
    match fields.take(NAME) {
        None => Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() > STOP_TOKEN_IDS_MAX => {
            let message = format!("{NAME} may have at most {STOP_TOKEN_IDS_MAX} ids, got {}", items.len());
            Err(Fault::field(NAME, message))
        }
        Some(Value::Array(items)) => items.iter().map(|item| token_id(NAME, item, limits)).collect(),
        Some(other) => Err(wrong_type(NAME, "an array of token ids", &other)),
    }
}
