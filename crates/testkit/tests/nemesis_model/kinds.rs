//! The kinds of requests: every field that shapes an answer, on every generation route, whole and streamed.

use pinion_testkit::Api;
use serde_json::{Value, json};

/// A request that always has the same answer.
pub(crate) struct Kind {
    pub(crate) name: String,
    pub(crate) api: Api,
    pub(crate) body: Value,
    pub(crate) ends: Ends,
}

/// What ends its choices when nothing disturbs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Whatever the model's text leads to.
    Any,
    /// The most tokens that it may have.
    Length,
    /// A stop id, or a grammar that allows nothing more.
    Stop,
    /// A stop string, which the detokenizer finds.
    StopString,
    /// Calls of its own choice.
    ToolCalls,
}

impl Kind {
    pub(crate) fn is_streamed(&self) -> bool {
        self.body["stream"] == true
    }

    /// Whether its answer is a stream of text without events.
    pub(crate) fn is_bare_stream(&self) -> bool {
        self.api == Api::Generate && self.is_streamed()
    }

    /// Prompts.
    pub(crate) fn prompts(&self) -> u64 {
        self.body["prompt"].as_array().filter(|list| list[0].is_string()).map_or(1, |list| list.len() as u64)
    }

    /// Choices in its answer.
    pub(crate) fn choices(&self) -> u64 {
        self.prompts() * self.body["n"].as_u64().unwrap_or(1)
    }

    /// Request slots that it takes: one for each candidate.
    pub(crate) fn slots(&self) -> u64 {
        self.choices().max(self.prompts() * self.body["best_of"].as_u64().unwrap_or(1))
    }

    /// Whether the answer carries token counts.
    pub(crate) fn has_usage(&self) -> bool {
        !self.is_streamed() || self.body["stream_options"]["include_usage"] == true
    }
}

/// A body without `stream`, and whether it may be streamed.
type Form = (&'static str, Api, Ends, bool, Value);

/// All kinds. Streams count their tokens, all but those of `/generate`, which are bare text.
pub(crate) fn kinds() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (name, api, ends, streams, body) in
        completions().into_iter().chain(shaped()).chain(structured()).chain(chats())
    {
        let whole = Kind { name: format!("{name}, whole"), api, body: body.clone(), ends };
        kinds.push(whole);
        if streams {
            let mut body = body;
            body["stream"] = json!(true);
            if api != Api::Generate {
                body["stream_options"] = json!({"include_usage": true});
            }
            kinds.push(Kind { name: format!("{name}, streamed"), api, body, ends });
        }
    }
    kinds
}

fn completions() -> Vec<Form> {
    use Ends::{Any, Length};
    let asks = Api::Completions;
    let scene = "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\n";
    vec![
        ("greedy", asks, Length, true, json!({"prompt": "ROMEO:\n", "max_tokens": 48, "temperature": 0})),
        (
            "long",
            asks,
            Length,
            true,
            json!({"prompt": "JULIET:\nO ", "max_tokens": 160, "temperature": 0, "ignore_eos": true}),
        ),
        (
            "seeded",
            asks,
            Any,
            true,
            json!({"prompt": "KING HENRY:\n", "max_tokens": 60, "temperature": 0.7, "seed": 201,
            "top_p": 0.95, "top_k": 80, "min_p": 0.01}),
        ),
        (
            "token ids",
            asks,
            Any,
            true,
            json!({"prompt": [17, 300, 41, 1200, 9], "max_tokens": 40, "seed": -3}),
        ),
        ("logprobs", asks, Any, true, json!({"prompt": scene, "max_tokens": 40, "seed": 5, "logprobs": 3})),
        (
            "prompt logprobs",
            asks,
            Any,
            false,
            json!({"prompt": scene, "max_tokens": 24, "seed": 6, "prompt_logprobs": 2}),
        ),
        ("echo", asks, Any, true, json!({"prompt": scene, "max_tokens": 24, "seed": 7, "echo": true})),
        (
            "echo with logprobs",
            asks,
            Any,
            true,
            json!({"prompt": scene, "max_tokens": 24, "seed": 8, "echo": true, "logprobs": 1}),
        ),
        ("four choices", asks, Any, true, json!({"prompt": "Enter", "max_tokens": 40, "seed": 9, "n": 4})),
        (
            "best of three",
            asks,
            Any,
            false,
            json!({"prompt": "Enter", "max_tokens": 24, "seed": 10, "best_of": 3}),
        ),
        (
            "three prompts, two choices each",
            asks,
            Any,
            true,
            json!({"prompt": ["What", "The lord of", "Now is the winter"], "max_tokens": 24, "seed": 11, "n": 2}),
        ),
    ]
}

