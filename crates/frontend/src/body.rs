//! The body of an answer. A stream hands over everything that waits as one piece, so that several ready tokens
//! leave in one write; dropping the body is how we learn that the client is gone.

use crate::ledger::Ticket;
use crate::request::{Form, Outcome};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use pinion_protocol::Fault;
use pinion_protocol::names::Stage;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

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
}

impl Stream {
    /// The stream of `ticket`'s request.
    pub fn new(ticket: Ticket) -> Stream {
        Stream { ticket: Some(ticket), begun: false }
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
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
                return Poll::Pending;
            }
            drop(request);
            self.ticket = None;
            return Poll::Ready(failed.map(Err));
        }
        let bytes = request.take_output();
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
