//! One answer as a message: streamed block by block, or whole.

use super::error_body;
use super::events::{Kind, put, put_delta, put_stop, usage_body};
use crate::answer::{Ending, Failure, Said, Usage, arguments_object};
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};

/// What an answer is known by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// `msg_<hex>`.
    pub id: String,
    /// The served model's name.
    pub model: String,
    /// The request's stop sequences.
    pub stop_sequences: Vec<String>,
    /// Leave piece by piece.
    pub streams: bool,
}

/// A block of a whole answer.
#[derive(Debug)]
struct Block {
    kind: Kind,
    /// Reasoning, text, or arguments.
    text: String,
    /// Id and name of a call.
    call: Option<(String, String)>,
}

/// Words one answer.
#[derive(Debug)]
pub struct MessageWriter {
    head: Head,
    /// The counts of the prompt that the stream begins with.
    prompt: (u32, u32),
    has_begun: bool,
    /// The block that is open.
    open: Option<Kind>,
    /// Blocks that were begun.
    count: usize,
    has_calls: bool,
    /// All blocks; empty in a stream, which has said them.
    blocks: Vec<Block>,
    /// Why the text ended, and the stop sequence that ended it.
    stop: (&'static str, Option<String>),
}

impl MessageWriter {
    /// Before the first piece.
    pub fn new(head: Head) -> MessageWriter {
        MessageWriter {
            head,
            prompt: (0, 0),
            has_begun: false,
            open: None,
            count: 0,
            has_calls: false,
            blocks: Vec::new(),
            stop: ("end_turn", None),
        }
    }

    pub(crate) fn streams(&self) -> bool {
        self.head.streams
    }

    pub(crate) fn count_prompt(&mut self, prompt_tokens: u32, cached_tokens: u32) {
        if !self.has_begun {
            self.prompt = (prompt_tokens, cached_tokens);
        }
    }

    pub(crate) fn say(&mut self, said: Said<'_>, out: &mut BytesMut) {
        let (kind, text) = match said {
            Said::Reasoning("") | Said::Text("") | Said::Arguments("") => return,
            Said::Reasoning(text) => (Kind::Thinking, text),
            Said::Text(text) => (Kind::Text, text),
            Said::Call { id, name } => return self.begin_block(Kind::Call, Some((id, name)), out),
            Said::Arguments(text) => (Kind::Call, text),
        };
        if self.open != Some(kind) {
            self.begin_block(kind, None, out);
        }
        if self.head.streams {
            put_delta(kind, self.count.saturating_sub(1), text, out);
        } else if let Some(block) = self.blocks.last_mut() {
            block.text.push_str(text);
        }
    }

    fn begin(&mut self, out: &mut BytesMut) {
        if self.has_begun || !self.head.streams {
            return;
        }
        self.has_begun = true;
        let (prompt_tokens, cached_tokens) = self.prompt;
        let usage = Usage { prompt_tokens, cached_tokens, completion_tokens: 0, reasoning_tokens: None };
        let message = self.message(Vec::new(), None, None, usage);
        put("message_start", &json!({"type": "message_start", "message": message}), out);
        out.put_slice(super::PING);
    }

    fn begin_block(&mut self, kind: Kind, call: Option<(&str, &str)>, out: &mut BytesMut) {
        self.begin(out);
        self.end_block(out);
        let index = self.count;
        self.count += 1;
        self.open = Some(kind);
        self.has_calls |= kind == Kind::Call;
        if !self.head.streams {
            let call = call.map(|(id, name)| (id.to_owned(), name.to_owned()));
            self.blocks.push(Block { kind, text: String::new(), call });
            return;
        }
        let block = match (kind, call) {
            (Kind::Thinking, _) => json!({"type": "thinking", "thinking": "", "signature": ""}),
            (Kind::Text, _) => json!({"type": "text", "text": ""}),
            (Kind::Call, call) => {
                let (id, name) = call.unwrap_or_default();
                json!({"type": "tool_use", "id": id, "name": name, "input": {}})
            }
        };
        let event = json!({"type": "content_block_start", "index": index, "content_block": block});
        put("content_block_start", &event, out);
    }

    fn end_block(&mut self, out: &mut BytesMut) {
        if let Some(kind) = self.open.take().filter(|_| self.head.streams) {
            put_stop(kind, self.count.saturating_sub(1), &self.head.id, out);
        }
    }

    pub(crate) fn finish(&mut self, ending: Ending, stop: Option<usize>, out: &mut BytesMut) {
        self.begin(out);
        self.end_block(out);
        let sequence = stop.and_then(|place| self.head.stop_sequences.get(place));
        self.stop = match (ending, sequence) {
            (Ending::Length, _) => ("max_tokens", None),
            (Ending::Stop | Ending::ToolCalls, Some(sequence)) => ("stop_sequence", Some(sequence.clone())),
            (Ending::Stop | Ending::ToolCalls, None) if self.has_calls => ("tool_use", None),
            (Ending::Stop | Ending::ToolCalls, None) => ("end_turn", None),
        };
    }

    pub(crate) fn end(&mut self, usage: Usage, out: &mut BytesMut) {
        let (reason, sequence) = (self.stop.0, self.stop.1.take());
        if self.head.streams {
            let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
            let event = json!({"type": "message_delta", "delta": delta, "usage": usage_body(usage)});
            put("message_delta", &event, out);
            return put("message_stop", &json!({"type": "message_stop"}), out);
        }
        let blocks = std::mem::take(&mut self.blocks);
        let content = blocks.into_iter().map(|block| self.block_body(block)).collect();
        let message = self.message(content, Some(reason), sequence, usage);
        out.put_slice(message.to_string().as_bytes());
    }

    pub(crate) fn fail(&mut self, failure: &Failure<'_>, out: &mut BytesMut) {
        if self.head.streams {
            out.put_slice(b"event: error\ndata: ");
            out.put_slice(&error_body(failure, None));
            out.put_slice(b"\n\n");
        }
    }

    fn block_body(&self, block: Block) -> Value {
        let Block { kind, text, call } = block;
        match kind {
            Kind::Thinking => json!({"type": "thinking", "thinking": text, "signature": self.head.id}),
            Kind::Text => json!({"type": "text", "text": text}),
            Kind::Call => {
                let (id, name) = call.unwrap_or_default();
                json!({"type": "tool_use", "id": id, "name": name, "input": arguments_object(&text)})
            }
        }
    }

    fn message(
        &self,
        content: Vec<Value>,
        reason: Option<&str>,
        sequence: Option<String>,
        usage: Usage,
    ) -> Value {
        json!({
            "id": self.head.id,
            "type": "message",
            "role": "assistant",
            "model": self.head.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage_body(usage),
        })
    }
}