/// Completions that name their end or change their logits.
fn shaped() -> Vec<Form> {
    use Ends::{Any, StopString};
    let asks = Api::Completions;
    vec![
        (
            "stop strings",
            asks,
            StopString,
            true,
            json!({"prompt": "MENENIUS:\n", "max_tokens": 255, "seed": 12, "ignore_eos": true,
            "stop": ["\n\n", "the people"]}),
        ),
        (
            "stop string shown",
            asks,
            StopString,
            true,
            json!({"prompt": "BRUTUS:\nI", "max_tokens": 255, "seed": 13,
            "ignore_eos": true, "stop": [".", "?", "!"], "include_stop_str_in_output": true}),
        ),
        (
            "choices with stop strings",
            asks,
            StopString,
            true,
            json!({"prompt": "BRUTUS:\nI", "max_tokens": 255, "seed": 16, "n": 3,
            "ignore_eos": true, "stop": [".", "\n\n"]}),
        ),
        (
            "stop ids and min_tokens",
            asks,
            Any,
            true,
            json!({"prompt": "SICINIUS:\n", "max_tokens": 80, "seed": 14,
            "stop_token_ids": [11, 14], "min_tokens": 20}),
        ),
        (
            "penalties and biases",
            asks,
            Any,
            true,
            json!({"prompt": "CORIOLANUS:\n", "max_tokens": 60, "seed": 15,
            "repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": -0.4, "logit_bias": {"11": 2, "300": -50}}),
        ),
    ]
}

fn structured() -> Vec<Form> {
    use Ends::{Any, Stop};
    let asks = Api::Completions;
    let person = json!({"x-guidance": {"whitespace_flexible": false}, "type": "object", "properties": {
        "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["brave", "sad"]}, "maxItems": 3}},
        "required": ["name", "age", "tags"], "additionalProperties": false});
    let schema = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": person}});
    let lark = "start: item (\",\" item){3,8}\nitem: /[a-z]{1,3}/ \"=\" /[0-9]{1,2}/";
    vec![
        (
            "json schema",
            asks,
            Stop,
            true,
            json!({"prompt": "A man: ", "max_tokens": 200, "seed": 21, "response_format": schema}),
        ),
        (
            "regex",
            asks,
            Stop,
            true,
            json!({"prompt": "Call ", "max_tokens": 80, "seed": 22, "guided_regex": "(\\d{3}-){4,9}\\d{4}"}),
        ),
        (
            "grammar",
            asks,
            Stop,
            true,
            json!({"prompt": "Set ", "max_tokens": 120, "seed": 23, "guided_grammar": lark, "logprobs": 1}),
        ),
        (
            "choice",
            asks,
            Stop,
            true,
            json!({"prompt": "Pick", "max_tokens": 40, "seed": 24, "n": 3,
            "guided_choice": ["to be or not to be", "that is the question"]}),
        ),
        (
            "json object",
            Api::Chat,
            Any,
            true,
            json!({"messages": [{"role": "user", "content": "An object"}], "max_tokens": 60, "seed": 25,
            "response_format": {"type": "json_object"}}),
        ),
    ]
}

/// A tool whose arguments every model brings to an end.
fn tool(name: &str, values: &[&str]) -> Value {
    let parameters = json!({"type": "object", "properties": {"sky": {"enum": values}}, "required": ["sky"], "additionalProperties": false});
    json!({"type": "function", "function": {"name": name, "parameters": parameters}})
}

fn chats() -> Vec<Form> {
    use Ends::{Any, Length, Stop, StopString, ToolCalls};
    let says = |content: &str| json!([{"role": "system", "content": "You are a poet."}, {"role": "user", "content": content}]);
    let tools = json!([
        tool("get_weather", &["a blue and cloudless sky", "a grey and heavy sky"]),
        tool("set_weather", &["blue", "grey"])
    ]);
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    let chat = Api::Chat;
    vec![
        (
            "chat",
            chat,
            Length,
            true,
            json!({"messages": says("Speak of the sea."), "max_tokens": 48, "temperature": 0, "ignore_eos": true}),
        ),
        (
            "chat with logprobs",
            chat,
            Any,
            true,
            json!({"messages": says("Speak of kings."), "max_completion_tokens": 40, "seed": 31, "n": 2,
            "logprobs": true, "top_logprobs": 2}),
        ),
        (
            "chat with stop strings",
            chat,
            StopString,
            true,
            json!({"messages": says("Speak of war."), "max_tokens": 255, "seed": 32,
            "ignore_eos": true, "stop": ["\n", ","]}),
        ),
        (
            "chat choices with stop strings",
            chat,
            StopString,
            true,
            json!({"messages": says("Speak of war."), "max_tokens": 255, "seed": 36, "n": 2,
            "ignore_eos": true, "stop": ["\n", "."]}),
        ),
        (
            "tool required",
            chat,
            ToolCalls,
            true,
            json!({"messages": says("Weather?"), "max_tokens": 200, "seed": 33, "tools": tools,
            "tool_choice": "required", "parallel_tool_calls": false}),
        ),
        (
            "tool named",
            chat,
            Stop,
            true,
            json!({"messages": says("Weather?"), "max_tokens": 100, "seed": 34, "tools": tools,
            "tool_choice": named}),
        ),
        ("generate", Api::Generate, Any, true, json!({"prompt": "All:\n", "max_new_tokens": 60, "seed": 35})),
    ]
}
