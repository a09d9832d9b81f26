//! The body of an answer. A stream hands over everything that waits as one piece, so that several ready tokens
//! leave in one write; dropping the body is how we learn that the client is gone.

use crate::answers::openai::Usage;
use crate::answers::sse;
use crate::observe::timeline::Timeline;
use crate::observe::trace::Trace;
use crate::requests::request::Request;
use crate::requests::ticket::Ticket;
use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use pinion_protocol::Fault;
use pinion_protocol::names::Stage;
use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The body of a response.
pub enum AnswerBody {
    /// Known bytes, with the requests that they answer.
    Whole(Bytes, Vec<Ticket>),
    /// Bytes as they come.
    Stream(Stream),
    /// What the processes do.
    Trace(Box<Trace>),
}

/// One request's share of a stream.
struct Voice {
    ticket: Ticket,
    begun: bool,
}

/// The bytes of an answer's requests as they come: one, or one per choice.
pub struct Stream {
    /// Empty once everything has been handed over.
    voices: Vec<Voice>,
    /// What ends an answer of several choices.
    end: Option<End>,
    keep_alive: Option<KeepAlive>,
}

/// What is said after the last choice.
pub struct End {
    /// Writes the counts.
    pub writer: sse::Writer,
    /// Choices of each prompt, which is counted once.
    pub choices_per_prompt: usize,
}

/// What is said between the events of a stream that is silent for too long.
struct KeepAlive {
    said: &'static [u8],
    period: Duration,
    /// When the next comment is due.
    due: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl KeepAlive {
    /// Something was said: the silence begins anew. The timer is moved when it fires, not for every event.
    fn heard(&mut self) {
        self.due = Instant::now() + self.period;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.sleep.as_mut().poll(context).is_ready() {
            let due = Instant::now() >= self.due;
            if due {
                self.heard();
            }
            self.sleep.as_mut().reset(self.due);
            if due {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl Stream {
    /// The stream of a single request, which brings its own end.
    pub fn new(tickets: Vec<Ticket>) -> Stream {
        let voices = tickets.into_iter().map(|ticket| Voice { ticket, begun: false }).collect();
        Stream { voices, end: None, keep_alive: None }
    }

    /// The choices of one answer, in the order of their numbers. Their events come in any order.
    pub fn of_choices(tickets: Vec<Ticket>, end: End) -> Stream {
        Stream { end: Some(end), ..Stream::new(tickets) }
    }

    /// With `said` after every `period` of silence, the first time at `due`. Only for a stream of events.
    pub fn keep_alive(mut self, period: Duration, due: Instant, said: &'static [u8]) -> Stream {
        let sleep = Box::pin(tokio::time::sleep_until(due));
        self.keep_alive = Some(KeepAlive { said, period, due, sleep });
        self
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        if self.voices.is_empty() {
            return Poll::Ready(None);
        }
        // The first failure ends the whole: it alone is told, once.
        let failed = self.voices.iter().position(|voice| voice.ticket.fault().is_some());
        let heard = match failed {
            Some(at) => {
                self.voices.iter().for_each(|voice| voice.ticket.withdraw());
                self.voices.drain(..).nth(at).into_iter().collect()
            }
            None => std::mem::take(&mut self.voices),
        };
        self.voices = heard;
        let said = self.collect(context);
        let fault = failed.and_then(|_| self.voices.first()?.ticket.fault());
        let is_plain = self.voices.first().is_some_and(|voice| voice.ticket.is_plain());
        let over = self.voices.iter().all(|voice| voice.ticket.is_over());
        // The account of the last choice may come after its text.
        let ends_late = said.is_none() && over && fault.is_none() && self.end.is_some();
        match said.or_else(|| ends_late.then(Bytes::new)) {
            // A plain stream has no place for an error: it breaks off, so that it never looks complete.
            None if is_plain && fault.is_some() => {
                self.voices.clear();
                Poll::Ready(fault.map(Err))
            }
            None if over => {
                self.voices.clear();
                Poll::Ready(None)
            }
            None => {
                let Some(keep_alive) = &mut self.keep_alive else { return Poll::Pending };
                let said = keep_alive.said;
                keep_alive.poll(context).map(|()| Some(Ok(Bytes::from_static(said))))
            }
            Some(bytes) => {
                if let Some(keep_alive) = &mut self.keep_alive {
                    keep_alive.heard();
                }
                let bytes = if over && fault.is_none() { self.with_end(bytes) } else { bytes };
                if over && !(is_plain && fault.is_some()) {
                    self.voices.drain(..).for_each(|voice| voice.ticket.stamp(Stage::LastWrite));
                }
                Poll::Ready(Some(Ok(bytes)))
            }
        }
    }

    /// Everything that waits, as one piece; those that may say more will wake the task.
    fn collect(&mut self, context: &Context<'_>) -> Option<Bytes> {
        let mut said: Option<Bytes> = None;
        for voice in &mut self.voices {
            let mut request = voice.ticket.request.borrow_mut();
            if !request.has_output() {
                if request.outcome().is_none() {
                    request.wake_later(context);
                }
                continue;
            }
            let bytes = request.take_output();
            drop(request);
            if !voice.begun {
                voice.begun = true;
                voice.ticket.stamp(Stage::FirstWrite);
            }
            said = Some(match said {
                None => bytes,
                Some(before) => joined(before, &bytes),
            });
        }
        said
    }

    /// Counts and end mark after the last choice of several.
    fn with_end(&self, bytes: Bytes) -> Bytes {
        let Some(end) = &self.end else { return bytes };
        let usages = self.voices.iter().filter_map(|voice| voice.ticket.usage());
        let slowest = self.voices.iter().filter_map(|voice| voice.ticket.timeline());
        let slowest = slowest.max_by_key(Timeline::decode_ends_ns);
        let mut tail = BytesMut::new();
        let usage = Usage::of_choices(usages, end.choices_per_prompt);
        sse::write_end(&end.writer, usage, slowest.as_ref(), &mut tail);
        joined(bytes, &tail)
    }
}

impl AnswerBody {
    /// The requests that it answers.
    pub(crate) fn requests(&self) -> Vec<Rc<RefCell<Request>>> {
        match self {
            AnswerBody::Whole(_, tickets) => tickets.iter().map(|ticket| ticket.request.clone()).collect(),
            AnswerBody::Stream(stream) => {
                stream.voices.iter().map(|voice| voice.ticket.request.clone()).collect()
            }
            AnswerBody::Trace(_) => Vec::new(),
        }
    }
}

fn joined(before: Bytes, after: &[u8]) -> Bytes {
    let mut both = BytesMut::with_capacity(before.len() + after.len());
    both.extend_from_slice(&before);
    both.extend_from_slice(after);
    both.freeze()
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        match self.get_mut() {
            AnswerBody::Whole(bytes, tickets) => {
                tickets.drain(..).for_each(|ticket| ticket.stamp(Stage::LastWrite));
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            AnswerBody::Stream(stream) => {
                Poll::Ready(ready!(stream.poll(context)).map(|next| next.map(Frame::data)))
            }
            AnswerBody::Trace(trace) => {
                Poll::Ready(ready!(trace.poll(context)).map(|next| next.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Whole(bytes, _) => bytes.is_empty(),
            AnswerBody::Stream(stream) => stream.voices.is_empty(),
            AnswerBody::Trace(trace) => trace.is_over(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(bytes, _) => SizeHint::with_exact(bytes.len() as u64),
            AnswerBody::Stream(_) | AnswerBody::Trace(_) => SizeHint::default(),
        }
    }
}
