//! Answers of every generation route with all that may be compared: texts, calls, tokens, logprobs, counts.

use super::kinds::Kind;
use pinion_testkit::{Api, Connection, End, Events, Head, PATIENCE, Response, Server};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};

/// One answer, whole or put together from its stream.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) end: End,
    pub(crate) choices: BTreeMap<u64, Choice>,
    /// Tokens of the prompt and of the answer. How many were cached is not compared: it depends on what ran before.
    pub(crate) usage: Option<(u64, u64)>,
}

/// One of its choices.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) text: String,
    /// Name and arguments of each tool call.
    pub(crate) calls: Vec<(String, String)>,
    pub(crate) finish_reason: Option<String>,
    /// Tokens of the answer as the logprobs show them, each with its offset where the route gives one.
    pub(crate) tokens: Vec<String>,
    /// Logprob of each token, then those of its alternatives, the greatest first.
    pub(crate) logprobs: Vec<Option<f64>>,
    /// Ids that the prompt's logprobs name: each token's own, then its alternatives'.
    pub(crate) prompt_ids: Vec<String>,
    pub(crate) prompt_logprobs: Vec<Option<f64>>,
}

/// Sends a request on a connection of its own and reads its answer to the end.
///
/// # Panics
/// If the service breaks the protocol, or gives no end within [`PATIENCE`].
pub(crate) fn ask(server: &Server, kind: &Kind) -> Reply {
    receive(kind, send(server, kind))
}

/// Sends a request.
pub(crate) fn send(server: &Server, kind: &Kind) -> io::Result<Connection> {
    let mut connection = server.connect();
    connection.request("POST", kind.api.path(), &[], kind.body.to_string().as_bytes())?;
    Ok(connection)
}

/// Reads the answer to a request that was sent.
///
/// # Panics
/// As [`ask`].
pub(crate) fn receive(kind: &Kind, sent: io::Result<Connection>) -> Reply {
    let mut reply = Reply { end: End::Cut("nothing came".to_owned()), choices: BTreeMap::new(), usage: None };
    if let Err(error) = sent.and_then(|connection| reply.read(kind, connection)) {
        let broken = matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::TimedOut);
        assert!(!broken, "{}: {error} (limit {PATIENCE:?})", kind.name);
        if matches!(reply.end, End::Cut(_)) {
            reply.end = End::Cut(error.to_string());
        }
    }
    reply
}

impl Reply {
    fn read(&mut self, kind: &Kind, mut connection: Connection) -> io::Result<()> {
        let head = connection.head()?;
        match kind.is_streamed() && head.status == 200 {
            true if kind.is_bare_stream() => self.read_plain_stream(connection, &head),
            true => self.read_events(Events::new(connection, head)),
            false => self.read_whole(kind.api, connection, head),
        }
    }

    fn read_whole(&mut self, api: Api, mut connection: Connection, head: Head) -> io::Result<()> {
        let mut framing = head.framing();
        let mut body = Vec::new();
        while connection.body_part(&mut framing, &mut body)? {}
        let body = Response { head, body }.json();
        if body.get("error").is_some() {
            self.end = End::Error(error_code(&body));
            return Ok(());
        }
        self.usage = usage(&body["usage"]);
        if api == Api::Generate {
            self.choice(0).take(&body);
        } else {
            for choice in body["choices"].as_array().expect("an answer has choices") {
                let index = choice["index"].as_u64().expect("a choice has an index");
                self.choice(index).take(choice);
            }
        }
        self.end = End::Complete;
        Ok(())
    }

    fn read_events(&mut self, mut events: Events) -> io::Result<()> {
        while let Some(event) = events.next_event()? {
            assert!(matches!(self.end, End::Cut(_)), "an event after the last: {}", event.data);
            if event.data == "[DONE]" {
                let finished = self.choices.values().all(|choice| choice.finish_reason.is_some());
                assert!(finished && !self.choices.is_empty(), "[DONE] before each choice's end: {self:?}");
                self.end = End::Complete;
                continue;
            }
            let chunk: Value = serde_json::from_str(&event.data).expect("events carry JSON");
            if chunk.get("error").is_some() {
                self.end = End::Error(error_code(&chunk));
                continue;
            }
            for choice in chunk["choices"].as_array().expect("a chunk has choices") {
                let index = choice["index"].as_u64().expect("a choice has an index");
                self.choice(index).take(choice);
            }
            if let Some(counts) = usage(&chunk["usage"]) {
                assert_eq!(self.usage.replace(counts), None, "counts come once");
            }
        }
        Ok(())
    }

