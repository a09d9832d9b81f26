//! One client: it asks, reads its answer as it comes, and holds each piece against what it must be.

use crate::request::Asked;
use hyper::Response;
use hyper::body::Body;
use pinion_frontend::answers::errors::{HttpError, Refusal};
use pinion_frontend::http::app::App;
use pinion_frontend::http::body::AnswerBody;
use pinion_frontend::http::generate;
use pinion_frontend::http::routes::Arrival;
use pinion_frontend::route::Route;
use serde_json::Value;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

/// What became of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All of it came.
    Complete,
    /// An error instead of an answer, or after the beginning of one.
    Failed {
        code: String,
        message: String,
        /// Nothing had come before it.
        at_once: bool,
    },
}

type Answer = dyn Future<Output = Result<Response<AnswerBody>, Refusal>>;

enum State {
    Asking(Pin<Box<Answer>>),
    Reading(Box<AnswerBody>),
    Gone,
}

/// Set when there may be something to read.
struct Bell(AtomicBool);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What has come of one choice.
#[derive(Clone, Debug, Default)]
struct Heard {
    text: String,
    reason: Option<String>,
}

/// A client and its request.
pub(crate) struct Client {
    pub(crate) number: usize,
    pub(crate) asked: Asked,
    pub(crate) frontend: u16,
    /// It reads nothing before this time.
    pub(crate) stalled_until_ns: u64,
    /// It leaves at this time.
    pub(crate) leaves_ns: Option<u64>,
    /// When it came.
    pub(crate) came_ns: u64,
    state: State,
    bell: Arc<Bell>,
    heard: Vec<Heard>,
    bytes: Vec<u8>,
    usage: Option<Value>,
    done: bool,
}

impl Client {
    pub(crate) fn new(number: usize, asked: Asked, frontend: u16, app: &Rc<App>, now_ns: u64) -> Client {
        let arrival = Arrival {
            route: asked.route,
            label: format!("client-{number}"),
            received_ns: now_ns,
            key: None,
            trace: None,
        };
        let body = asked.body.to_string().into_bytes();
        Client {
            number,
            frontend,
            stalled_until_ns: 0,
            leaves_ns: None,
            came_ns: now_ns,
            state: State::Asking(Box::pin(generate::answer(app.clone(), arrival, body.into()))),
            bell: Arc::new(Bell(AtomicBool::new(true))),
            heard: vec![Heard::default(); asked.choices.len()],
            bytes: Vec::new(),
            usage: None,
            done: false,
            asked,
        }
    }

    /// Whether it was woken since it last looked.
    pub(crate) fn is_woken(&self) -> bool {
        self.bell.0.load(Ordering::Relaxed)
    }

    /// Reads what is there. The error says what is wrong with it.
    pub(crate) fn read(&mut self) -> Result<Option<End>, String> {
        self.bell.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(self.bell.clone());
        let mut context = Context::from_waker(&waker);
        loop {
            match &mut self.state {
                State::Asking(answer) => match answer.as_mut().poll(&mut context) {
                    Poll::Pending => return Ok(None),
                    Poll::Ready(Ok(response)) => self.state = State::Reading(Box::new(response.into_body())),
                    Poll::Ready(Err(refusal)) => {
                        let HttpError { status, code, message, .. } = HttpError::from(refusal);
                        let code = code.map_or_else(|| status.to_string(), str::to_owned);
                        return Ok(Some(End::Failed { code, message, at_once: true }));
                    }
                },
                State::Gone => return Err("it reads after it has left".to_owned()),
                State::Reading(body) => match Pin::new(&mut **body).poll_frame(&mut context) {
                    Poll::Pending => return Ok(None),
                    Poll::Ready(None) => return self.ended().map(Some),
                    Poll::Ready(Some(Err(fault))) => {
                        let HttpError { status, code, message, .. } = HttpError::from(fault);
                        let code = code.map_or_else(|| status.to_string(), str::to_owned);
                        return Ok(Some(End::Failed { code, message, at_once: false }));
                    }
                    Poll::Ready(Some(Ok(frame))) => {
                        let data = frame.into_data().map_err(|_| "a frame without data".to_owned())?;
                        self.bytes.extend_from_slice(&data);
                        if let Some(end) = self.hear()? {
                            return Ok(Some(end));
                        }
                    }
                },
            }
        }
    }

    /// It closes its connection.
    pub(crate) fn hang_up(&mut self) {
        self.state = State::Gone;
    }

