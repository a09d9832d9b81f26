//! One answer as a response: streamed item by item, or whole.

use super::events::{Numbered, Place};
use super::request::renamed;
use super::store::{Kept, Store};
use crate::answer::{Ending, Failure, Said, Usage};
use bytes::{BufMut, BytesMut};
use serde_json::{Map, Value, json};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// What an answer is known by.
#[derive(Clone, Debug)]
pub struct Head {
    /// Letters that no other answer has; ids are made of them.
    pub letters: String,
    /// Unix seconds.
    pub created_s: u64,
    /// The served model's name.
    pub model: String,
    /// Which of the service's keys asked.
    pub key: Option<usize>,
    /// What the answer repeats of its request.
    pub echo: Map<String, Value>,
    /// Leave piece by piece.
    pub streams: bool,
    /// Where the answer is kept, with the items that led to it as a JSON array.
    pub keep: Option<(Rc<RefCell<Store>>, Arc<str>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, name: String },
}

/// One thing that the model said or did.
#[derive(Debug)]
struct Item {
    kind: Kind,
    id: String,
    /// Reasoning, text, or arguments.
    text: String,
    status: &'static str,
}

impl Item {
    fn body(&self) -> Value {
        let Item { kind, id, text, status } = self;
        match kind {
            Kind::Reasoning => json!({"id": id, "type": "reasoning", "summary": [],
                "content": [reasoning_part(text)], "status": status}),
            Kind::Message => json!({"id": id, "type": "message", "status": status, "role": "assistant",
                "content": [text_part(text)]}),
            Kind::Call { call_id, name } => json!({"id": id, "type": "function_call", "status": status,
                "call_id": call_id, "name": name, "arguments": text}),
        }
    }

    /// As it begins, before it says anything.
    fn first_body(&self) -> Value {
        let mut body = self.body();
        if !matches!(self.kind, Kind::Call { .. }) {
            body["content"] = json!([]);
        }
        body
    }

    /// Its only part, as it is now.
    fn part(&self) -> Option<Value> {
        match self.kind {
            Kind::Reasoning => Some(reasoning_part(&self.text)),
            Kind::Message => Some(text_part(&self.text)),
            Kind::Call { .. } => None,
        }
    }
}

fn reasoning_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

/// Words one answer.
#[derive(Debug)]
pub struct ResponseWriter {
    head: Head,
    numbered: Numbered,
    has_begun: bool,
    items: Vec<Item>,
    /// The last item is not complete.
    is_open: bool,
    ending: Ending,
}

impl ResponseWriter {
    /// Before the first piece.
    pub fn new(head: Head) -> ResponseWriter {
        let numbered = Numbered::default();
        ResponseWriter {
            head,
            numbered,
            has_begun: false,
            items: Vec::new(),
            is_open: false,
            ending: Ending::Stop,
        }
    }

    pub(crate) fn streams(&self) -> bool {
        self.head.streams
    }

    pub(crate) fn say(&mut self, said: Said<'_>, out: &mut BytesMut) {
        let (kind, text) = match said {
            Said::Reasoning("") | Said::Text("") | Said::Arguments("") => return,
            Said::Reasoning(text) => (Some(Kind::Reasoning), text),
            Said::Text(text) => (Some(Kind::Message), text),
            Said::Call { id, name } => {
                let kind = Kind::Call { call_id: id.to_owned(), name: name.to_owned() };
                return self.begin_item(kind, out);
            }
            Said::Arguments(text) => (None, text),
        };
        let open = self.items.last().filter(|_| self.is_open);
        if let Some(kind) = kind.filter(|kind| open.is_none_or(|item| item.kind != *kind)) {
            self.begin_item(kind, out);
        }
        let output_index = self.items.len().saturating_sub(1);
        let Some(item) = self.items.last_mut() else { return };
        item.text.push_str(text);
        if self.head.streams {
            let (name, content): (_, &[u8]) = match item.kind {
                Kind::Reasoning => ("response.reasoning_text.delta", b",\"content_index\":0"),
                Kind::Message => ("response.output_text.delta", b",\"content_index\":0,\"logprobs\":[]"),
                Kind::Call { .. } => ("response.function_call_arguments.delta", b""),
            };
            let place = Place { item_id: &item.id, output_index };
            self.numbered.put_delta(name, content, place, text, out);
        }
    }

    fn begin(&mut self, out: &mut BytesMut) {
        if self.has_begun || !self.head.streams {
            return;
        }
        self.has_begun = true;
        let response = self.response("in_progress", None, None).to_string();
        for kind in ["response.created", "response.in_progress"] {
            self.numbered.put_response(kind, &response, out);
        }
    }

