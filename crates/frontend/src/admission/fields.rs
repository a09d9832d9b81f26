//! Every field that admission reads, once: its API, the values that pass, and its meaning. `/openapi.json` and
//! `/docs` are made from this table, and tests hold it against admission itself: a field that only one of the two
//! knows fails them, and so does a limit that differs.

use crate::admission::Api;
use crate::admission::unknown::{REFUSED, Refused};
use pinion_protocol::limits::CHOICES_MAX;
use serde_json::{Value, json};

const ALL: &[Api] = &[Api::Completions, Api::Chat, Api::Generate];
const OPENAI: &[Api] = &[Api::Completions, Api::Chat];
const COMPLETIONS: &[Api] = &[Api::Completions];
const CHAT: &[Api] = &[Api::Chat];
/// Those that take no messages.
const RAW: &[Api] = &[Api::Completions, Api::Generate];
const GENERATE: &[Api] = &[Api::Generate];

/// The values that pass, besides null.
#[derive(Clone, Copy)]
pub(crate) enum Shape {
    Boolean,
    Integer {
        min: i128,
        max: i128,
    },
    Number {
        min: f64,
        max: f64,
    },
    /// As the number, without its lower limit.
    Above {
        limit: f64,
        max: f64,
    },
    /// A schema as JSON.
    Schema(&'static str),
    /// A field of OpenAI's that this version refuses: only these neutral values pass, as a JSON array.
    Neutral(&'static str),
}

/// One field.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) apis: &'static [Api],
    pub(crate) required: bool,
    pub(crate) shape: Shape,
    pub(crate) meaning: &'static str,
}

const fn field(name: &'static str, apis: &'static [Api], shape: Shape, meaning: &'static str) -> Field {
    Field { name, apis, required: false, shape, meaning }
}

const INT: i128 = i32::MAX as i128;
const PROMPTS: &str = r##"{"anyOf": [{"type": "string", "minLength": 1},
    {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/TokenId"}},
    {"type": "array", "minItems": 1, "maxItems": 128, "items": {"type": "string", "minLength": 1}},
    {"type": "array", "minItems": 1, "maxItems": 128,
     "items": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/TokenId"}}}]}"##;
const ONE_PROMPT: &str = r##"{"anyOf": [{"type": "string", "minLength": 1},
    {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/TokenId"}},
    {"type": "array", "minItems": 1, "maxItems": 1, "items": {"type": "string", "minLength": 1}},
    {"type": "array", "minItems": 1, "maxItems": 1,
     "items": {"type": "array", "minItems": 1, "items": {"$ref": "#/components/schemas/TokenId"}}}]}"##;
const STOP: &str = r#"{"anyOf": [{"type": "string", "minLength": 1, "maxLength": 256},
    {"type": "array", "maxItems": 16, "items": {"type": "string", "minLength": 1, "maxLength": 256}},
    {"type": "null"}]}"#;
const LOGIT_BIAS: &str = r#"{"anyOf": [{"type": ["object", "null"], "maxProperties": 1024,
    "propertyNames": {"pattern": "^[0-9]+$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}, {"type": "array", "maxItems": 0}]}"#;
const TOKEN_IDS: &str = r##"{"anyOf": [{"type": "null"},
    {"type": "array", "maxItems": 128, "items": {"$ref": "#/components/schemas/TokenId"}}]}"##;
const LOGPROBS: &str =
    r#"{"anyOf": [{"type": "integer", "minimum": 0, "maximum": 20}, {"type": "null"}, {"const": false}]}"#;
const TOOLS: &str = r##"{"type": ["array", "null"], "maxItems": 128, "items": {"type": "object",
    "required": ["type", "function"], "properties": {"type": {"const": "function"},
    "function": {"type": "object", "required": ["name"], "properties": {
        "name": {"$ref": "#/components/schemas/FunctionName"}, "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]}, "strict": {"type": ["boolean", "null"]}}}}}}"##;
const TOOL_CHOICE: &str = r##"{"anyOf": [{"enum": ["none", "auto", "required", null]},
    {"type": "object", "required": ["type", "function"], "properties": {"type": {"const": "function"},
    "function": {"type": "object", "required": ["name"],
    "properties": {"name": {"$ref": "#/components/schemas/FunctionName"}}}}}]}"##;
const DOCUMENTS: &str = r#"{"type": ["array", "null"], "maxItems": 1024, "items": {"type": "object"}}"#;
const TEMPLATE_KWARGS: &str = r#"{"type": ["object", "null"], "maxProperties": 64, "propertyNames": {"not": {"enum":
    ["messages", "tools", "documents", "add_generation_prompt", "continue_final_message"]}}}"#;
