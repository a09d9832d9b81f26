//! Answers of the generation routes, streamed or not, in one shape; and a strict reading of what a stream may
//! look like.

use crate::events::Events;
use crate::http::{Connection, Response};
use pinion_client::Framing;
use serde_json::Value;
use std::io;

/// A generation route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /generate`; its stream is plain text.
    Generate,
}

impl Api {
    /// Its path.
    pub fn path(self) -> &'static str {
        match self {
            Api::Completions => "/v1/completions",
            Api::Chat => "/v1/chat/completions",
            Api::Generate => "/generate",
        }
    }
}

/// Token counts that the service reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Of the prompt.
    pub prompt_tokens: u64,
    /// Of the answer.
    pub completion_tokens: u64,
}

impl Usage {
    fn of(value: &Value) -> Option<Usage> {
        let count = |name: &str| value.get(name).and_then(Value::as_u64);
        let usage =
            Usage { prompt_tokens: count("prompt_tokens")?, completion_tokens: count("completion_tokens")? };
        let total = count("total_tokens");
        assert_eq!(
            total,
            Some(usage.prompt_tokens + usage.completion_tokens),
            "total_tokens is the sum: {value}"
        );
        Some(usage)
    }
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// As it should: a whole body, or `[DONE]` after a finish reason.
    Complete,
    /// By an error response or one error event, with the error's `code` (or its `type` where that is null).
    Error(String),
    /// The connection broke.
    Cut(String),
}

/// One answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status; 0 if the connection broke before.
    pub status: u16,
    /// The generated text.
    pub text: String,
    /// `finish_reason`, if one came.
    pub finish_reason: Option<String>,
    /// Counts, if they came.
    pub usage: Option<Usage>,
    /// Parts in which text arrived.
    pub parts: usize,
    /// How it ended.
    pub end: End,
}

impl Answer {
    fn new(status: u16) -> Answer {
        let end = End::Cut("nothing came".to_owned());
        Answer { status, text: String::new(), finish_reason: None, usage: None, parts: 0, end }
    }

    /// The answer to a request that could not be written.
    pub fn cut(error: &io::Error) -> Answer {
        Answer { end: End::Cut(error.to_string()), ..Answer::new(0) }
    }

    /// Reads the answer to a request that has just been written. A broken connection is an answer; one that
    /// breaks the protocol is a panic.
    pub fn read(api: Api, streamed: bool, mut connection: Connection) -> Answer {
        let head = match connection.head() {
            Ok(head) => head,
            Err(error) => return Answer::cut(&error),
        };
        if streamed && head.status == 200 {
            return match api {
                Api::Completions | Api::Chat => Answer::of_events(api, Events::new(connection, head)),
                Api::Generate => Answer::of_plain_stream(connection, head.framing()),
            };
        }
        let mut framing = head.framing();
        let mut body = Vec::new();
        loop {
            match connection.body_part(&mut framing, &mut body) {
                Ok(true) => {}
                Ok(false) => return Answer::of_response(api, &Response { head, body }),
                Err(error) => return Answer { end: End::Cut(error.to_string()), ..Answer::new(head.status) },
            }
        }
    }

    /// The answer in a whole response.
    pub fn of_response(api: Api, response: &Response) -> Answer {
        let mut answer = Answer::new(response.status());
        let body = response.json();
        if response.status() != 200 {
            answer.end = End::Error(error_code(&body));
            return answer;
        }
        let choice = &body["choices"][0];
        let (text, reason) = match api {
            Api::Completions => (&choice["text"], &choice["finish_reason"]),
            Api::Chat => (&choice["message"]["content"], &choice["finish_reason"]),
            Api::Generate => (&body["text"], &body["finish_reason"]),
        };
        answer.text = text.as_str().unwrap_or_else(|| panic!("no text in {body}")).to_owned();
        answer.finish_reason = reason.as_str().map(str::to_owned);
        answer.usage = Usage::of(&body["usage"]);
        answer.parts = 1;
        answer.end = End::Complete;
        answer
    }

    /// The answer in a stream of events, read to its end.
    pub fn of_events(api: Api, mut events: Events) -> Answer {
        let mut answer = Answer::new(events.head().status);
        let kind = events.head().field("content-type").unwrap_or_default().to_owned();
        assert!(kind.starts_with("text/event-stream"), "a stream is of type {kind}");
        loop {
            match events.next_event() {
                Ok(Some(event)) => answer.take(api, &event.data),
                Ok(None) => return answer,
                Err(error) => {
                    assert!(error.kind() != io::ErrorKind::InvalidData, "broken stream: {error}");
                    if answer.is_open() {
                        answer.end = End::Cut(error.to_string());
                    }
                    return answer;
                }
            }
        }
    }

    /// Neither complete nor ended by an error.
    fn is_open(&self) -> bool {
        matches!(self.end, End::Cut(_))
    }

    /// Takes one event of a stream.
    fn take(&mut self, api: Api, data: &str) {
        assert!(self.is_open(), "an event after the terminal one ({:?}): {data}", self.end);
        if data == "[DONE]" {
            assert!(self.finish_reason.is_some(), "[DONE] without a finish reason");
            self.end = End::Complete;
            return;
        }
        let chunk: Value =
            serde_json::from_str(data).unwrap_or_else(|error| panic!("not JSON ({error}): {data}"));
        if chunk.get("error").is_some() {
            self.end = End::Error(error_code(&chunk));
            return;
        }
        if let Some(usage) = chunk.get("usage").and_then(Usage::of) {
            assert!(self.finish_reason.is_some() && self.usage.is_none(), "usage comes once, after the end");
            assert_eq!(chunk["choices"], Value::Array(Vec::new()), "the usage chunk has no choices");
            self.usage = Some(usage);
            return;
        }
        let choice = &chunk["choices"][0];
        let text = match api {
            Api::Chat => choice["delta"].get("content").and_then(Value::as_str).unwrap_or_default(),
            Api::Completions | Api::Generate => {
                choice["text"].as_str().expect("a completion chunk has a text")
            }
        };
        if !text.is_empty() {
            assert!(self.finish_reason.is_none(), "text after the finish reason: {data}");
            self.text.push_str(text);
            self.parts += 1;
        }
        if let Some(reason) = choice["finish_reason"].as_str() {
            assert!(self.finish_reason.is_none(), "two finish reasons: {data}");
            self.finish_reason = Some(reason.to_owned());
        }
    }

    fn of_plain_stream(mut connection: Connection, mut framing: Framing) -> Answer {
        let mut answer = Answer::new(200);
        let mut bytes = Vec::new();
        answer.end = loop {
            let before = bytes.len();
            match connection.body_part(&mut framing, &mut bytes) {
                Ok(true) => answer.parts += usize::from(bytes.len() > before),
                Ok(false) => break End::Complete,
                Err(error) => break End::Cut(error.to_string()),
            }
        };
        answer.text = String::from_utf8(bytes).expect("plain streams are UTF-8");
        answer
    }
}

/// The `code` of an error body, or its `type` where the code is null.
fn error_code(body: &Value) -> String {
    let error = &body["error"];
    assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "an error says something: {body}");
    let kind = error["type"].as_str().unwrap_or_else(|| panic!("an error has a type: {body}"));
    error["code"].as_str().unwrap_or(kind).to_owned()
}
