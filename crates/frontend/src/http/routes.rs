//! From a request's head to its handler, and from a handler's result to a response.
//!
//! Every response leaves through [`handle`].

use crate::answers::errors::{Dialect, HttpError, Refusal};
use crate::http::app::App;
use crate::http::body::AnswerBody;
use crate::http::{
    admin, auth, cors, framing, generate, info, intake, invocations, pooling, props, render, root_path,
    stored, tokens, translated,
};
use crate::limits::REQUEST_ID_BYTES_MAX;
use crate::observe::exposition::Extent;
use crate::observe::otlp::RequestTrace;
use crate::observe::{load, orca};
use crate::route::Route;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, Response, StatusCode};
use pinion_os::clock;
use pinion_protocol::control::Admin;
use pinion_protocol::{Fault, FaultCode};
use std::convert::Infallible;
use std::rc::Rc;

/// Makes Envoy send requests to other hosts until its next health check passes.
const ENVOY_HOST_FAILS: HeaderName = HeaderName::from_static("x-envoy-immediate-health-check-fail");

/// What is known of a request before its body.
pub struct Arrival {
    /// Where it goes.
    pub route: Route,
    /// `X-Request-Id`: the client's, if it is harmless, else ours.
    pub label: String,
    /// CLOCK_MONOTONIC ns at which the head was parsed.
    pub received_ns: u64,
    /// Which of the service's keys it came with, if it asks for one.
    pub key: Option<usize>,
    /// What its spans are gathered in, if it is traced.
    pub trace: Option<Rc<RequestTrace>>,
}

