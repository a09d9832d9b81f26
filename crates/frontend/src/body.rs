//! The body of an answer. A stream hands over everything that waits as one piece, so that several ready tokens
//! leave in one write; dropping the body is how we learn that the client is gone.

use crate::ledger::Ticket;
use crate::request::{Form, Outcome};
use crate::sse;
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use pinion_protocol::Fault;
use pinion_protocol::names::Stage;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// The body of a response.
pub enum AnswerBody {
    /// Known bytes, with the request that they answer, if they answer one.
    Whole(Bytes, Option<Ticket>),
    /// Bytes as they come.
    Stream(Stream),
}

/// The bytes of a request as they come.
pub struct Stream {
    /// `None` once everything has been handed over.
    ticket: Option<Ticket>,
    begun: bool,
    keep_alive: Option<KeepAlive>,
}

/// Comments between the events of a stream that is silent for too long.
struct KeepAlive {
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
    /// The stream of `ticket`'s request.
    pub fn new(ticket: Ticket) -> Stream {
        Stream { ticket: Some(ticket), begun: false, keep_alive: None }
    }

    /// With a comment after every `period` of silence, the first one at `due`. Only for a stream of events.
    pub fn keep_alive(mut self, period: Duration, due: Instant) -> Stream {
        let sleep = Box::pin(tokio::time::sleep_until(due));
        self.keep_alive = Some(KeepAlive { period, due, sleep });
        self
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        let Some(ticket) = &self.ticket else { return Poll::Ready(None) };
        let mut request = ticket.request.borrow_mut();
        let plain = matches!(request.form(), Form::PlainStream);
        // A plain stream has no place for an error: it breaks off, so that it never looks complete.
        let failed = match request.outcome() {
            Some(Outcome::Failed(fault)) if plain => Some(fault.clone()),
            _ => None,
        };
        if !request.has_output() {
            if request.outcome().is_none() {
                request.wake_later(context);
                let Some(keep_alive) = &mut self.keep_alive else { return Poll::Pending };
                return keep_alive.poll(context).map(|()| Some(Ok(Bytes::from_static(sse::KEEP_ALIVE))));
            }
            drop(request);
            self.ticket = None;
            return Poll::Ready(failed.map(Err));
        }
        let bytes = request.take_output();
        if let Some(keep_alive) = &mut self.keep_alive {
            keep_alive.heard();
        }
        let complete = request.outcome().is_some() && failed.is_none();
        drop(request);
        if !self.begun {
            self.begun = true;
            ticket.stamp(Stage::FirstWrite);
        }
        if complete {
            ticket.stamp(Stage::LastWrite);
            self.ticket = None;
        }
        Poll::Ready(Some(Ok(bytes)))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        match self.get_mut() {
            AnswerBody::Whole(bytes, ticket) => {
                if let Some(ticket) = ticket.take() {
                    ticket.stamp(Stage::LastWrite);
                }
                let bytes = std::mem::take(bytes);
                Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
            }
            AnswerBody::Stream(stream) => {
                Poll::Ready(ready!(stream.poll(context)).map(|next| next.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Whole(bytes, _) => bytes.is_empty(),
            AnswerBody::Stream(stream) => stream.ticket.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Whole(bytes, _) => SizeHint::with_exact(bytes.len() as u64),
            AnswerBody::Stream(_) => SizeHint::default(),
        }
    }
}
