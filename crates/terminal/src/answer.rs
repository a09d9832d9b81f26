//! One answer, from the request to its last token: a thread reads the stream, this one shows it, and an interrupt cuts
//! it.

use crate::ask::{self, Question};
use crate::interrupt::Interrupts;
use pinion_client::Events;
use pinion_config::ServerUrl;
use serde_json::Value;
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// A server may compute a long prompt, or be busy with others, for this long without a word.
const PATIENCE: Duration = Duration::from_secs(600);

/// What happens while an answer is under way.
pub(crate) enum Event {
    /// Ctrl-C.
    Interrupt,
    /// The connection, to be cut by an interrupt.
    Connected(TcpStream),
    /// A piece of the stream.
    Delta(Delta),
    /// The server took the request and the stream is over.
    Done,
    /// The server refused.
    Refused {
        /// Its status.
        status: u16,
        /// Its reason.
        message: String,
    },
    /// The connection or the stream failed.
    Broken(String),
}

/// A piece of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delta {
    pub(crate) reasoning: String,
    pub(crate) text: String,
    /// Tokens of the whole answer, once the server tells.
    pub(crate) tokens: Option<u64>,
    /// Why it ended.
    pub(crate) finish: Option<String>,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Whole,
    Stopped,
}

/// An answer, as far as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) text: String,
    pub(crate) outcome: Outcome,
    pub(crate) finish: Option<String>,
    pub(crate) timing: Timing,
}

/// Why there is none.
#[derive(Debug)]
pub(crate) enum Failure {
    Refused { status: u16, message: String },
    Broken(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused { status, message } => write!(f, "the server answers {status}: {message}"),
            Failure::Broken(reason) => f.write_str(reason),
        }
    }
}

/// When its tokens came.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Timing {
    pub(crate) first_token: Option<Duration>,
    pub(crate) last_token: Option<Duration>,
    /// As the server counts them, else the pieces of the stream.
    pub(crate) tokens: u64,
}

impl Timing {
    /// Tokens per second after the first one.
    pub(crate) fn rate(&self) -> Option<f64> {
        let spent = self.last_token?.checked_sub(self.first_token?)?.as_secs_f64();
        (self.tokens > 1 && spent > 0.0).then(|| (self.tokens - 1) as f64 / spent)
    }
}

/// Asks, gives each piece to `show`, and waits for the end or an interrupt.
pub(crate) fn ask(
    url: &ServerUrl,
    path: &'static str,
    key: Option<&str>,
    body: &Value,
    interrupts: &Interrupts,
    mut show: impl FnMut(&Delta),
) -> Result<Answer, Failure> {
    let (sender, events) = channel();
    let _heard = interrupts.to(sender.clone());
    let (url, key, body) = (url.clone(), key.map(str::to_owned), body.to_string());
    let begin = Instant::now();
    std::thread::spawn(move || read_stream(&url, path, key.as_deref(), &body, &sender));
    let mut answer =
        Answer { text: String::new(), outcome: Outcome::Whole, finish: None, timing: Timing::default() };
    let (mut connection, mut pieces, mut counted) = (None, 0, None);
    loop {
        let event = events.recv().unwrap_or(Event::Done);
        match event {
            Event::Connected(stream) => connection = Some(stream),
            Event::Delta(delta) => {
                if !delta.text.is_empty() || !delta.reasoning.is_empty() {
                    pieces += 1;
                    let at = begin.elapsed();
                    answer.timing.first_token.get_or_insert(at);
                    answer.timing.last_token = Some(at);
                }
                show(&delta);
                answer.text.push_str(&delta.text);
                counted = delta.tokens.or(counted);
                answer.finish = delta.finish.or(answer.finish);
            }
            Event::Interrupt => {
                // The server sees that the client has left, and frees the request.
                drop(connection.map(|stream: TcpStream| stream.shutdown(Shutdown::Both)));
                answer.outcome = Outcome::Stopped;
                break;
            }
            Event::Done => break,
            Event::Refused { status, message } => return Err(Failure::Refused { status, message }),
            Event::Broken(reason) => return Err(Failure::Broken(reason)),
        }
    }
    answer.timing.tokens = counted.unwrap_or(pieces);
    Ok(answer)
}

/// Runs in a thread; ends early when its events are no longer wanted.
fn read_stream(url: &ServerUrl, path: &str, key: Option<&str>, body: &str, events: &Sender<Event>) {
    let end = match stream_events(url, path, key, body, events) {
        Ok(end) => end,
        Err(error) => Event::Broken(format!("{url}: {error}")),
    };
    // After an interrupt there is no receiver.
    let _ = events.send(end);
}