    /// Understands what has come of a stream.
    fn hear(&mut self) -> Result<Option<End>, String> {
        if !self.asked.stream {
            return Ok(None);
        }
        if self.asked.route == Route::Generate {
            self.heard[0].text = String::from_utf8(self.bytes.clone()).map_err(|e| e.to_string())?;
            return self.check_text(0).map(|()| None);
        }
        while let Some(at) = self.bytes.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = self.bytes.drain(..at + 2).collect();
            let event = String::from_utf8(event).map_err(|error| error.to_string())?;
            let Some(data) = event.trim_end().strip_prefix("data: ") else {
                return Err(format!("not an event: {event:?}"));
            };
            if self.done {
                return Err(format!("an event after the end: {data}"));
            }
            if data == "[DONE]" {
                self.done = true;
                continue;
            }
            let value: Value = serde_json::from_str(data).map_err(|error| format!("{error}: {data}"))?;
            if let Some(error) = value.get("error") {
                let word = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
                return Ok(Some(End::Failed {
                    code: word("code"),
                    message: word("message"),
                    at_once: false,
                }));
            }
            self.hear_chunk(&value)?;
        }
        Ok(None)
    }

    fn hear_chunk(&mut self, value: &Value) -> Result<(), String> {
        if !value["usage"].is_null() {
            if self.usage.replace(value["usage"].clone()).is_some() {
                return Err("the counts came twice".to_owned());
            }
            return Ok(());
        }
        for choice in value["choices"].as_array().into_iter().flatten() {
            let index = choice["index"].as_u64().ok_or("a choice without a number")? as usize;
            let heard =
                self.heard.get_mut(index).ok_or_else(|| format!("choice {index} was not asked for"))?;
            let text = choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default();
            if heard.reason.is_some() {
                return Err(format!("choice {index} goes on after its end: {choice}"));
            }
            heard.text.push_str(text);
            heard.reason = choice["finish_reason"].as_str().map(str::to_owned);
            self.check_text(index)?;
        }
        Ok(())
    }

    /// What has come of a text is how it begins.
    fn check_text(&self, index: usize) -> Result<(), String> {
        let (heard, expected) = (&self.heard[index].text, &self.asked.choices[index].text);
        if expected.starts_with(heard.as_str()) {
            return Ok(());
        }
        Err(format!("choice {index} has the text {heard:?}, which is not the beginning of {expected:?}"))
    }

    /// The body is over: nothing of the answer is missing.
    fn ended(&mut self) -> Result<End, String> {
        if !self.asked.stream {
            let value: Value =
                serde_json::from_slice(&self.bytes).map_err(|error| format!("a whole answer: {error}"))?;
            self.hear_whole(&value)?;
        } else if self.asked.route != Route::Generate && !self.done {
            return Err("the stream ended without [DONE]".to_owned());
        }
        let bare = self.asked.stream && self.asked.route == Route::Generate;
        for (index, (heard, expected)) in self.heard.iter().zip(&self.asked.choices).enumerate() {
            let reason = if bare { Some(expected.reason) } else { heard.reason.as_deref() };
            if heard.text != expected.text || reason != Some(expected.reason) {
                return Err(format!("choice {index} ended as {heard:?} and must be {expected:?}"));
            }
        }
        if self.asked.counts { self.check_usage() } else { Ok(()) }.map(|()| End::Complete)
    }

    fn hear_whole(&mut self, value: &Value) -> Result<(), String> {
        self.usage = Some(value["usage"].clone());
        if self.asked.route == Route::Generate {
            let reason = value["finish_reason"].as_str().map(str::to_owned);
            self.heard[0] = Heard { text: value["text"].as_str().unwrap_or_default().to_owned(), reason };
            return Ok(());
        }
        let choices = value["choices"].as_array().ok_or_else(|| format!("no choices in {value}"))?;
        if choices.len() != self.heard.len() {
            return Err(format!("{} choices came, {} were asked for", choices.len(), self.heard.len()));
        }
        for (heard, choice) in self.heard.iter_mut().zip(choices) {
            let text = choice["text"].as_str().or(choice["message"]["content"].as_str());
            heard.text = text.unwrap_or_default().to_owned();
            heard.reason = choice["finish_reason"].as_str().map(str::to_owned);
        }
        Ok(())
    }

    fn check_usage(&self) -> Result<(), String> {
        let usage = self.usage.as_ref().ok_or("the counts did not come")?;
        let count = |name: &str| usage[name].as_u64().unwrap_or(u64::MAX);
        let tokens: u64 = self.asked.choices.iter().map(|choice| choice.tokens).sum();
        let expected = [self.asked.prompt_tokens, tokens, self.asked.prompt_tokens + tokens];
        if ["prompt_tokens", "completion_tokens", "total_tokens"].map(count) != expected {
            return Err(format!("the counts are {usage} and must be {expected:?}"));
        }
        let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
        if cached > self.asked.prompt_tokens {
            return Err(format!("{cached} cached tokens of {} in the prompt", self.asked.prompt_tokens));
        }
        Ok(())
    }

    /// For the message about a client that waits for ever.
    pub(crate) fn describe(&self) -> String {
        let state = match self.state {
            State::Asking(_) => "asking",
            State::Reading(_) => "reading",
            State::Gone => "gone",
        };
        format!(
            "client {} at frontend {}, {state}, woken {}, has {:?} of {}, expects {:?}",
            self.number,
            self.frontend,
            self.is_woken(),
            self.heard,
            self.asked.body,
            self.asked.choices
        )
    }
}