/// Answers one request.
pub async fn handle(
    app: Rc<App>,
    mut request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible> {
    let received_ns = clock::now_ns();
    root_path::take_off(&app.settings.root_path, request.uri_mut());
    let route = Route::of(request.uri().path());
    let label = label(request.headers()).unwrap_or_else(|| format!("req-{}", app.numbers.id()));
    let dialect = Dialect::of(request.uri().path());
    let (label_value, label_text) = (HeaderValue::from_str(&label), label.clone());
    let arrival = Arrival { route, label, received_ns, key: None, trace: None };
    let origins = &app.settings.cors_origins;
    let origin = cors::allowed(origins, request.headers());
    let wanted = orca::asked(route, request.headers());
    let (head, body) = request.into_parts();
    let mut trace = None;
    let answer = match enter(&app, route, origin.as_ref(), &head) {
        Ok(None) => dispatch(&app, arrival, Request::from_parts(head, body), &mut trace).await,
        Ok(Some(preflight)) => Ok(preflight),
        Err(refusal) => {
            intake::discard(body);
            Err(refusal)
        }
    };
    let mut response =
        answer.unwrap_or_else(|refusal| refused(&HttpError::from(refusal), dialect, &label_text));
    cors::mark(origins, origin, response.headers_mut());
    if let Ok(value) = label_value {
        if dialect == Dialect::Anthropic {
            response.headers_mut().insert(HeaderName::from_static("request-id"), value.clone());
        }
        response.headers_mut().insert(HeaderName::from_static("x-request-id"), value);
    }
    if app.leaves() {
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        headers.insert(ENVOY_HOST_FAILS, HeaderValue::from_static("true"));
    }
    app.metrics.response(route, response.status().as_u16());
    trace.inspect(|trace| trace.answered(response.status().as_u16()));
    if let Some(report) = wanted
        .and_then(|form| orca::report(&app.health, &app.rates(), u64::from(app.settings.running_max), form))
    {
        response.headers_mut().insert(orca::ANSWER, report);
    }
    Ok(response)
}

/// What holds for every route: heads with one meaning, names of this service, and what pages of other origins may do.
/// Gives the answer to a preflight.
fn enter(
    app: &App,
    route: Route,
    origin: Option<&HeaderValue>,
    head: &Parts,
) -> Result<Option<Response<AnswerBody>>, Refusal> {
    let guard = &app.settings.guard;
    framing::check(head)?;
    guard.check_host(head)?;
    if guard.admits_pages(route)
        && let Some(preflight) = cors::preflight(origin, route, &head.method, &head.headers)
    {
        return Ok(Some(preflight));
    }
    guard.check_origin(route, head)?;
    Ok(None)
}

async fn dispatch(
    app: &Rc<App>,
    mut arrival: Arrival,
    request: Request<Incoming>,
    trace: &mut Option<Rc<RequestTrace>>,
) -> Result<Response<AnswerBody>, Refusal> {
    let route = arrival.route;
    if app.settings.ui
        && Route::Page.takes(request.method())
        && let Some(answer) = root_path::to_page(&app.settings.root_path, request.uri().path())
    {
        return Ok(answer);
    }
    match permit(app, route, &request) {
        Ok(key) => arrival.key = key,
        Err(refusal) => {
            intake::discard(request.into_body());
            return Err(refusal);
        }
    }
    if let Some(exporter) = app.exporter.as_ref().filter(|_| route.asks_model()) {
        arrival.trace = exporter.begin(route, request.headers(), &arrival.label, arrival.received_ns);
        trace.clone_from(&arrival.trace);
    }
    if let Err(refusal) = check_before_body(app, route, request.headers()) {
        intake::discard(request.into_body());
        return Err(refusal);
    }
    serve(app, arrival, request).await
}

/// Whether the client may ask this of the route, and with which key.
fn permit(app: &App, route: Route, request: &Request<Incoming>) -> Result<Option<usize>, Refusal> {
    let key = auth::check(route, request.headers(), &app.settings.api_keys)?;
    if route == Route::Unknown || (route.is_page() && !app.settings.ui) {
        let path: String = request.uri().path().chars().take(REQUEST_ID_BYTES_MAX).collect();
        let meant = Route::meant_by(&path);
        return Err(Refusal::NoRoute { path, meant });
    }
    if !route.takes(request.method()) {
        return Err(Refusal::Method { allow: route.allowed() });
    }
    Ok(key)
}

/// Hands the request to its handler.
async fn serve(
    app: &Rc<App>,
    arrival: Arrival,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Refusal> {
    match arrival.route {
        Route::Completions | Route::Chat | Route::Generate => generate::serve(app, arrival, request).await,
        Route::Messages => translated::messages(app, arrival, request).await,
        Route::CountTokens => tokens::count(app, arrival, request).await,
        Route::Responses => translated::responses(app, arrival, request).await,
        Route::StoredResponse | Route::InputItems | Route::CancelResponse => {
            stored::serve(app, &arrival, &request).await
        }
        Route::Tokenize => tokens::tokenize(app, arrival, request).await,
        Route::Detokenize => tokens::detokenize(app, arrival, request).await,
        Route::Models => Ok(info::models(app)),
        Route::Model => info::model(app, Route::model_in(request.uri().path())),
        Route::Health | Route::Ping => Ok(info::health(app)),
        Route::Ready | Route::V2Ready => Ok(info::ready(app)),
        Route::Live | Route::V2Live => Ok(info::alive()),
        Route::Metrics => Ok(info::metrics(app, Extent::Whole)),
        Route::MetricsLoad => Ok(info::metrics(app, Extent::Load)),
        Route::Loads => {
            Ok(json(StatusCode::OK, load::loads(&app.view(), &app.rates(), clock::unix_s()).to_string()))
        }
        Route::Version => Ok(info::version(app)),
        Route::Embeddings | Route::Rerank | Route::Score | Route::Pooling | Route::Classify => {
            pooling::serve(app, arrival, request).await
        }
        Route::Props => Ok(props::answer(app)),
        Route::ApplyTemplate => tokens::apply_template(app, arrival, request).await,
        Route::RenderCompletions | Route::RenderChat => render::serve(app, arrival, request).await,
        Route::Invocations => invocations::serve(app, arrival, request).await,
        Route::OpenApi => Ok(info::openapi(app)),
        Route::Docs => Ok(info::docs(app, request.headers())),
        Route::Page | Route::PageFile => info::page_file(request.uri().path(), request.headers()),
        Route::Stats => Ok(info::stats(app)),
        Route::DebugSlow => Ok(info::debug_slow(app)),
        Route::DebugTrace => admin::trace(app, request).await,
        Route::StartProfile | Route::StopProfile if !app.settings.profiled => {
            let reason = "the service was not started with --profile; /debug/trace needs no profiler";
            Err(Fault::new(FaultCode::InvalidValue, reason).into())
        }
        Route::StartProfile => admin::order(app, Admin::StartProfile).await,
        Route::StopProfile => admin::order(app, Admin::StopProfile).await,
        Route::ResetPrefixCache => admin::order(app, Admin::ClearPrefixCache).await,
        Route::Unknown => Err(Refusal::NoRoute { path: String::new(), meant: None }),
    }
}

/// What is refused whatever the body says.
fn check_before_body(app: &App, route: Route, headers: &HeaderMap) -> Result<(), Refusal> {
    framing::check_encoding(headers)?;
    let draws = route.generates() || matches!(route, Route::RenderCompletions | Route::RenderChat);
    if draws && app.limits.pooling.is_some() {
        return Err(Refusal::NotGenerating(app.limits.model.clone()));
    }
    Ok(())
}

/// A client's request id, if it is short and made of harmless characters. It is only ever echoed.
fn label(headers: &HeaderMap) -> Option<String> {
    let text = headers.get("x-request-id")?.to_str().ok()?;
    let harmless = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    let fits = !text.is_empty() && text.len() <= REQUEST_ID_BYTES_MAX && text.bytes().all(harmless);
    fits.then(|| text.to_owned())
}

/// A response with a known body.
pub fn whole(status: StatusCode, content_type: &'static str, body: AnswerBody) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A JSON response.
pub fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<AnswerBody> {
    whole(status, "application/json", AnswerBody::Whole(body.into(), Vec::new()))
}

/// The response with an error.
fn refused(error: &HttpError, dialect: Dialect, label: &str) -> Response<AnswerBody> {
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(status, dialect.body(error, label));
    let headers = response.headers_mut();
    if let Some(seconds) = error.retry_after_s {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(allow) = error.allow {
        headers.insert(ALLOW, HeaderValue::from_static(allow));
    }
    if let Some(codings) = error.accept_encoding {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(codings));
    }
    if error.status == StatusCode::UNAUTHORIZED.as_u16() {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if error.is_final {
        headers.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
    }
    if error.close {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