fn stream_events(
    url: &ServerUrl,
    path: &str,
    key: Option<&str>,
    body: &str,
    events: &Sender<Event>,
) -> std::io::Result<Event> {
    let connection = ask::connect(url)?;
    let _ = events.send(Event::Connected(connection.stream().try_clone()?));
    let question = Question { url, path, key, body: Some(body), patience: PATIENCE };
    let answer = ask::ask(connection, &question)?;
    let status = answer.head.status;
    if status != 200 {
        return Ok(Event::Refused { status, message: message_of(&ask::text(answer)?) });
    }
    let mut stream = Events::new(answer.body);
    while let Some(event) = stream.next_event()? {
        let data = String::from_utf8_lossy(&event.data);
        // Some servers name events that say nothing else.
        if data.is_empty() {
            continue;
        }
        if data == "[DONE]" {
            return Ok(Event::Done);
        }
        match piece(&data) {
            Ok(delta) => {
                if events.send(Event::Delta(delta)).is_err() {
                    break;
                }
            }
            Err(reason) => return Ok(Event::Broken(reason)),
        }
    }
    Ok(Event::Done)
}

/// What an error's body says, in the forms that servers have.
pub(crate) fn message_of(body: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(body).ok();
    let message = parsed.as_ref().and_then(|value| {
        let of_error = value["error"]["message"].as_str();
        of_error.or(value["error"].as_str()).or(value["message"].as_str()).or(value["detail"].as_str())
    });
    message.unwrap_or(body.trim()).to_owned()
}

/// Reads a chunk of a chat or of a completion.
fn piece(data: &str) -> Result<Delta, String> {
    let value: Value =
        serde_json::from_str(data).map_err(|error| format!("the stream is not understood: {error}"))?;
    if !value["error"].is_null() {
        return Err(format!("the answer ends with an error: {}", message_of(data)));
    }
    let choice = &value["choices"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let delta = &choice["delta"];
    let reasoning = if delta["reasoning_content"].is_string() {
        &delta["reasoning_content"]
    } else {
        &delta["reasoning"]
    };
    Ok(Delta {
        reasoning: text(reasoning),
        text: if delta.is_null() { text(&choice["text"]) } else { text(&delta["content"]) },
        tokens: value["usage"]["completion_tokens"].as_u64(),
        finish: choice["finish_reason"].as_str().map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_chats_and_completions_are_read() {
        let delta = |text: &str, reasoning: &str| Delta {
            text: text.to_owned(),
            reasoning: reasoning.to_owned(),
            ..Delta::default()
        };
        for (data, expected) in [
            (r#"{"choices":[{"delta":{"content":"a"},"finish_reason":null}]}"#, delta("a", "")),
            (r#"{"choices":[{"delta":{"reasoning_content":"r"}}]}"#, delta("", "r")),
            (r#"{"choices":[{"delta":{"reasoning":"r","content":null}}]}"#, delta("", "r")),
            (r#"{"choices":[{"text":"c"}]}"#, delta("c", "")),
            (
                r#"{"choices":[{"delta":{},"finish_reason":"length"}]}"#,
                Delta { finish: Some("length".to_owned()), ..Delta::default() },
            ),
            (
                r#"{"choices":[],"usage":{"completion_tokens":7}}"#,
                Delta { tokens: Some(7), ..Delta::default() },
            ),
        ] {
            assert_eq!(piece(data), Ok(expected), "{data}");
        }
        assert!(piece("{").unwrap_err().contains("not understood"));
        let error = piece(r#"{"error":{"message":"gone"}}"#).unwrap_err();
        assert_eq!(error, "the answer ends with an error: gone");
    }

    #[test]
    fn errors_of_several_servers_are_read() {
        for body in [
            r#"{"error":{"message":"m"}}"#,
            r#"{"error":"m"}"#,
            r#"{"message":"m"}"#,
            r#"{"detail":"m"}"#,
            "m\n",
        ] {
            assert_eq!(message_of(body), "m", "{body}");
        }
    }

    #[test]
    fn the_rate_is_that_of_the_tokens_after_the_first() {
        let seconds = |count| Some(Duration::from_secs(count));
        let timing = Timing { first_token: seconds(1), last_token: seconds(3), tokens: 9 };
        assert_eq!(timing.rate(), Some(4.0));
        assert_eq!(Timing { tokens: 1, ..timing }.rate(), None);
        assert_eq!(Timing { last_token: seconds(1), ..timing }.rate(), None);
        assert_eq!(Timing::default().rate(), None);
    }
}
