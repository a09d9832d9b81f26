//! Server-sent events: `data: <chunk>` and a blank line.
//!
//! The fast writer copies a prefix made once per request, escapes the text and appends a constant; the plain
//! writer serialises the structs of [`crate::answers::openai`]. Both give the same bytes (tests/sse.rs), and
//! `--no-fast-sse` selects the plain one.

use crate::answers::openai::{Additions, Ending, Event, Head, Shape, Usage, chunk_json};
use crate::observe::timeline::Timeline;
use bytes::{BufMut, BytesMut};
pub use pinion_api::escape::escape;
use pinion_api::escape::put_number;

/// A comment: no client takes it for an event.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";
const DATA: &[u8] = b"data: ";
const END: &[u8] = b"\n\n";
const CHOICES: &[u8] = b",\"choices\":[";
const INDEX: &[u8] = b"{\"index\":";
const COMPLETION_TEXT: &[u8] = b",\"text\":\"";
const COMPLETION_TEXT_END: &[u8] = b"\",\"logprobs\":null,\"finish_reason\":";
const CHAT_DELTA: &[u8] = b",\"delta\":{";
const CHAT_CONTENT: &[u8] = b"\"content\":\"";
const CHAT_REASONING: &[u8] = b"\"reasoning_content\":\"";
const CHAT_CALL: &[u8] = b"\"tool_calls\":[{\"index\":";
const CHAT_ARGUMENTS: &[u8] = b",\"function\":{\"arguments\":\"";
const CHAT_DELTA_END: &[u8] = b"},\"logprobs\":null,\"finish_reason\":";

/// Renders the chunks of one choice.
pub struct Writer {
    head: Head,
    index: u32,
    /// The answer has other choices: counts and the end mark are for all of them, and not for this one to write.
    is_part: bool,
    /// Everything up to where the choice's varying part begins; empty selects the plain writer.
    prefix: Vec<u8>,
    /// Length of the part of `prefix` that ends with `"choices":[`.
    choices_at: usize,
}

impl Writer {
    /// For an answer with one choice. Prepares the prefix, unless `fast` is off.
    pub fn new(head: Head, fast: bool) -> Writer {
        Writer::with(head, fast, 0, false)
    }

    /// For choice `index` of an answer with several.
    pub fn part(head: Head, fast: bool, index: u32) -> Writer {
        Writer::with(head, fast, index, true)
    }

    fn with(head: Head, fast: bool, index: u32, is_part: bool) -> Writer {
        let mut writer = Writer { head, index, is_part, prefix: Vec::new(), choices_at: 0 };
        if fast {
            writer.prepare();
        }
        writer
    }

    /// What every chunk repeats.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// Whether the answer has other choices.
    pub fn is_part(&self) -> bool {
        self.is_part
    }

    fn prepare(&mut self) {
        let head = &self.head;
        let mut out = BytesMut::with_capacity(256);
        out.put_slice(DATA);
        out.put_slice(b"{\"id\":\"");
        escape(&head.id, &mut out);
        out.put_slice(b"\",\"object\":\"");
        out.put_slice(match head.shape {
            Shape::Completions => b"text_completion",
            Shape::Chat => b"chat.completion.chunk",
        });
        out.put_slice(b"\",\"created\":");
        put_number(head.created, &mut out);
        out.put_slice(b",\"model\":\"");
        escape(&head.model, &mut out);
        out.put_slice(b"\"");
        out.put_slice(CHOICES);
        self.choices_at = out.len();
        out.put_slice(INDEX);
        put_number(u64::from(self.index), &mut out);
        out.put_slice(match head.shape {
            Shape::Completions => COMPLETION_TEXT,
            Shape::Chat => CHAT_DELTA,
        });
        self.prefix = out.to_vec();
    }

    /// Appends one event. No allocation once `out` is large enough, on the fast path.
    pub fn write(&self, event: &Event<'_>, out: &mut BytesMut) {
        if self.prefix.is_empty() || matches!(event, Event::Timings(_) | Event::Call { .. }) {
            return self.write_with(event, &Additions::default(), out);
        } else if let Event::Usage(usage) = event {
            self.write_usage(*usage, out);
        } else {
            self.write_choice(event, out);
        }
        out.put_slice(END);
    }

