//! generation_config.json: how the model's makers want its tokens drawn, and which tokens end a text.

use crate::fault::{Collector, Origin};
use crate::json_file::optional_object;
use pinion_protocol::StopIds;
use pinion_protocol::limits::{
    MODEL_STOP_IDS_MAX, REPETITION_PENALTY_MAX, REPETITION_PENALTY_MIN, TEMPERATURE_MAX,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;

/// Largest id or count that a file may hold.
const NUMBER_MAX: i64 = i32::MAX as i64;

/// How tokens are drawn for requests that do not say so themselves: generation_config.json of the model folder, unless
/// the operator wants none of it. Each value is in the range that requests have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SamplingDefaults {
    /// 0 is greedy.
    pub temperature: Option<f64>,
    /// Smallest probability mass kept.
    pub top_p: Option<f64>,
    /// Most likely tokens kept; 0 keeps everything.
    pub top_k: Option<u32>,
    /// Least share of the likeliest token's probability.
    pub min_p: Option<f64>,
    /// Of tokens in the prompt or the output.
    pub repetition_penalty: Option<f64>,
    /// Tokens of an answer for which neither the request nor its route names a number.
    pub max_new_tokens: Option<u32>,
}

impl SamplingDefaults {
    /// The API's own hold.
    pub const NONE: SamplingDefaults = SamplingDefaults {
        temperature: None,
        top_p: None,
        top_k: None,
        min_p: None,
        repetition_penalty: None,
        max_new_tokens: None,
    };
}

/// What the file says; nothing where there is none.
#[derive(Debug)]
pub(crate) struct Generation {
    pub(crate) defaults: SamplingDefaults,
    /// In the file's order; some may lie outside the vocabulary.
    pub(crate) stop_ids: Vec<u32>,
    /// What of it no request could say, so that it is ignored: a line for each key.
    pub(crate) ignored: Vec<String>,
}

impl Generation {
    /// Reads the file of the folder `dir`. Ends that are not token ids are faults; any other value only changes how a
    /// request is drawn that does not say it, so that one that cannot be served is ignored.
    pub(crate) fn read(dir: &Path, faults: &mut Collector) -> Generation {
        const NAME: &str = "generation_config.json";
        let Some(file) = optional_object(dir, NAME, faults) else {
            return Generation {
                defaults: SamplingDefaults::NONE,
                stop_ids: Vec::new(),
                ignored: Vec::new(),
            };
        };
        let origin = Origin::Model(dir.join(NAME).display().to_string());
        let stop_ids = end_ids(&file, &origin, faults);
        let mut keys = Keys { file: &file, origin, ignored: Vec::new() };
        let penalties = f64::from(REPETITION_PENALTY_MIN)..=f64::from(REPETITION_PENALTY_MAX);
        let defaults = SamplingDefaults {
            temperature: keys.number("temperature", "a number from 0 to 100", |t| {
                (0.0..=f64::from(TEMPERATURE_MAX)).contains(&t)
            }),
            top_p: keys.number("top_p", "a number above 0 and at most 1", |p| p > 0.0 && p <= 1.0),
            top_k: keys.integer("top_k", -1).and_then(|k| u32::try_from(k).ok()),
            min_p: keys.number("min_p", "a number from 0 to 1", |p| (0.0..=1.0).contains(&p)),
            repetition_penalty: keys
                .number("repetition_penalty", "a number from 0.01 to 100", |p| penalties.contains(&p)),
            max_new_tokens: keys.integer("max_new_tokens", 1).and_then(|n| u32::try_from(n).ok()),
        };
        Generation { defaults, stop_ids, ignored: keys.ignored }
    }
}

/// `eos_token_id`: an id or a list of them; null and absence are the same. -1 is how some say that there is none.
fn end_ids(file: &Map<String, Value>, origin: &Origin, faults: &mut Collector) -> Vec<u32> {
    const KEY: &str = "eos_token_id";
    let items = match file.get(KEY) {
        None | Some(Value::Null) => return Vec::new(),
        Some(Value::Array(items)) => items.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    let mut ids = Vec::with_capacity(items.len().min(MODEL_STOP_IDS_MAX));
    for item in items {
        match whole(item).filter(|id| (-1..=NUMBER_MAX).contains(id)) {
            Some(id) => ids.extend(u32::try_from(id)),
            None => {
                let shown = shown(item);
                faults.add(origin, format!("{KEY} has {shown}; expected token ids, as one number or a list"));
                return Vec::new();
            }
        }
    }
    if StopIds::of(ids.iter().copied()).is_err() {
        let reason = format!("{KEY} has more than {MODEL_STOP_IDS_MAX} different ids");
        faults.add(origin, reason);
        return Vec::new();
    }
    ids
}

/// The tokens that end a text: those of both files, and the tokenizer's own. Ids outside the vocabulary are never
/// drawn, so they are left out.
pub(crate) fn all_stop_ids(
    of_files: [&[u32]; 2],
    of_tokenizer: Option<u32>,
    vocab_size: u32,
    origin: &Origin,
    faults: &mut Collector,
) -> StopIds {
    let ids = of_files.into_iter().flatten().copied().chain(of_tokenizer).filter(|id| *id < vocab_size);
    StopIds::of(ids).unwrap_or_else(|too_many| {
        faults.add(origin, format!("together with generation_config.json and the tokenizer: {too_many}"));
        StopIds::NONE
    })
}

/// A whole number, also where it is written as 20.0.
fn whole(value: &Value) -> Option<i64> {
    let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() <= NUMBER_MAX as f64;
    value.as_i64().or_else(|| value.as_f64().filter(is_whole).map(|number| number as i64))
}

/// A value as it stands in a message.
fn shown(value: &Value) -> String {
    const CHARS_MAX: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(CHARS_MAX) {
        None => text,
        Some((cut, _)) => format!("{}...", &text[..cut]),
    }
}

/// Takes values out of the file; null and absence are the same.
struct Keys<'a> {
    file: &'a Map<String, Value>,
    origin: Origin,
    ignored: Vec<String>,
}

impl Keys<'_> {
    fn number(&mut self, key: &str, wanted: &str, fits: impl Fn(f64) -> bool) -> Option<f64> {
        self.checked(key, wanted, |value| value.as_f64().filter(|n| fits(*n)))
    }

    fn integer(&mut self, key: &str, least: i64) -> Option<i64> {
        let wanted = format!("a whole number from {least} to {NUMBER_MAX}");
        self.checked(key, &wanted, |value| whole(value).filter(|n| (least..=NUMBER_MAX).contains(n)))
    }

    fn checked<T>(&mut self, key: &str, wanted: &str, read: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let value = self.file.get(key).filter(|value| !value.is_null())?;
        let read = read(value);
        if read.is_none() {
            let (origin, shown) = (&self.origin, shown(value));
            self.ignored.push(format!("{origin}: {key} is {shown} and is ignored; expected {wanted}"));
        }
        read
    }
}
