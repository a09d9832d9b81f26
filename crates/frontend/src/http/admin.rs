//! Routes of operators: orders that the launcher carries out, and the trace of all processes.

use crate::admission::json::Fields;
use crate::answers::errors::Refusal;
use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::intake::read_body;
use crate::http::routes::whole;
use crate::observe::trace::{TRACE_SECONDS_MAX, Trace};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use pinion_protocol::control::Admin;
use pinion_protocol::{Fault, FaultCode};
use std::rc::Rc;

/// A route that gives an order. The request's body, if it has one, says nothing that we need.
pub(crate) async fn order(app: &App, admin: Admin) -> Result<Response<AnswerBody>, Refusal> {
    app.orders.give(admin).await?;
    Ok(whole(StatusCode::OK, "text/plain; charset=utf-8", AnswerBody::Whole(Vec::new().into(), Vec::new())))
}

/// `POST /debug/trace`: `seconds`, from 0, which is what is still known, to [`TRACE_SECONDS_MAX`].
pub(crate) async fn trace(
    app: &Rc<App>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let mut fields = Fields::parse(if body.is_empty() { b"{}" } else { &body })?;
    let seconds = fields.integer("seconds", 0..=i128::from(TRACE_SECONDS_MAX))?.unwrap_or(0);
    if app.spans.is_empty() {
        let message = "the service records nothing: it was started with --no-timeline";
        return Err(Fault::new(FaultCode::Unavailable, message).into());
    }
    let trace = Trace::new(&app.spans, u64::try_from(seconds).unwrap_or(0));
    Ok(whole(StatusCode::OK, "application/json", AnswerBody::Trace(Box::new(trace))))
}
