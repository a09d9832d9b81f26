//! Fields that admission does not read by their names: synonyms of those that it reads, fields of other servers that
//! would change the answer, and the rest.
//!
//! A synonym is read as the field that it stands for. A field of a peer that Pinion cannot honour is refused by name.
//! What is left cannot be told from a typing error, so the answer names it, or it is refused too (`--strict-fields`).

use crate::admission::Api;
use crate::admission::fields::read_on;
use crate::admission::json::Fields;
use crate::limits::{IGNORED_NAME_BYTES_MAX, IGNORED_NAMES_BYTES_MAX};
use pinion_protocol::Fault;
use serde_json::{Map, Value};

const ALL: &[Api] = &[Api::Completions, Api::Chat, Api::Generate];
const OPENAI: &[Api] = &[Api::Completions, Api::Chat];

/// Another server's name of a field that means the same here.
pub(crate) struct Synonym {
    pub(crate) name: &'static str,
    of: &'static str,
    apis: &'static [Api],
}

const fn synonym(name: &'static str, of: &'static str, apis: &'static [Api]) -> Synonym {
    Synonym { name, of, apis }
}

/// transformers' and SGLang's `*_new_tokens`, `regex` and `json_schema`; llama-server's `n_predict` and
/// `repeat_penalty`, Mistral's `random_seed`, SGLang's `sampling_seed`.
const SYNONYMS: &[Synonym] = &[
    synonym("max_new_tokens", "max_tokens", OPENAI),
    synonym("n_predict", "max_tokens", ALL),
    synonym("min_new_tokens", "min_tokens", ALL),
    synonym("repeat_penalty", "repetition_penalty", ALL),
    synonym("random_seed", "seed", ALL),
    synonym("sampling_seed", "seed", ALL),
    synonym("regex", "guided_regex", OPENAI),
    synonym("json_schema", "guided_json", OPENAI),
];

/// A field of another server that would change the answer and that Pinion lacks.
pub(crate) struct Refused {
    pub(crate) name: &'static str,
    /// Values that ask for nothing, as a JSON array.
    pub(crate) neutral: &'static str,
    /// What to do.
    pub(crate) instead: &'static str,
}

const fn refused(name: &'static str, neutral: &'static str, instead: &'static str) -> Refused {
    Refused { name, neutral, instead }
}

const GRAMMARS: &str = "Use guided_grammar, which takes a Lark grammar.";
const NONE: &str = "Not supported.";
const SAMPLER: &str = "This sampler is not supported; use temperature, top_k, top_p and min_p.";
const SEARCH: &str = "Tokens are sampled; there is no beam search.";
const STOPS: &str = "Use stop, a string or a list of strings.";
const THINKING: &str = "Use reasoning_effort, or enable_thinking in chat_template_kwargs.";

/// Schemas of the bodies that are translated, and of those for models that pool.
const TRANSLATED: [&str; 3] = [
    include_str!("../openapi/messages.json"),
    include_str!("../openapi/responses.json"),
    include_str!("../openapi/pooled.json"),
];

