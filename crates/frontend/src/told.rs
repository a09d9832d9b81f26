//! Generation for the APIs that are translations of a chat: `/v1/messages`.
//!
//! The body becomes a chat that passes the same admission, and one request answers it. What the request says goes
//! through a [`Teller`] as it comes, whether the answer leaves as a stream or whole.

use crate::admission::admit_message;
use crate::app::App;
use crate::body::AnswerBody;
use crate::errors::Refusal;
use crate::generate::{Admission, begin, outcome, stream_answer, unexpected};
use crate::intake::{read, read_body};
use crate::request::{Form, Outcome};
use crate::routes::{Arrival, whole};
use crate::ticket::Ticket;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use pinion_api::{Teller, messages};
use std::rc::Rc;

/// `POST /v1/messages`.
pub(crate) async fn messages(
    app: &Rc<App>,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let admission = Admission::new(&body);
    let seed = app.numbers.fresh_seed();
    let admitted = read(app, body, move |body, limits| admit_message(body, limits, seed)).await;
    let admitted = admitted.inspect_err(|_| admission.record(app, None))?;
    let head = messages::Head {
        id: format!("msg_{}", app.numbers.id()),
        model: app.limits.model.clone(),
        stop_sequences: admitted.stop.clone(),
        streams: admitted.stream,
    };
    let streams = head.streams;
    let teller = || Teller::Messages(messages::Teller::new(head.clone()));
    let tickets = begin(app, &arrival, admitted, |_, _| Form::Told(Box::new(teller())));
    admission.record(app, tickets.as_ref().ok().and_then(|tickets| tickets.first()));
    if streams {
        return stream_answer(app, tickets?, Some(messages::PING), None).await;
    }
    whole_answer(tickets?).await
}

/// Waits for the one request of an answer, which has worded it by then.
async fn whole_answer(tickets: Vec<Ticket>) -> Result<Response<AnswerBody>, Refusal> {
    let [ticket] = tickets.as_slice() else { return Err(unexpected()) };
    let Outcome::Text(..) = outcome(ticket).await? else { return Err(unexpected()) };
    let body = ticket.request.borrow_mut().take_output();
    Ok(whole(StatusCode::OK, "application/json", AnswerBody::Whole(body, tickets)))
}