    fn begin_item(&mut self, kind: Kind, out: &mut BytesMut) {
        self.begin(out);
        self.end_item("completed", out);
        let prefix = match kind {
            Kind::Reasoning => "rs",
            Kind::Message => "msg",
            Kind::Call { .. } => "fc",
        };
        let output_index = self.items.len();
        let id = format!("{prefix}_{}{output_index:02x}", self.head.letters);
        let item = Item { kind, id, text: String::new(), status: "in_progress" };
        if self.head.streams {
            let body = json!({"output_index": output_index, "item": item.first_body()});
            self.numbered.put("response.output_item.added", body, out);
            if let Some(part) = item.part() {
                let body = json!({"item_id": item.id, "output_index": output_index, "content_index": 0, "part": part});
                self.numbered.put("response.content_part.added", body, out);
            }
        }
        self.items.push(item);
        self.is_open = true;
    }

    fn end_item(&mut self, status: &'static str, out: &mut BytesMut) {
        let output_index = self.items.len().saturating_sub(1);
        let Some(item) = self.items.last_mut().filter(|_| self.is_open) else { return };
        self.is_open = false;
        item.status = status;
        if !self.head.streams {
            return;
        }
        let (id, text) = (&item.id, &item.text);
        let (name, body) = match &item.kind {
            Kind::Reasoning => (
                "response.reasoning_text.done",
                json!({"item_id": id, "output_index": output_index, "content_index": 0, "text": text}),
            ),
            Kind::Message => (
                "response.output_text.done",
                json!({"item_id": id, "output_index": output_index, "content_index": 0, "text": text, "logprobs": []}),
            ),
            Kind::Call { name, .. } => (
                "response.function_call_arguments.done",
                json!({"item_id": id, "output_index": output_index, "name": name, "arguments": text}),
            ),
        };
        self.numbered.put(name, body, out);
        if let Some(part) = item.part() {
            let body = json!({"item_id": id, "output_index": output_index, "content_index": 0, "part": part});
            self.numbered.put("response.content_part.done", body, out);
        }
        let body = json!({"output_index": output_index, "item": item.body()});
        self.numbered.put("response.output_item.done", body, out);
    }

    pub(crate) fn finish(&mut self, ending: Ending, out: &mut BytesMut) {
        self.begin(out);
        self.ending = ending;
        self.end_item(if ending == Ending::Length { "incomplete" } else { "completed" }, out);
    }

    pub(crate) fn end(&mut self, usage: Usage, out: &mut BytesMut) {
        let status = if self.ending == Ending::Length { "incomplete" } else { "completed" };
        let response = self.response(status, Some(usage), None);
        let text = response.to_string();
        if self.head.streams {
            self.numbered.put_response(&format!("response.{status}"), &text, out);
        } else {
            out.put_slice(text.as_bytes());
        }
        self.keep(&response["output"], text);
    }

    fn keep(&mut self, output: &Value, response: String) {
        let Some((store, input)) = self.head.keep.take() else { return };
        let (output, created_s, key) = (output.to_string(), self.head.created_s, self.head.key);
        let kept = Kept { response: response.into(), input, output, created_s, key };
        store.borrow_mut().put(self.id(), kept);
    }

    pub(crate) fn fail(&mut self, failure: &Failure<'_>, out: &mut BytesMut) {
        if !self.head.streams {
            return;
        }
        self.begin(out);
        if let Some(item) = self.items.last_mut().filter(|_| self.is_open) {
            item.status = "incomplete";
        }
        let code = match failure.status {
            429 => "rate_limit_exceeded",
            400..=499 => "invalid_prompt",
            _ => "server_error",
        };
        let (_, message) = renamed(failure.param, failure.message);
        let response = self.response("failed", None, Some(json!({"code": code, "message": message})));
        self.numbered.put_response("response.failed", &response.to_string(), out);
    }

    fn id(&self) -> String {
        format!("resp_{}", self.head.letters)
    }

    fn response(&self, status: &str, usage: Option<Usage>, error: Option<Value>) -> Value {
        let head = &self.head;
        let details = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        let mut response = json!({
            "id": self.id(),
            "object": "response",
            "created_at": head.created_s,
            "status": status,
            "background": false,
            "error": error,
            "incomplete_details": details,
            "model": head.model,
            "output": self.items.iter().map(Item::body).collect::<Vec<_>>(),
            "truncation": "disabled",
            "top_logprobs": 0,
            "usage": usage.map(usage_body),
        });
        if let Some(members) = response.as_object_mut() {
            members.extend(head.echo.clone());
        }
        response
    }
}

fn usage_body(usage: Usage) -> Value {
    let Usage { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens } = usage;
    json!({
        "input_tokens": prompt_tokens,
        "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
        "output_tokens": completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens.unwrap_or(0)},
        "total_tokens": u64::from(prompt_tokens) + u64::from(completion_tokens),
    })
}