    /// Appends one event with what the client asks for beside it, through serde.
    pub fn write_with(&self, event: &Event<'_>, with: &Additions<'_>, out: &mut BytesMut) {
        out.put_slice(DATA);
        out.put_slice(&chunk_json(&self.head, self.index, event, with));
        out.put_slice(END);
    }

    fn write_choice(&self, event: &Event<'_>, out: &mut BytesMut) {
        let (text, ending) = match event {
            Event::Text(text) | Event::Reasoning(text) | Event::Arguments { text, .. } => (*text, None),
            Event::Finish { text, ending } => (*text, Some(*ending)),
            Event::Role | Event::Call { .. } | Event::Usage(_) | Event::Timings(_) => ("", None),
        };
        out.reserve(self.prefix.len() + text.len() + 96);
        out.put_slice(&self.prefix);
        match self.head.shape {
            Shape::Completions => {
                escape(text, out);
                out.put_slice(COMPLETION_TEXT_END);
            }
            Shape::Chat => {
                match event {
                    Event::Role => out.put_slice(b"\"role\":\"assistant\",\"content\":\"\""),
                    Event::Text(text) => {
                        out.put_slice(CHAT_CONTENT);
                        escape(text, out);
                        out.put_slice(b"\"");
                    }
                    Event::Reasoning(text) => {
                        out.put_slice(CHAT_REASONING);
                        escape(text, out);
                        out.put_slice(b"\"");
                    }
                    Event::Arguments { index, text } => {
                        out.put_slice(CHAT_CALL);
                        put_number(u64::from(*index), out);
                        out.put_slice(CHAT_ARGUMENTS);
                        escape(text, out);
                        out.put_slice(b"\"}}]");
                    }
                    Event::Call { .. } | Event::Finish { .. } | Event::Usage(_) | Event::Timings(_) => {}
                }
                out.put_slice(CHAT_DELTA_END);
            }
        }
        out.put_slice(match ending {
            None => b"null",
            Some(Ending::Stop) => b"\"stop\"",
            Some(Ending::Length) => b"\"length\"",
            Some(Ending::ToolCalls) => b"\"tool_calls\"",
        });
        let tail: &[u8] = if self.head.include_usage { b"}],\"usage\":null}" } else { b"}]}" };
        out.put_slice(tail);
    }

    fn write_usage(&self, usage: Usage, out: &mut BytesMut) {
        out.put_slice(self.prefix.get(..self.choices_at).unwrap_or_default());
        out.put_slice(b"],\"usage\":{\"prompt_tokens\":");
        put_number(u64::from(usage.prompt_tokens), out);
        out.put_slice(b",\"completion_tokens\":");
        put_number(u64::from(usage.completion_tokens), out);
        out.put_slice(b",\"total_tokens\":");
        put_number(u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens), out);
        out.put_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
        put_number(u64::from(usage.cached_tokens), out);
        if let Some(reasoning_tokens) = usage.reasoning_tokens {
            out.put_slice(b"},\"completion_tokens_details\":{\"reasoning_tokens\":");
            put_number(u64::from(reasoning_tokens), out);
        }
        out.put_slice(b"}}}");
    }
}

/// Appends an error event. `body` is `{"error": ...}`.
pub fn write_error(body: &[u8], out: &mut BytesMut) {
    out.put_slice(DATA);
    out.put_slice(body);
    out.put_slice(END);
}

/// Appends what follows the last choice of a complete stream: the counts and the timeline, if they are wanted, and the
/// end mark.
pub fn write_end(writer: &Writer, usage: Usage, timeline: Option<&Timeline>, out: &mut BytesMut) {
    if writer.head.include_usage {
        writer.write(&Event::Usage(usage), out);
    }
    if let Some(timeline) = timeline {
        writer.write(&Event::Timings(timeline), out);
    }
    write_done(out);
}

/// Appends the end mark of a complete stream.
pub fn write_done(out: &mut BytesMut) {
    out.put_slice(b"data: [DONE]\n\n");
}
