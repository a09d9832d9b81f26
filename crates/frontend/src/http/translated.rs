//! Generation for the APIs that are translations of a chat: `/v1/messages` and `/v1/responses`.
//!
//! The body becomes a chat that passes the same admission, and one request answers it. What the request says goes
//! through an [`AnswerWriter`] as it comes, whether the answer leaves as a stream or whole.

use crate::admission::{Limits, admit_message, admit_response, ask_response};
use crate::answers::errors::Refusal;
use crate::answers::sse;
use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::generate::{Admission, begin, ignored, outcome, stream_answer, unexpected};
use crate::http::intake::{read, read_body, weighed};
use crate::http::routes::{Arrival, whole};
use crate::http::stored;
use crate::requests::request::{AnswerPlan, Form, Outcome};
use crate::requests::ticket::Ticket;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use pinion_api::{AnswerWriter, messages, responses};
use pinion_config::SamplingDefaults;
use pinion_os::clock;
use serde_json::{Map, Value};
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
    let ignored = ignored(app, &admitted.ignored);
    let head = messages::Head {
        id: format!("msg_{}", app.numbers.id()),
        model: app.limits.model.clone(),
        stop_sequences: admitted.stop.clone(),
        streams: admitted.stream,
    };
    let streams = head.streams;
    let tickets = begin(
        app,
        &arrival,
        admitted,
        translated(AnswerWriter::Messages(messages::MessageWriter::new(head))),
    );
    admission.record(app, tickets.as_ref().ok().and_then(|tickets| tickets.first()));
    let mut response = if streams {
        stream_answer(app, tickets?, Some(messages::PING), None).await?
    } else {
        whole_answer(tickets?).await?
    };
    response.headers_mut().extend(ignored);
    Ok(response)
}

/// `POST /v1/responses`.
pub(crate) async fn responses(
    app: &Rc<App>,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let mut body = read_body(app, request.into_body()).await?;
    let share = body.take_share();
    let (admission, bytes, seed) = (Admission::new(&body), body.len(), app.numbers.fresh_seed());
    let asked = read(app, body, |body, _| ask_response(body)).await;
    let mut asked = asked.inspect_err(|_| admission.record(app, None))?;
    let earlier = match asked.previous.as_deref() {
        None => Ok(None),
        Some(id) => stored::conversation(app, id, arrival.key, bytes).map(Some),
    };
    let earlier = earlier.inspect_err(|_| admission.record(app, None))?;
    let (store, mut echo) = (asked.store, std::mem::take(&mut asked.echo));
    show_defaults(&mut echo, &app.limits.defaults);
    let bytes = bytes + earlier.as_ref().map_or(0, String::len);
    let admit = move |limits: &Limits| {
        // What was asked is as large as the body until here.
        let _share = share;
        admit_response(asked, earlier.as_deref(), limits, seed)
    };
    let admitted = weighed(app, bytes, admit).await;
    let (admitted, input) = admitted.inspect_err(|_| admission.record(app, None))?;
    let ignored = ignored(app, &admitted.ignored);
    let head = responses::Head {
        letters: app.numbers.id(),
        created_s: clock::unix_s(),
        model: app.limits.model.clone(),
        key: arrival.key,
        echo,
        streams: admitted.stream,
        keep: store.then(|| (app.responses.clone(), input)),
    };
    let streams = head.streams;
    let tickets = begin(
        app,
        &arrival,
        admitted,
        translated(AnswerWriter::Responses(responses::ResponseWriter::new(head))),
    );
    admission.record(app, tickets.as_ref().ok().and_then(|tickets| tickets.first()));
    let mut response = if streams {
        stream_answer(app, tickets?, Some(sse::KEEP_ALIVE), None).await?
    } else {
        whole_answer(tickets?).await?
    };
    response.headers_mut().extend(ignored);
    Ok(response)
}

/// The form of the one request of an answer: these APIs have one prompt and one choice.
fn translated(writer: AnswerWriter) -> impl FnMut(u32, usize) -> AnswerPlan {
    let mut writer = Some(Box::new(writer));
    move |_, _| Form::Translated(writer.take().expect("neither API passes `n` on")).into()
}

/// What the answer says of how it was drawn, where the request does not: what held instead.
fn show_defaults(echo: &mut Map<String, Value>, defaults: &SamplingDefaults) {
    for (name, value) in [
        ("temperature", defaults.temperature.unwrap_or(1.0)),
        ("top_p", defaults.top_p.unwrap_or(1.0)),
        ("presence_penalty", 0.0),
        ("frequency_penalty", 0.0),
    ] {
        if echo.get(name).is_none_or(Value::is_null) {
            echo.insert(name.to_owned(), value.into());
        }
    }
}

/// Waits for the one request of an answer, which has worded it by then.
async fn whole_answer(tickets: Vec<Ticket>) -> Result<Response<AnswerBody>, Refusal> {
    let [ticket] = tickets.as_slice() else { return Err(unexpected()) };
    let Outcome::Text(..) = outcome(ticket).await? else { return Err(unexpected()) };
    let body = ticket.request.borrow_mut().take_output();
    Ok(whole(StatusCode::OK, "application/json", AnswerBody::Whole(body, tickets)))
}