/// Names of vLLM, SGLang, llama-server, Ollama, TGI, transformers, Mistral and Anthropic.
#[rustfmt::skip]
pub(crate) const REFUSED: &[Refused] = &[
    refused("adapter_id", "[]", "Adapters are not supported."),
    refused("audio", "[]", "Only text."),
    refused("bad_words_ids", "[[]]", "Use bad_words, or logit_bias for single tokens."),
    refused("custom_logit_processor", "[]", NONE),
    refused("detokenize", "[true]", "Text is always sent; return_token_ids adds the ids."),
    refused("dry_multiplier", "[0]", SAMPLER),
    refused("dynatemp_range", "[0]", SAMPLER),
    refused("early_stopping", "[false]", SEARCH),
    refused("ebnf", "[]", GRAMMARS),
    refused("enable_thinking", "[]", "It belongs into chat_template_kwargs."),
    refused("epsilon_cutoff", "[0]", SAMPLER),
    refused("eta_cutoff", "[0]", SAMPLER),
    refused("force_words_ids", "[[]]", NONE),
    refused("format", "[]", "Use response_format."),
    refused("grammar", "[\"\"]", GRAMMARS),
    refused("guidance_scale", "[1]", NONE),
    refused("image_data", "[[]]", "Only text."),
    refused("images", "[[]]", "Only text."),
    refused("length_penalty", "[1]", SEARCH),
    refused("logits_processors", "[[]]", "Code of a request is not run."),
    refused("logprob_token_ids", "[[]]", "Use logprobs, which reports the likeliest tokens."),
    refused("lora", "[[]]", "Adapters are not supported."),
    refused("lora_path", "[]", "Adapters are not supported."),
    refused("max_length", "[]", "Use max_tokens, which counts the answer only."),
    refused("min_length", "[0]", "Use min_tokens, which counts the answer only."),
    refused("mirostat", "[0]", SAMPLER),
    refused("n_probs", "[0]", "Use logprobs."),
    refused("no_repeat_ngram_size", "[0]", "Use repetition_penalty or frequency_penalty."),
    refused("no_stop_trim", "[false]", "Use include_stop_str_in_output."),
    refused("num_beams", "[1]", SEARCH),
    refused("num_return_sequences", "[1]", "Use n."),
    refused("options", "[{}]", "Its members are fields of the request here."),
    refused("penalty_alpha", "[0]", SAMPLER),
    refused("prompt_embeds", "[[]]", "A prompt is text or token ids."),
    refused("repetition_detection", "[{}]", "Use repetition_penalty or frequency_penalty."),
    refused("return_full_text", "[false]", "Use echo on /v1/completions."),
    refused("return_hidden_states", "[false]", NONE),
    refused("safe_prompt", "[false]", "Write it as a system message."),
    refused("samplers", "[]", "Samplers run in one order."),
    refused("sampling_params", "[{}]", "Its members are fields of the request here."),
    refused("stop_regex", "[\"\", []]", STOPS),
    refused("stop_sequences", "[[]]", STOPS),
    refused("structural_tag", "[]", NONE),
    refused("suppress_tokens", "[[]]", "Use logit_bias with -100."),
    refused("system", "[\"\"]", "Write it as a system message."),
    refused("t_max_predict_ms", "[-1, 0]", NONE),
    refused("template", "[\"\"]", "Use chat_template, which names one of the model's."),
    refused("tfs_z", "[1]", SAMPLER),
    refused("think", "[]", THINKING),
    refused("thinking", "[]", THINKING),
    refused("thinking_budget", "[]", THINKING),
    refused("thinking_token_budget", "[-1]", THINKING),
    refused("top_a", "[0]", SAMPLER),
    refused("top_n_sigma", "[-1, 0]", SAMPLER),
    refused("typical_p", "[1]", SAMPLER),
    refused("vllm_xargs", "[{}]", NONE),
    refused("watermark", "[false]", NONE),
    refused("web_search_options", "[]", "The service searches nothing."),
    refused("xtc_probability", "[0]", SAMPLER),
];

/// Fields that cannot change the answer.
const HARMLESS: [&str; 10] = [
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "request_id",
    "cache_prompt",
    "guided_decoding_backend",
];

/// Reads synonyms as what they stand for. Gives those that were there.
pub(crate) fn synonyms(api: Api, fields: &mut Fields) -> Result<Vec<&'static Synonym>, Fault> {
    let mut found = Vec::new();
    for synonym in SYNONYMS.iter().filter(|synonym| synonym.apis.contains(&api)) {
        let Some(value) = fields.take(synonym.name) else { continue };
        if fields.get(synonym.of).is_some_and(|other| !is_same(other, &value)) {
            let message = format!(
                "{} and {} are the same and have two values; give one of them",
                synonym.name, synonym.of
            );
            return Err(Fault::field(synonym.name, message));
        }
        fields.put(synonym.of, value);
        found.push(synonym);
    }
    Ok(found)
}

