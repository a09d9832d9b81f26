//! Bodies to copy, for `/openapi.json` and `/docs`. Tests send each of them through admission.

use crate::route::Route;

/// A request body and what it shows.
pub(super) struct Example {
    /// In the imperative.
    pub(super) title: &'static str,
    /// JSON.
    pub(super) body: &'static str,
}

const fn example(title: &'static str, body: &'static str) -> Example {
    Example { title, body }
}

const COMPLETIONS: &[Example] = &[
    example(
        "Stream a continuation",
        r#"{"prompt": "Once upon a time", "max_tokens": 48, "temperature": 0.7, "stream": true}"#,
    ),
    example(
        "See the logprobs of each token and of the two likeliest ones",
        r#"{"prompt": "To be or not to", "max_tokens": 4, "temperature": 0, "logprobs": 2}"#,
    ),
    example(
        "Get one of three words and where the time went",
        r#"{"prompt": "The sky is", "guided_choice": ["blue", "grey", "red"], "timings": true}"#,
    ),
];

const CHAT: &[Example] = &[
    example(
        "Stream an answer",
        r#"{"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 64, "stream": true}"#,
    ),
    example(
        "Get JSON of a schema",
        r#"{"messages": [{"role": "user", "content": "Name a town."}], "max_tokens": 64,
 "response_format": {"type": "json_schema", "json_schema": {"name": "town", "schema": {
  "type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
  "required": ["name", "people"], "additionalProperties": false}}}}"#,
    ),
    example(
        "Have a function called",
        r#"{"messages": [{"role": "user", "content": "What is the weather in Oslo?"}], "max_tokens": 64,
 "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {
  "type": "object", "properties": {"town": {"type": "string", "maxLength": 20}},
  "required": ["town"], "additionalProperties": false}}}],
 "tool_choice": "required"}"#,
    ),
];

const GENERATE: &[Example] = &[
    example("Continue a prompt", r#"{"prompt": "Once upon a time", "max_new_tokens": 32}"#),
    example("Stream bare text", r#"{"prompt": "Once upon a time", "max_new_tokens": 32, "stream": true}"#),
];

const TOKENIZE: &[Example] = &[
    example("Encode a text", r#"{"prompt": "To be or not to be"}"#),
    example("Encode a chat as the model sees it", r#"{"messages": [{"role": "user", "content": "hi"}]}"#),
];

const DETOKENIZE: &[Example] = &[example("Decode token ids", r#"{"tokens": [40, 41, 42]}"#)];

const TRACE: &[Example] = &[example("Trace one second", r#"{"seconds": 1}"#)];

const MESSAGES: &[Example] = &[example(
    "Stream an answer",
    r#"{"max_tokens": 64, "messages": [{"role": "user", "content": "Who are you?"}], "stream": true}"#,
)];

const COUNT: &[Example] =
    &[example("Count the tokens of a chat", r#"{"messages": [{"role": "user", "content": "hi"}]}"#)];

const RESPONSES: &[Example] = &[
    example("Stream an answer", r#"{"input": "Who are you?", "max_output_tokens": 64, "stream": true}"#),
    example(
        "Have a function called",
        r#"{"input": "What is the weather in Oslo?", "max_output_tokens": 64, "tools": [{"type": "function",
 "name": "get_weather", "parameters": {"type": "object", "properties": {"town": {"type": "string", "maxLength": 20}},
 "required": ["town"], "additionalProperties": false}}], "tool_choice": "required"}"#,
    ),
];

const RENDER: &[Example] =
    &[example("See the ids of a prompt", r#"{"prompt": "Once upon a time", "max_tokens": 4}"#)];

const APPLY: &[Example] = &[example(
    "See what the model sees of a chat",
    r#"{"messages": [{"role": "user", "content": "Who are you?"}]}"#,
)];

const INVOKE: &[Example] = &[
    example(
        "Answer a chat",
        r#"{"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 64}"#,
    ),
    example("Stream a continuation", r#"{"prompt": "Once upon a time", "max_tokens": 48, "stream": true}"#),
];

const EMBED: &[Example] = &[
    example("Get the vector of a text", r#"{"input": "To be or not to be"}"#),
    example(
        "Get those of several as base64",
        r#"{"input": ["To be", "or not"], "encoding_format": "base64"}"#,
    ),
];

const SCORE: &[Example] =
    &[example("Compare a text with others", r#"{"text_1": "To be", "text_2": ["or not", "to be"]}"#)];

const RERANK: &[Example] = &[example(
    "Find the best document",
    r#"{"query": "a town in Norway", "documents": ["Oslo", "Lima", "Bergen"], "top_n": 1}"#,
)];

/// Those of a route; none where it takes no body.
pub(super) fn of(route: Route) -> &'static [Example] {
    match route {
        Route::Completions => COMPLETIONS,
        Route::Chat => CHAT,
        Route::Messages => MESSAGES,
        Route::CountTokens => COUNT,
        Route::Responses => RESPONSES,
        Route::Generate => GENERATE,
        Route::Tokenize => TOKENIZE,
        Route::Detokenize => DETOKENIZE,
        Route::DebugTrace => TRACE,
        Route::ApplyTemplate | Route::RenderChat => APPLY,
        Route::RenderCompletions => RENDER,
        Route::Invocations => INVOKE,
        Route::Embeddings => EMBED,
        Route::Score => SCORE,
        Route::Rerank => RERANK,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::tools::CallReading;
    use crate::admission::{Api, Limits, admit, admit_message, admit_response, ask_response};
    use serde_json::Value;

    #[test]
    fn every_example_is_json_and_admission_takes_what_generates() {
        let limits = Limits {
            model: "tiny".to_owned(),
            vocab_size: 2048,
            max_model_len: 512,
            calls: CallReading::Unknown,
            reasons: false,
            defaults: pinion_config::SamplingDefaults::NONE,
            strict_fields: true,
            pooling: None,
        };
        for route in Route::ALL {
            for Example { title, body } in of(route) {
                assert!(serde_json::from_str::<Value>(body).is_ok_and(|body| body.is_object()), "{title}");
                assert!(!body.contains('\''), "{title}: a shell quotes it");
                let body = body.as_bytes();
                let admit = |api| admit(api, body, &limits, 1);
                let admitted = match route {
                    Route::Completions | Route::RenderCompletions => admit(Api::Completions),
                    Route::Chat | Route::RenderChat => admit(Api::Chat),
                    Route::Generate => admit(Api::Generate),
                    Route::Messages => admit_message(body, &limits, 1),
                    Route::Responses => ask_response(body)
                        .and_then(|asked| admit_response(asked, None, &limits, 1))
                        .map(|(admitted, _)| admitted),
                    _ => continue,
                };
                assert_eq!(admitted.err().map(|fault| fault.message), None, "{title}");
            }
        }
    }
}