const STREAM_OPTIONS: &str = r#"{"type": ["object", "null"], "properties": {"include_usage": {"type": ["boolean", "null"]},
    "continuous_usage_stats": {"type": ["boolean", "null"]}}}"#;
const RESPONSE_FORMAT: &str = r#"{"anyOf": [{"type": "null"},
    {"type": "object", "required": ["type"], "properties": {"type": {"const": "text"}}},
    {"type": "object", "required": ["type"], "properties": {"type": {"const": "json_object"},
     "schema": {"type": ["object", "null"]}}},
    {"type": "object", "required": ["type", "schema"], "properties": {"type": {"const": "json_schema"},
     "json_schema": {"type": "null"}, "schema": {"type": "object"}}},
    {"type": "object", "required": ["type", "json_schema"], "properties": {"type": {"const": "json_schema"},
     "json_schema": {"type": "object", "required": ["name", "schema"], "properties": {
      "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}, "strict": {"type": ["boolean", "null"]},
      "schema": {"type": "object"}}}}}]}"#;
const JSON_SCHEMA: &str = r#"{"type": ["object", "string", "null"]}"#;
const GRAMMAR_TEXT: &str = r#"{"type": ["string", "null"], "minLength": 1, "maxLength": 65536}"#;
const CHOICES: &str = r#"{"type": ["array", "null"], "minItems": 1, "maxItems": 1024,
    "items": {"type": "string", "minLength": 1}}"#;
const STRUCTURED_OUTPUTS: &str = r#"{"type": ["object", "null"], "minProperties": 1, "properties": {
    "json": {"type": ["object", "string"]}, "regex": {"type": "string", "minLength": 1},
    "choice": {"type": "array", "minItems": 1, "maxItems": 1024, "items": {"type": "string", "minLength": 1}},
    "grammar": {"type": "string", "minLength": 1}, "json_object": {"type": "boolean"},
    "disable_any_whitespace": {"type": "boolean"}, "disable_additional_properties": {"type": "boolean"}, "whitespace_pattern": {"type": "string", "minLength": 1}}}"#;

const TOKEN_COUNT: &str =
    r#"{"type": ["integer", "null"], "minimum": -1, "maximum": 2147483647, "not": {"const": 0}}"#;
const ALLOWED_IDS: &str =
    r##"{"type": ["array", "null"], "minItems": 1, "items": {"$ref": "#/components/schemas/TokenId"}}"##;
const BAD_WORDS: &str =
    r#"{"type": ["array", "null"], "maxItems": 1024, "items": {"type": "string", "minLength": 1}}"#;
const EFFORT: &str = r#"{"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max", null]}"#;

