//! From the bytes of an answer to what happened when: server-sent events of OpenAI's shape, or one JSON body.
//!
//! A token event is a `data:` chunk that carries text, or one of a completion that carries none while the text goes on
//! (a token whose bytes are a part of a character). How many tokens there were is the server's own count from the
//! usage chunk; only where a server sends none are the events counted.

use crate::http::Reply;
use crate::tail::Timings;
use pinion_client::data_of;
use serde::Deserialize;

/// What one request came to. Times are CLOCK_MONOTONIC nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// Arrival of each token event.
    pub event_ns: Vec<u64>,
    /// Arrival of the end: the last byte.
    pub end_ns: u64,
    pub output_tokens: u32,
    /// Whether `output_tokens` is the server's count.
    pub counted_by_server: bool,
    pub prompt_tokens: Option<u32>,
    pub cached_tokens: Option<u32>,
    pub finish_reason: Option<String>,
    /// Kind of failure; `None` for a complete answer, or one that the client has left.
    pub error: Option<String>,
    /// The client went away in the middle, as it was told to.
    pub left: bool,
    /// From the server's write to the arrival, for chunks that say when they were written (`null-server`'s do).
    pub wire_lag_ns: Vec<u64>,
    /// The server's own timeline, if it was asked for and the server has one.
    pub timings: Option<Timings>,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    error: Option<serde_json::Value>,
    sent_ns: Option<u64>,
    timings: Option<Timings>,
}

