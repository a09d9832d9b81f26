//! `/tokenize`, `/detokenize`, `/apply-template` and `/v1/messages/count_tokens`: what a tokenizer answers by itself.

use crate::admission::{Limits, admit_apply_template, admit_count, admit_detokenize, admit_tokenize};
use crate::answers::errors::Refusal;
use crate::answers::openai::to_json;
use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::generate::{ignored, origin, outcome, unexpected};
use crate::http::intake::{read, read_body, written};
use crate::http::routes::{Arrival, whole};
use crate::requests::outgoing::Job;
use crate::requests::request::{Form, Outcome};
use crate::requests::ticket::Ticket;
use hyper::body::Incoming;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Request, Response, StatusCode};
use pinion_protocol::Fault;
use pinion_protocol::tokenizer_inbox::Truncation;
use serde::Serialize;
use serde_json::json as value;
use std::rc::Rc;

/// `POST /tokenize`.
pub(crate) async fn tokenize(
    app: &Rc<App>,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let (prompt, unknown) = read(app, body, admit_tokenize).await?;
    let ignored = ignored(app, &unknown);
    let ticket =
        Ticket::begin(&app.ledger, origin(&arrival), Job::Encode(prompt, Truncation::Never), Form::Whole)?;
    let Outcome::Ids(ids) = outcome(&ticket).await? else { return Err(unexpected()) };
    let bytes = ids.len() * size_of::<u32>();
    let write = move |limits: &Limits| {
        let max_model_len = limits.max_model_len;
        Ok::<_, Fault>(to_json(&Tokens { count: ids.len(), max_model_len, tokens: ids }))
    };
    Ok(naming(ignored, answered(ticket, written(app, bytes, write).await?)))
}

/// `POST /detokenize`.
pub(crate) async fn detokenize(
    app: &Rc<App>,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let (ids, unknown) = read(app, body, admit_detokenize).await?;
    let ignored = ignored(app, &unknown);
    let ticket = Ticket::begin(&app.ledger, origin(&arrival), Job::Decode(ids), Form::Whole)?;
    let Outcome::Decoded(text) = outcome(&ticket).await? else { return Err(unexpected()) };
    Ok(naming(ignored, answered(ticket, prompt(app, text).await?)))
}

/// `POST /apply-template`.
pub(crate) async fn apply_template(
    app: &Rc<App>,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let chat = read(app, body, admit_apply_template).await?;
    let ticket = Ticket::begin(&app.ledger, origin(&arrival), Job::Render(chat), Form::Whole)?;
    let Outcome::Decoded(text) = outcome(&ticket).await? else { return Err(unexpected()) };
    Ok(answered(ticket, prompt(app, text).await?))
}

/// `POST /v1/messages/count_tokens`.
pub(crate) async fn count(
    app: &Rc<App>,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    let body = read_body(app, request.into_body()).await?;
    let prompt = read(app, body, admit_count).await?;
    let ticket =
        Ticket::begin(&app.ledger, origin(&arrival), Job::Encode(prompt, Truncation::Never), Form::Whole)?;
    let Outcome::Ids(ids) = outcome(&ticket).await? else { return Err(unexpected()) };
    Ok(answered(ticket, to_json(&value!({"input_tokens": ids.len()}))))
}

/// What `/tokenize` answers.
#[derive(Serialize)]
struct Tokens {
    tokens: Vec<u32>,
    count: usize,
    max_model_len: u32,
}

/// What `/detokenize` and `/apply-template` answer.
#[derive(Serialize)]
struct Text {
    prompt: String,
}

async fn prompt(app: &App, prompt: String) -> Result<Vec<u8>, Fault> {
    written(app, prompt.len(), move |_| Ok(to_json(&Text { prompt }))).await
}

/// The response with the field that names what was ignored.
fn naming(
    ignored: Option<(HeaderName, HeaderValue)>,
    mut response: Response<AnswerBody>,
) -> Response<AnswerBody> {
    response.headers_mut().extend(ignored);
    response
}

fn answered(ticket: Ticket, body: Vec<u8>) -> Response<AnswerBody> {
    whole(StatusCode::OK, "application/json", AnswerBody::Whole(body.into(), vec![ticket]))
}
