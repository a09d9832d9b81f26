//! The events of a stream as bytes. What comes for every token is written by hand, without an allocation.

use crate::answer::Usage;
use crate::escape::{escape, put_number};
use bytes::{BufMut, BytesMut};
use serde_json::{Value, json};

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Thinking,
    Text,
    Call,
}

/// Appends an event whose data is `value`.
pub(super) fn put(name: &str, value: &Value, out: &mut BytesMut) {
    out.put_slice(b"event: ");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\ndata: ");
    out.put_slice(value.to_string().as_bytes());
    out.put_slice(b"\n\n");
}

/// Appends more of the block `index`.
pub(super) fn put_delta(kind: Kind, index: usize, text: &str, out: &mut BytesMut) {
    out.put_slice(b"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":");
    put_number(index as u64, out);
    out.put_slice(match kind {
        Kind::Thinking => b",\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"".as_slice(),
        Kind::Text => b",\"delta\":{\"type\":\"text_delta\",\"text\":\"",
        Kind::Call => b",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"",
    });
    escape(text, out);
    out.put_slice(b"\"}}\n\n");
}

/// Appends the end of the block `index`. Reasoning ends with a signature.
pub(super) fn put_stop(kind: Kind, index: usize, signature: &str, out: &mut BytesMut) {
    if kind == Kind::Thinking {
        let delta = json!({"type": "signature_delta", "signature": signature});
        put(
            "content_block_delta",
            &json!({"type": "content_block_delta", "index": index, "delta": delta}),
            out,
        );
    }
    put("content_block_stop", &json!({"type": "content_block_stop", "index": index}), out);
}

/// Counts as this API has them: the prompt's tokens without those that came from the cache.
pub(super) fn usage_body(usage: Usage) -> Value {
    let mut body = json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    });
    if let Some(thinking) = usage.reasoning_tokens {
        body["output_tokens_details"] = json!({"thinking_tokens": thinking});
    }
    body
}
