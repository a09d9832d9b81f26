//! Anthropic's Messages API as a translation of a chat.
//!
//! [`chat`] and [`count`] turn a body into the body of a chat, which passes the same admission as any other;
//! [`renamed`] gives what admission finds wrong there the names of this API. [`MessageWriter`] words the answer,
//! [`error_body`] an error.

mod content;
mod events;
mod request;
mod writer;

pub use request::{chat, count, renamed};
pub use writer::{Head, MessageWriter};

use crate::answer::Failure;
use serde_json::json;

/// Said while a stream is silent.
pub const PING: &[u8] = b"event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// The API's name for a kind of error.
fn error_kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        400..=499 => "invalid_request_error",
        _ => "api_error",
    }
}

/// An error as this API has it. `request_id` is what the response's header says.
pub fn error_body(failure: &Failure<'_>, request_id: Option<&str>) -> Vec<u8> {
    let (param, message) = renamed(failure.param, failure.message);
    let message = match param {
        Some(param) if !message.contains(&param) => format!("{param}: {message}"),
        Some(_) | None => message,
    };
    let mut error = json!({"type": error_kind(failure.status), "message": message});
    if failure.param == Some(request::CONTINUED) {
        // Anthropic's SDKs then send the whole conversation.
        error["details"] = json!({"error_code": "thread_not_found"});
    }
    let mut body = json!({"type": "error", "error": error});
    if let Some(id) = request_id {
        body["request_id"] = id.into();
    }
    body.to_string().into_bytes()
}