/// The table, in the order of the documentation.
#[rustfmt::skip]
pub(crate) const FIELDS: &[Field] = &[
    field("model", ALL, Shape::Schema(r##"{"$ref": "#/components/schemas/ModelName"}"##), "The served name; may be left out."),
    Field { required: true, ..field("prompt", COMPLETIONS, Shape::Schema(PROMPTS), "What to continue: text or token ids, or a list of them.") },
    Field { required: true, ..field("prompt", GENERATE, Shape::Schema(ONE_PROMPT), "What to continue: text or token ids.") },
    Field { required: true, ..field("messages", CHAT, Shape::Schema(r##"{"$ref": "#/components/schemas/Messages"}"##), "What to answer.") },
    field("add_generation_prompt", CHAT, Shape::Boolean, "End the prompt with the opening of the assistant's turn."),
    field("continue_final_message", CHAT, Shape::Boolean, "Go on with the last message."),
    field("documents", CHAT, Shape::Schema(DOCUMENTS), "For templates that quote documents."),
    field("chat_template", CHAT, Shape::Schema(r#"{"type": ["string", "null"]}"#), "The name of one of the model's templates."),
    field("add_special_tokens", COMPLETIONS, Shape::Boolean, "Off, a text gets no beginning-of-sequence token."),
    field("add_special_tokens", CHAT, Shape::Boolean, "On, the text of the template gets one, unless it has it."),
    field("reasoning_effort", CHAT, Shape::Schema(EFFORT), "How much the model is to think; none sets enable_thinking to false."),
    field("include_reasoning", CHAT, Shape::Boolean, "Off, the reasoning is not sent."),
    field("chat_template_kwargs", CHAT, Shape::Schema(TEMPLATE_KWARGS), "More names for the chat template."),
    field("max_tokens", COMPLETIONS, Shape::Integer { min: -1, max: INT }, "Tokens to generate, at most; 0 only with echo or prompt_logprobs, -1: until the context is full."),
    field("max_tokens", CHAT, Shape::Schema(TOKEN_COUNT), "Tokens to generate, at most; -1: until the context is full."),
    field("max_completion_tokens", CHAT, Shape::Schema(TOKEN_COUNT), "The same; wins over max_tokens."),
    field("max_new_tokens", GENERATE, Shape::Schema(TOKEN_COUNT), "Tokens to generate, at most; -1: until the context is full."),
    field("max_tokens", GENERATE, Shape::Schema(TOKEN_COUNT), "The same; max_new_tokens wins."),
    field("temperature", ALL, Shape::Number { min: 0.0, max: 100.0 }, "0 is greedy."),
    field("top_p", ALL, Shape::Above { limit: 0.0, max: 1.0 }, "Probability kept."),
    field("top_k", ALL, Shape::Integer { min: -1, max: INT }, "Most likely tokens kept; -1 and 0 are off."),
    field("min_p", ALL, Shape::Number { min: 0.0, max: 1.0 }, "Tokens less likely than this share of the likeliest are dropped."),
    field("max_new_tokens", OPENAI, Shape::Schema(TOKEN_COUNT), "The same as max_tokens."),
    field("n_predict", ALL, Shape::Schema(TOKEN_COUNT), "The same as max_tokens."),
    field("min_new_tokens", ALL, Shape::Schema(r#"{"type": ["integer", "null"], "minimum": 0}"#), "The same as min_tokens."),
    field("repeat_penalty", ALL, Shape::Number { min: 0.01, max: 100.0 }, "The same as repetition_penalty."),
    field("random_seed", ALL, Shape::Integer { min: i64::MIN as i128, max: u64::MAX as i128 }, "The same as seed."),
    field("sampling_seed", ALL, Shape::Integer { min: i64::MIN as i128, max: u64::MAX as i128 }, "The same as seed."),
    field("regex", OPENAI, Shape::Schema(GRAMMAR_TEXT), "The same as guided_regex."),
    field("json_schema", OPENAI, Shape::Schema(JSON_SCHEMA), "The same as guided_json."),
    field("repeat_last_n", ALL, Shape::Integer { min: -1, max: INT }, "How far penalties look back; only -1, the whole text, beside one."),
    field("repetition_penalty", ALL, Shape::Number { min: 0.01, max: 100.0 }, "For tokens of prompt and answer; 1 is off."),
    field("frequency_penalty", ALL, Shape::Number { min: -2.0, max: 2.0 }, "For each time a token stands in the answer."),
    field("presence_penalty", ALL, Shape::Number { min: -2.0, max: 2.0 }, "For a token that stands in the answer."),
    field("logit_bias", ALL, Shape::Schema(LOGIT_BIAS), "Added to the logits of token ids."),
    field("stop_token_ids", ALL, Shape::Schema(TOKEN_IDS), "Token ids that end the text."),
    field("min_tokens", ALL, Shape::Schema(r#"{"type": ["integer", "null"], "minimum": 0}"#), "At most what may be generated."),
    field("include_stop_str_in_output", ALL, Shape::Boolean, "Send what ended the text."),
    field("allowed_token_ids", ALL, Shape::Schema(ALLOWED_IDS), "The only token ids that may be drawn; not with a form of the text."),
    field("bad_words", ALL, Shape::Schema(BAD_WORDS), "Words that are not written; not with a form of the text."),
    field("truncate_prompt_tokens", ALL, Shape::Schema(r#"{"type": ["integer", "null"], "minimum": -1, "maximum": 2147483647, "not": {"const": 0}}"#), "Only this number of the prompt's last tokens is used; with -1 as many as fit."),
    field("truncation_side", ALL, Shape::Schema(r#"{"enum": ["left", "right", null]}"#), "The end of the prompt that truncate_prompt_tokens cuts: left, or right."),
    field("skip_special_tokens", ALL, Shape::Boolean, "Off, special tokens show their names."),
    field("spaces_between_special_tokens", ALL, Shape::Boolean, "Without effect: texts of a tokenizer.json are the same either way."),
    field("seed", ALL, Shape::Integer { min: i64::MIN as i128, max: u64::MAX as i128 }, "The same seed draws the same, whatever is served beside it; -1 is as if absent."),
    field("priority", ALL, Shape::Integer { min: i32::MIN as i128, max: INT }, "A lower value is served earlier."),
    field("user", ALL, Shape::Schema(r#"{"type": ["string", "null"], "maxLength": 512}"#), "On whose account the request runs where fair shares are by user."),
    field("stop", ALL, Shape::Schema(STOP), "Strings that end the text."),
    field("stream", ALL, Shape::Boolean, "Answer as server-sent events; as bare text from /generate."),
    field("stream_options", ALL, Shape::Schema(STREAM_OPTIONS), "Only with stream: include_usage sends the counts, and continuous_usage_stats with every chunk."),
    field("timings", ALL, Shape::Boolean, "Say where the time went: a member of the answer, an event before the end of a stream."),
    field("ignore_eos", OPENAI, Shape::Boolean, "Go on past the end-of-sequence token."),
    field("stop_on_eos", GENERATE, Shape::Boolean, "End at the end-of-sequence token."),
    field("do_sample", GENERATE, Shape::Boolean, "Off is greedy."),
    field("n", OPENAI, Shape::Integer { min: 1, max: CHOICES_MAX as i128 }, "Choices for each prompt."),
    field("n", GENERATE, Shape::Integer { min: 1, max: 1 }, "One."),
    field("best_of", COMPLETIONS, Shape::Integer { min: 1, max: CHOICES_MAX as i128 }, "At least n, and above it not with stream: the number of candidates, of which the n likeliest are shown."),
    field("best_of", CHAT, Shape::Neutral("[1]"), "Only the same as n."),
    field("best_of", GENERATE, Shape::Neutral("[1]"), "Only the same as n."),
    field("logprobs", COMPLETIONS, Shape::Schema(LOGPROBS), "The logprob of each token and of this number of likeliest ones."),
    field("logprobs", CHAT, Shape::Boolean, "The logprob of each token."),
    field("logprobs", GENERATE, Shape::Neutral("[false]"), "Not supported."),
    field("top_logprobs", CHAT, Shape::Schema(r#"{"type": ["integer", "null"], "minimum": 0, "maximum": 20}"#), "Only with logprobs: the number of likeliest tokens beside each."),
    field("top_logprobs", COMPLETIONS, Shape::Neutral("[0]"), "For chats."),
    field("top_logprobs", GENERATE, Shape::Neutral("[0]"), "Not supported."),
    field("prompt_logprobs", OPENAI, Shape::Integer { min: 0, max: 20 }, "Not with stream: the logprob of each token of the prompt and of this number of likeliest ones."),
    field("prompt_logprobs", GENERATE, Shape::Neutral("[]"), "Not supported."),
    field("echo", COMPLETIONS, Shape::Boolean, "The prompt ahead of the answer; with logprobs its tokens' too."),
    field("echo", CHAT, Shape::Neutral("[false]"), "For completions."),
    field("echo", GENERATE, Shape::Neutral("[false]"), "Not supported."),
    field("return_token_ids", OPENAI, Shape::Boolean, "Send the token ids of prompt and answer."),
    field("return_token_ids", GENERATE, Shape::Neutral("[false]"), "Not supported."),
    field("return_tokens_as_token_ids", OPENAI, Shape::Boolean, "Beside logprobs tokens are written as token_id: and their id."),
    field("suffix", ALL, Shape::Neutral("[\"\"]"), "Not supported."),
    field("tools", CHAT, Shape::Schema(TOOLS), "Functions that the model may call."),
    field("tool_choice", CHAT, Shape::Schema(TOOL_CHOICE), "Whether it calls one, and which."),
    field("parallel_tool_calls", CHAT, Shape::Boolean, "Off, at most one call."),
    field("tools", RAW, Shape::Neutral("[[]]"), "For chats."),
    field("tool_choice", RAW, Shape::Neutral("[\"none\", \"auto\"]"), "For chats."),
    field("functions", ALL, Shape::Neutral("[[]]"), "Not supported."),
    field("function_call", ALL, Shape::Neutral("[\"none\", \"auto\"]"), "Not supported."),
    field("response_format", OPENAI, Shape::Schema(RESPONSE_FORMAT), "What the whole text must look like: any JSON object, or JSON of a schema."),
    field("guided_json", OPENAI, Shape::Schema(JSON_SCHEMA), "A JSON schema that the text must follow."),
    field("guided_regex", OPENAI, Shape::Schema(GRAMMAR_TEXT), "An expression that the whole text must match."),
    field("guided_choice", OPENAI, Shape::Schema(CHOICES), "Strings of which the text must be one."),
    field("guided_grammar", OPENAI, Shape::Schema(GRAMMAR_TEXT), "A Lark grammar, as llguidance takes it."),
    field("structured_outputs", OPENAI, Shape::Schema(STRUCTURED_OUTPUTS), "Exactly one of these."),
    field("guided_whitespace_pattern", OPENAI, Shape::Schema(GRAMMAR_TEXT), "White space that JSON may have, as an expression; without it JSON is compact."),
    field("guided_whitespace_pattern", GENERATE, Shape::Neutral("[]"), "Not supported."),
    field("modalities", ALL, Shape::Neutral("[[\"text\"]]"), "Only text."),
    field("use_beam_search", ALL, Shape::Neutral("[false]"), "Not supported."),
    field("chat_template", RAW, Shape::Neutral("[]"), "For chats."),
    field("response_format", GENERATE, Shape::Neutral("[{\"type\": \"text\"}]"), "Not supported."),
    field("guided_json", GENERATE, Shape::Neutral("[]"), "Not supported."),
    field("guided_regex", GENERATE, Shape::Neutral("[]"), "Not supported."),
    field("guided_choice", GENERATE, Shape::Neutral("[]"), "Not supported."),
    field("guided_grammar", GENERATE, Shape::Neutral("[]"), "Not supported."),
    field("structured_outputs", GENERATE, Shape::Neutral("[]"), "Not supported."),
];

impl Shape {
    /// The JSON schema, null included.
    pub(crate) fn schema(&self) -> Value {
        match *self {
            Shape::Boolean => json!({"type": ["boolean", "null"]}),
            Shape::Integer { min, max } => {
                json!({"type": ["integer", "null"], "minimum": number(min), "maximum": number(max)})
            }
            Shape::Number { min, max } => json!({"type": ["number", "null"], "minimum": min, "maximum": max}),
            Shape::Above { limit, max } => {
                json!({"type": ["number", "null"], "exclusiveMinimum": limit, "maximum": max})
            }
            Shape::Schema(text) => parsed(text),
            Shape::Neutral(text) => {
                let mut values = parsed(text);
                if let Some(values) = values.as_array_mut() {
                    values.push(Value::Null);
                }
                json!({"enum": values})
            }
        }
    }
}

fn number(whole: i128) -> Value {
    u64::try_from(whole)
        .map(Value::from)
        .unwrap_or_else(|_| Value::from(i64::try_from(whole).unwrap_or(i64::MIN)))
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("the table's schemas are JSON; a test reads them all")
}

/// The fields that are read on one API.
pub(crate) fn read_on(api: Api) -> impl Iterator<Item = &'static Field> {
    FIELDS.iter().filter(move |field| field.apis.contains(&api))
}

/// All fields of one API, with those of other servers that are refused.
pub(crate) fn of(api: Api) -> impl Iterator<Item = Field> {
    let refused =
        |refused: &Refused| field(refused.name, ALL, Shape::Neutral(refused.neutral), refused.instead);
    read_on(api).copied().chain(REFUSED.iter().map(refused))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::json::taken_names;
    use crate::admission::tools::CallReading;
    use crate::admission::{Limits, admit};
    use pinion_config::SamplingDefaults;
    use std::collections::BTreeSet;

    const CALLS: CallReading = CallReading::AsText;
    const APIS: [Api; 3] = [Api::Completions, Api::Chat, Api::Generate];

    /// The refused field, or nothing if the body passes.
    fn refused(api: Api, name: &str, value: &str) -> Option<String> {
        refused_beside(SamplingDefaults::NONE, api, name, value)
    }

    /// The same for a model with sampling defaults of its own.
    fn refused_beside(defaults: SamplingDefaults, api: Api, name: &str, value: &str) -> Option<String> {
        let base = match api {
            Api::Chat => r#""messages":[{"role":"user","content":"hi"}]"#,
            Api::Completions | Api::Generate => r#""prompt":"hi""#,
        };
        let body = if base.starts_with(&format!("\"{name}\"")) {
            format!("{{\"{name}\":{value}}}")
        } else {
            format!("{{{base},\"{name}\":{value}}}")
        };
        let limits = Limits {
            model: "tiny".to_owned(),
            vocab_size: 100,
            max_model_len: 64,
            calls: CALLS,
            reasons: false,
            defaults,
            strict_fields: true,
            pooling: None,
        };
        admit(api, body.as_bytes(), &limits, 1).err().map(|fault| fault.param.unwrap_or_default())
    }

    #[test]
    fn the_table_has_exactly_the_fields_that_admission_reads() {
        for api in APIS {
            taken_names();
            assert_eq!(refused(api, "model", "null"), None);
            let read: BTreeSet<String> = taken_names().into_iter().collect();
            let known: BTreeSet<String> = read_on(api).map(|field| field.name.to_owned()).collect();
            assert_eq!(
                read, known,
                "{api:?}: admission on the left, the table of /openapi.json on the right"
            );
        }
    }

    /// llama-server's clients send its default with every request.
    #[test]
    fn how_far_penalties_look_back_says_nothing_without_any() {
        for api in APIS {
            assert_eq!(refused(api, "repeat_last_n", "64"), None);
            // The model's own penalty is none that the client asks for.
            let defaults = SamplingDefaults { repetition_penalty: Some(1.05), ..SamplingDefaults::NONE };
            assert_eq!(refused_beside(defaults, api, "repeat_last_n", "64"), None);
            for penalty in ["repeat_penalty", "presence_penalty"] {
                let both = format!("64,\"{penalty}\":1.5");
                assert_eq!(refused(api, "repeat_last_n", &both).as_deref(), Some("repeat_last_n"));
            }
        }
    }

    #[test]
    fn admission_and_the_table_have_the_same_limits() {
        for api in APIS {
            for Field { name, shape, .. } in of(api) {
                let (pass, fail) = match shape {
                    Shape::Boolean => (vec!["true".to_owned(), "false".into()], vec!["1".to_owned()]),
                    Shape::Integer { min, max } => (
                        vec![min.to_string(), max.to_string()],
                        vec![(min - 1).to_string(), (max + 1).to_string(), "1.5".into()],
                    ),
                    Shape::Number { min, max } => (
                        vec![min.to_string(), max.to_string()],
                        vec![(min - 0.01).to_string(), (max + 0.01).to_string(), "\"1\"".into()],
                    ),
                    Shape::Above { limit, max } => (
                        vec![(limit + 0.01).to_string(), max.to_string()],
                        vec![limit.to_string(), (max + 0.01).to_string()],
                    ),
                    Shape::Neutral(text) => {
                        let values: Vec<Value> = serde_json::from_str(text).unwrap();
                        (values.iter().map(Value::to_string).collect(), vec!["\"other\"".to_owned()])
                    }
                    Shape::Schema(_) => (Vec::new(), vec!["7.5".to_owned()]),
                };
                for value in pass {
                    assert_eq!(refused(api, name, &value), None, "{api:?} {name} = {value}");
                }
                for value in fail {
                    assert_eq!(refused(api, name, &value).as_deref(), Some(name), "{api:?} {name} = {value}");
                }
            }
        }
    }
}