#[derive(Deserialize)]
struct Choice {
    text: Option<String>,
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

impl Choice {
    /// Whether this is a token event, and not only a beginning or an end.
    fn is_token(&self) -> bool {
        match (&self.text, &self.delta) {
            (Some(text), _) => !text.is_empty() || self.finish_reason.is_none(),
            (None, Some(Delta { content: Some(text) })) => !text.is_empty(),
            _ => false,
        }
    }
}

/// Reads the answer to a streaming request, or to a plain one if `streaming` is false.
pub(crate) fn read(reply: &Reply, streaming: bool) -> Outcome {
    let mut outcome = Outcome { end_ns: reply.end_ns, ..Outcome::default() };
    if let Some(failure) = reply.failure {
        outcome.error = Some(failure.to_owned());
    } else if reply.status != 200 {
        outcome.error = Some(format!("http {}", reply.status));
        return outcome;
    }
    if streaming {
        let done = read_events(reply, &mut outcome);
        outcome.left = reply.left && !done && outcome.error.is_none();
        if !done && !outcome.left && outcome.error.is_none() {
            outcome.error = Some("stream without [DONE]".to_owned());
        }
    } else if outcome.error.is_none() {
        take_chunk(&reply.body, reply.end_ns, &mut outcome);
    }
    if !outcome.counted_by_server {
        outcome.output_tokens = outcome.event_ns.len() as u32;
    }
    outcome
}

/// Whether the stream said that it is done.
fn read_events(reply: &Reply, outcome: &mut Outcome) -> bool {
    let (mut begin, mut frame) = (0, 0);
    while let Some(length) = reply.body[begin..].iter().position(|&byte| byte == b'\n') {
        let end = begin + length + 1;
        while reply.frames[frame].1 < end {
            frame += 1; // a line is there when its last byte is
        }
        let line = reply.body[begin..end].trim_ascii();
        begin = end;
        let Some(data) = data_of(line) else { continue };
        if data == b"[DONE]" {
            return true;
        }
        take_chunk(data, reply.frames[frame].0, outcome);
    }
    false
}

fn take_chunk(data: &[u8], at_ns: u64, outcome: &mut Outcome) {
    let chunk: Chunk = match serde_json::from_slice(data) {
        Ok(chunk) => chunk,
        Err(_) => {
            outcome.error = Some("malformed chunk".to_owned());
            return;
        }
    };
    if let Some(error) = chunk.error {
        let word = |name: &str| error.get(name).and_then(|value| value.as_str()).map(str::to_owned);
        outcome.error = Some(word("code").or(word("type")).unwrap_or_else(|| "error event".to_owned()));
    }
    outcome.timings = chunk.timings.or(outcome.timings.take());
    for choice in chunk.choices {
        if choice.is_token() {
            outcome.event_ns.push(at_ns);
            outcome.wire_lag_ns.extend(chunk.sent_ns.map(|sent_ns| at_ns.saturating_sub(sent_ns)));
        }
        outcome.finish_reason = choice.finish_reason.or(outcome.finish_reason.take());
    }
    if let Some(usage) = chunk.usage {
        outcome.prompt_tokens = usage.prompt_tokens.or(outcome.prompt_tokens);
        outcome.cached_tokens = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
        if let Some(tokens) = usage.completion_tokens {
            outcome.output_tokens = tokens;
            outcome.counted_by_server = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply whose frames arrive 10 ns apart, from 10 on.
    fn reply(frames: &[&str]) -> Reply {
        let mut reply = Reply { status: 200, ..Reply::default() };
        for (index, frame) in frames.iter().enumerate() {
            reply.body.extend_from_slice(frame.as_bytes());
            reply.frames.push((10 * (index as u64 + 1), reply.body.len()));
        }
        reply.end_ns = 10 * frames.len() as u64 + 5;
        reply
    }

    #[test]
    fn events_get_the_time_of_their_last_byte() {
        let text = |text: &str, finish: &str| {
            format!("data: {{\"choices\":[{{\"text\":\"{text}\",\"finish_reason\":{finish}}}]}}\n\n")
        };
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4,\
                     \"prompt_tokens_details\":{\"cached_tokens\":2}}}\n\n";
        let first = text("a", "null");
        let (head, tail) = first.split_at(20);
        // One event over two frames; two events in one frame; an empty last one; comments between.
        let two = format!("{}{}", text("b", "null"), text("", "null"));
        let end = text("", "\"length\"");
        let found =
            read(&reply(&[": keep-alive\n\n", head, tail, &two, &end, usage, "data: [DONE]\n\n"]), true);
        assert_eq!(found.event_ns, [30, 40, 40]);
        assert_eq!((found.output_tokens, found.counted_by_server), (4, true));
        assert_eq!((found.prompt_tokens, found.cached_tokens), (Some(3), Some(2)));
        assert_eq!((found.finish_reason.as_deref(), found.error), (Some("length"), None));
    }

    #[test]
    fn chat_chunks_count_from_the_first_content() {
        let delta = |delta: &str| format!("data: {{\"choices\":[{{\"delta\":{delta}}}]}}\r\n\r\n");
        let role = delta("{\"role\":\"assistant\",\"content\":\"\"}");
        let content = delta("{\"content\":\"x\"}");
        let found = read(&reply(&[&role, &content, &delta("{}"), "data: [DONE]\n\n"]), true);
        assert_eq!((found.event_ns, found.output_tokens), (vec![20], 1));
        assert!(!found.counted_by_server);
    }

    #[test]
    fn every_failure_has_a_kind() {
        let token = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n";
        let error =
            "data: {\"error\":{\"message\":\"m\",\"type\":\"engine_error\",\"code\":\"role_restarted\"}}\n\n";
        let cases: [(Reply, &str); 5] = [
            (Reply { status: 429, ..reply(&["{}"]) }, "http 429"),
            (reply(&[token]), "stream without [DONE]"),
            (reply(&[token, error]), "role_restarted"),
            (reply(&["data: {\n\ndata: [DONE]\n\n"]), "malformed chunk"),
            (Reply { failure: Some("timeout"), ..reply(&[token]) }, "timeout"),
        ];
        for (reply, kind) in cases {
            assert_eq!(read(&reply, true).error.as_deref(), Some(kind));
        }
        // A client that leaves has not failed; an answer that ended with the last frame taken is complete.
        let left = |frames: &[&str]| read(&Reply { left: true, ..reply(frames) }, true);
        let (cut, whole) = (left(&[token]), left(&[token, "data: [DONE]\n\n"]));
        assert_eq!((cut.left, cut.error, cut.event_ns.len()), (true, None, 1));
        assert_eq!((whole.left, whole.error), (false, None));
    }
}