    fn read_plain_stream(&mut self, mut connection: Connection, head: &Head) -> io::Result<()> {
        let (mut framing, mut bytes) = (head.framing(), Vec::new());
        let read = loop {
            match connection.body_part(&mut framing, &mut bytes) {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        self.choice(0).text = String::from_utf8(bytes).expect("plain streams are UTF-8");
        read.map(|()| self.end = End::Complete)
    }

    fn choice(&mut self, index: u64) -> &mut Choice {
        self.choices.entry(index).or_default()
    }
}

impl Choice {
    /// Takes a whole choice, or the next piece of one.
    fn take(&mut self, piece: &Value) {
        let said = piece.get("message").or(piece.get("delta")).unwrap_or(piece);
        let text = said.get("content").or(said.get("text")).and_then(Value::as_str).unwrap_or_default();
        let calls = said["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
        if !text.is_empty() || !calls.is_empty() {
            assert!(self.finish_reason.is_none(), "text after the finish reason: {piece}");
        }
        self.text.push_str(text);
        calls.iter().for_each(|call| self.take_call(call));
        self.take_logprobs(&piece["logprobs"]);
        for entry in piece["prompt_logprobs"].as_array().into_iter().flatten() {
            for (id, score) in entry.as_object().into_iter().flatten() {
                self.prompt_ids.push(id.clone());
                self.prompt_logprobs.push(score["logprob"].as_f64());
            }
        }
        if let Some(reason) = piece["finish_reason"].as_str() {
            let before = self.finish_reason.replace(reason.to_owned());
            assert_eq!(before, None, "a finish reason comes once: {piece}");
        }
    }

    fn take_call(&mut self, call: &Value) {
        if let Some(id) = call["id"].as_str() {
            assert!(id.starts_with("call_"), "{call}");
            let name = call["function"]["name"].as_str().expect("a call has a name");
            self.calls.push((name.to_owned(), String::new()));
        }
        let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
        self.calls.last_mut().expect("a call begins with its id").1.push_str(arguments);
    }

    fn take_logprobs(&mut self, logprobs: &Value) {
        let list = |name: &str| logprobs[name].as_array().map_or(&[][..], Vec::as_slice);
        for (at, token) in list("tokens").iter().enumerate() {
            self.tokens.push(format!("{token} at {}", list("text_offset")[at]));
            self.logprobs.push(list("token_logprobs")[at].as_f64());
            let others = logprobs["top_logprobs"][at].as_object();
            self.take_alternatives(others.into_iter().flat_map(|others| others.values()));
        }
        for entry in list("content") {
            self.tokens.push(format!("{} of {}", entry["token"], entry["bytes"]));
            self.logprobs.push(entry["logprob"].as_f64());
            let others = entry["top_logprobs"].as_array().into_iter().flatten();
            self.take_alternatives(others.map(|other| &other["logprob"]));
        }
    }

    /// In an order that does not depend on the last bits: equals may change places.
    fn take_alternatives<'a>(&mut self, others: impl Iterator<Item = &'a Value>) {
        let mut values: Vec<f64> = others.filter_map(Value::as_f64).collect();
        values.sort_by(|a, b| b.total_cmp(a));
        self.logprobs.extend(values.into_iter().map(Some));
    }
}

/// Tokens of the prompt and of the answer; their sum must be right.
fn usage(value: &Value) -> Option<(u64, u64)> {
    let count = |name: &str| value.get(name).and_then(Value::as_u64);
    let (prompt, answer) = (count("prompt_tokens")?, count("completion_tokens")?);
    assert_eq!(count("total_tokens"), Some(prompt + answer), "{value}");
    Some((prompt, answer))
}

fn error_code(body: &Value) -> String {
    let error = &body["error"];
    let name = error["code"].as_str().or(error["type"].as_str());
    name.unwrap_or_else(|| panic!("an error has a type: {body}")).to_owned()
}