/// Whether two values ask for the same: `1` and `1.0` do.
fn is_same(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// A fault in the words of the client, where it used a synonym.
pub(crate) fn in_its_words(fault: Fault, used: &[&'static Synonym]) -> Fault {
    match used.iter().find(|synonym| fault.param.as_deref() == Some(synonym.of)) {
        None => fault,
        Some(synonym) => {
            let message = fault.message.replace(synonym.of, synonym.name);
            Fault { param: Some(synonym.name.to_owned()), message, ..fault }
        }
    }
}

/// What is left when everything has been read: refuses what would change the answer, and with `strict` what nothing
/// knows; gives the names of the rest. `known` gives the names of the fields that there are.
pub(crate) fn leftovers(
    known: impl FnOnce() -> Vec<String>,
    fields: &Fields,
    strict: bool,
) -> Result<Vec<String>, Fault> {
    let mut ignored = Vec::new();
    for (name, value) in fields.rest() {
        if let Some(known) = REFUSED.iter().find(|refused| refused.name == name) {
            if !known.is_neutral(value) {
                let instead = if known.instead == NONE { "" } else { known.instead };
                let message = format!("{name} is not supported. {instead}");
                return Err(Fault::field(name, message.trim_end()));
            }
        } else if !HARMLESS.contains(&name) {
            ignored.push(shown(name));
        }
    }
    match ignored.first().filter(|_| strict) {
        None => Ok(ignored),
        Some(name) => {
            let meant =
                meant(&known(), name).map(|known| format!("; did you mean {known}?")).unwrap_or_default();
            Err(Fault::field(name, format!("there is no field {name}{meant}")))
        }
    }
}

impl Refused {
    fn is_neutral(&self, value: &Value) -> bool {
        let neutral: Vec<Value> = serde_json::from_str(self.neutral).unwrap_or_default();
        neutral.iter().any(|one| is_same(one, value))
    }
}

/// Names of the fields that are read on one API.
pub(crate) fn field_names(api: Api) -> Vec<String> {
    read_on(api).map(|field| field.name.to_owned()).collect()
}

/// Names of the members of a body that is translated, by the name of its published schema.
pub(crate) fn members_of(schema: &str) -> Vec<String> {
    let parsed = |schemas: &str| -> Map<String, Value> { serde_json::from_str(schemas).unwrap_or_default() };
    let mut all = TRANSLATED.into_iter().map(parsed);
    let members = all.find_map(|mut schemas| schemas.remove(schema)?["properties"].as_object().cloned());
    members.into_iter().flatten().map(|(name, _)| name).collect()
}

/// A client's name as it may stand in a header field: short, and of harmless characters.
fn shown(name: &str) -> String {
    let harmless = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '?' };
    name.chars().take(IGNORED_NAME_BYTES_MAX).map(harmless).collect()
}

/// The names as one header field; those that do not fit are counted.
pub(crate) fn header(names: &[String]) -> String {
    let mut line = String::new();
    for (index, name) in names.iter().enumerate() {
        if line.len() + name.len() > IGNORED_NAMES_BYTES_MAX {
            return format!("{line}, and {} more", names.len() - index);
        }
        line.push_str(if index == 0 { "" } else { ", " });
        line.push_str(name);
    }
    line
}

/// The field that a name with a typing error stands for.
fn meant<'a>(known: &'a [String], name: &str) -> Option<&'a str> {
    const MISTAKES_MAX: usize = 2;
    let near = known.iter().map(|known| (mistakes(name, known), known.as_str()));
    near.min().filter(|(mistakes, _)| *mistakes <= MISTAKES_MAX).map(|(_, known)| known)
}

/// Letters to add, leave out or replace between two names.
fn mistakes(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut corner = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.bytes().enumerate() {
            let replaced = corner + usize::from(a != b);
            corner = row[j + 1];
            row[j + 1] = replaced.min(corner + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(body: &str, strict: bool) -> Result<Vec<String>, Fault> {
        leftovers(|| field_names(Api::Completions), &Fields::parse(body.as_bytes())?, strict)
    }

    #[test]
    fn what_nothing_knows_is_named_and_what_a_peer_knows_is_refused() {
        assert_eq!(left(r#"{"temprature": 1, "x": null, "metadata": {}}"#, false).unwrap(), ["temprature"]);
        assert_eq!(left(r#"{"num_beams": 1.0, "mirostat": 0, "grammar": ""}"#, true).unwrap(), [""; 0]);
        for refused in ["num_beams", "mirostat", "grammar", "stop_regex", "thinking"] {
            let fault = left(&format!("{{\"{refused}\": \"7\"}}"), false).unwrap_err();
            assert_eq!(fault.param.as_deref(), Some(refused));
        }
        let fault = left(r#"{"temprature": 1}"#, true).unwrap_err();
        assert_eq!(fault.message, "there is no field temprature; did you mean temperature?");
        let fault = left(r#"{"frobnicate": 1}"#, true).unwrap_err();
        assert_eq!(fault.message, "there is no field frobnicate");
    }

    #[test]
    fn a_header_field_stays_short_and_has_no_other_lines() {
        assert_eq!(left("{\"a\\r\\nb: c\": 1}", false).unwrap(), ["a??b??c"]);
        let long: Vec<String> = (0..100).map(|index| format!("{index:0>60}")).collect();
        let line = header(&long);
        assert!(line.len() < IGNORED_NAMES_BYTES_MAX + 80 && line.ends_with(" more"), "{line}");
        assert_eq!(header(&["a".to_owned(), "b".to_owned()]), "a, b");
    }

    #[test]
    fn synonyms_are_read_as_what_they_stand_for() {
        let mut fields =
            Fields::parse(br#"{"n_predict": 3, "regex": "a", "seed": null, "random_seed": 1}"#).unwrap();
        let used = synonyms(Api::Completions, &mut fields).unwrap();
        assert_eq!(used.len(), 3);
        assert_eq!(
            (fields.has("max_tokens"), fields.has("guided_regex"), fields.has("seed")),
            (true, true, true)
        );
        let fault = in_its_words(Fault::field("max_tokens", "max_tokens must be small"), &used);
        assert_eq!(
            (fault.param.as_deref(), fault.message.as_str()),
            (Some("n_predict"), "n_predict must be small")
        );
        for both in [r#"{"n_predict": 3, "max_tokens": 4}"#, r#"{"n_predict": 3, "max_new_tokens": 4}"#] {
            let fault = synonyms(Api::Chat, &mut Fields::parse(both.as_bytes()).unwrap()).err().unwrap();
            assert_eq!(fault.param.as_deref(), Some("n_predict"));
            assert!(fault.message.starts_with("n_predict and max_tokens are the same"), "{}", fault.message);
        }
        for both in [
            r#"{"n_predict": 3, "max_tokens": 3}"#,
            r#"{"n_predict": 3, "max_tokens": 3.0}"#,
            r#"{"n_predict": 3, "max_tokens": null}"#,
        ] {
            let mut fields = Fields::parse(both.as_bytes()).unwrap();
            assert_eq!(synonyms(Api::Chat, &mut fields).ok().map(|used| used.len()), Some(1), "{both}");
            assert_eq!(fields.integer("max_tokens", 1..=9), Ok(Some(3)), "{both}");
        }
    }

    #[test]
    fn api_md_has_every_name() {
        let page = include_str!("../../../../docs/API.md");
        let part = |from: &str, to: &str| {
            let (_, rest) = page.split_once(from).unwrap_or_else(|| panic!("API.md has no {from:?}"));
            rest.split_once(to).unwrap_or_else(|| panic!("API.md has no {to:?} behind {from:?}")).0
        };
        let refused = part("So are fields of other servers", "**Other names for the same**");
        let same = part("**Other names for the same**", "**Ignored without a word");
        let ignored = part("**Ignored without a word", "\n## ");
        let names = |part: &str| part.matches('`').count() / 2;
        for (part, name) in REFUSED
            .iter()
            .map(|field| (refused, field.name))
            .chain(SYNONYMS.iter().flat_map(|synonym| [(same, synonym.name), (same, synonym.of)]))
            .chain(HARMLESS.map(|name| (ignored, name)))
        {
            assert!(part.contains(&format!("`{name}`")), "docs/API.md has no `{name}` where it belongs");
        }
        // The two pages that have the neutral values, and no name that is refused no more.
        assert_eq!(names(refused), REFUSED.len() + 2);
        assert_eq!(names(ignored), HARMLESS.len());
    }

    #[test]
    fn the_refused_fields_are_in_order_and_their_neutral_values_are_json() {
        for pair in REFUSED.windows(2) {
            assert!(pair[0].name < pair[1].name, "{}", pair[1].name);
        }
        for refused in REFUSED {
            assert!(serde_json::from_str::<Vec<Value>>(refused.neutral).is_ok(), "{}", refused.name);
            assert!(!HARMLESS.contains(&refused.name), "{}", refused.name);
        }
    }
}
