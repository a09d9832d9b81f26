//! From a request's head to its handler, and from a handler's result to a response.
//!
//! A route is a closed enum, so that metrics by route stay bounded. Every response leaves through [`handle`].

use crate::answers::errors::{Dialect, HttpError, Refusal};
use crate::http::app::{App, unix_s};
use crate::http::body::AnswerBody;
use crate::http::kept;
use crate::http::{auth, cors, framing, generate, info, intake, pages, tokens, told};
use crate::limits::REQUEST_ID_BYTES_MAX;
use crate::observe::exposition::Extent;
use crate::observe::{load, orca};
use crate::requests::orders;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use pinion_os::clock;
use pinion_protocol::control::Admin;
use pinion_protocol::{Fault, FaultCode};
use std::convert::Infallible;
use std::rc::Rc;

/// A path that exists, or the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Route {
    /// `/v1/completions`.
    Completions = 0,
    /// `/v1/chat/completions`.
    Chat = 1,
    /// `/generate`.
    Generate = 2,
    /// `/tokenize`.
    Tokenize = 3,
    /// `/detokenize`.
    Detokenize = 4,
    /// `/v1/models`.
    Models = 5,
    /// `/v1/models/{id}`.
    Model = 6,
    /// `/health`.
    Health = 7,
    /// `/ready`.
    Ready = 8,
    /// `/live`.
    Live = 9,
    /// `/metrics`.
    Metrics = 10,
    /// `/version`.
    Version = 11,
    /// `/v1/embeddings`.
    Embeddings = 12,
    /// `/openapi.json`.
    OpenApi = 13,
    /// `/docs`.
    Docs = 14,
    /// `/debug/slow`.
    DebugSlow = 15,
    /// `/reset_prefix_cache`.
    ResetPrefixCache = 16,
    /// `/debug/trace`.
    DebugTrace = 17,
    /// `/start_profile`.
    StartProfile = 18,
    /// `/stop_profile`.
    StopProfile = 19,
    /// `/metrics/load`.
    MetricsLoad = 20,
    /// `/v1/loads`.
    Loads = 21,
    /// `/ping`.
    Ping = 22,
    /// `/v2/health/live`.
    V2Live = 23,
    /// `/v2/health/ready`.
    V2Ready = 24,
    /// `/v1/messages`.
    Messages = 25,
    /// `/v1/messages/count_tokens`.
    CountTokens = 26,
    /// `/`: the page for people.
    Page = 27,
    /// `/ui/{file}`: what the pages load.
    PageFile = 28,
    /// `/stats`.
    Stats = 29,
    /// `/v1/responses`.
    Responses = 30,
    /// `/v1/responses/{id}`.
    Kept = 31,
    /// `/v1/responses/{id}/input_items`.
    InputItems = 32,
    /// `/v1/responses/{id}/cancel`.
    CancelResponse = 33,
    /// Everything else.
    Unknown = 34,
}

/// Makes Envoy send requests to other hosts until its next health check passes.
const ENVOY_HOST_FAILS: HeaderName = HeaderName::from_static("x-envoy-immediate-health-check-fail");
const MODEL_PREFIX: &str = "/v1/models/";

impl Route {
    /// All, in the order of their numbers.
    pub const ALL: [Route; 35] = [
        Route::Completions,
        Route::Chat,
        Route::Generate,
        Route::Tokenize,
        Route::Detokenize,
        Route::Models,
        Route::Model,
        Route::Health,
        Route::Ready,
        Route::Live,
        Route::Metrics,
        Route::Version,
        Route::Embeddings,
        Route::OpenApi,
        Route::Docs,
        Route::DebugSlow,
        Route::ResetPrefixCache,
        Route::DebugTrace,
        Route::StartProfile,
        Route::StopProfile,
        Route::MetricsLoad,
        Route::Loads,
        Route::Ping,
        Route::V2Live,
        Route::V2Ready,
        Route::Messages,
        Route::CountTokens,
        Route::Page,
        Route::PageFile,
        Route::Stats,
        Route::Responses,
        Route::Kept,
        Route::InputItems,
        Route::CancelResponse,
        Route::Unknown,
    ];

    /// The route of a path.
    pub fn of(path: &str) -> Route {
        match path {
            "/v1/completions" => Route::Completions,
            "/v1/chat/completions" => Route::Chat,
            "/v1/messages" => Route::Messages,
            "/v1/messages/count_tokens" => Route::CountTokens,
            "/v1/responses" => Route::Responses,
            "/generate" => Route::Generate,
            "/tokenize" => Route::Tokenize,
            "/detokenize" => Route::Detokenize,
            "/v1/models" => Route::Models,
            "/health" => Route::Health,
            "/ready" => Route::Ready,
            "/live" => Route::Live,
            "/metrics" => Route::Metrics,
            "/version" => Route::Version,
            "/v1/embeddings" => Route::Embeddings,
            "/openapi.json" => Route::OpenApi,
            "/docs" => Route::Docs,
            "/debug/slow" => Route::DebugSlow,
            "/debug/trace" => Route::DebugTrace,
            "/start_profile" => Route::StartProfile,
            "/stop_profile" => Route::StopProfile,
            "/reset_prefix_cache" => Route::ResetPrefixCache,
            "/metrics/load" => Route::MetricsLoad,
            "/v1/loads" => Route::Loads,
            "/ping" => Route::Ping,
            "/v2/health/live" => Route::V2Live,
            "/v2/health/ready" => Route::V2Ready,
            "/" => Route::Page,
            "/stats" => Route::Stats,
            _ if pages::at(path).is_some() => Route::PageFile,
            _ if path.len() > MODEL_PREFIX.len() && path.starts_with(MODEL_PREFIX) => Route::Model,
            _ => match kept::named(path) {
                Some((_, "")) => Route::Kept,
                Some((_, "/input_items")) => Route::InputItems,
                Some((_, "/cancel")) => Route::CancelResponse,
                Some(_) | None => Route::Unknown,
            },
        }
    }

    /// Label value, and the name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Route::Completions => "/v1/completions",
            Route::Chat => "/v1/chat/completions",
            Route::Messages => "/v1/messages",
            Route::CountTokens => "/v1/messages/count_tokens",
            Route::Responses => "/v1/responses",
            Route::Kept => "/v1/responses/{id}",
            Route::InputItems => "/v1/responses/{id}/input_items",
            Route::CancelResponse => "/v1/responses/{id}/cancel",
            Route::Generate => "/generate",
            Route::Tokenize => "/tokenize",
            Route::Detokenize => "/detokenize",
            Route::Models => "/v1/models",
            Route::Model => "/v1/models/{id}",
            Route::Health => "/health",
            Route::Ready => "/ready",
            Route::Live => "/live",
            Route::Metrics => "/metrics",
            Route::Version => "/version",
            Route::Embeddings => "/v1/embeddings",
            Route::OpenApi => "/openapi.json",
            Route::Docs => "/docs",
            Route::DebugSlow => "/debug/slow",
            Route::DebugTrace => "/debug/trace",
            Route::StartProfile => "/start_profile",
            Route::StopProfile => "/stop_profile",
            Route::ResetPrefixCache => "/reset_prefix_cache",
            Route::MetricsLoad => "/metrics/load",
            Route::Loads => "/v1/loads",
            Route::Ping => "/ping",
            Route::V2Live => "/v2/health/live",
            Route::V2Ready => "/v2/health/ready",
            Route::Page => "/",
            Route::PageFile => "/ui/{file}",
            Route::Stats => "/stats",
            Route::Unknown => "unknown",
        }
    }

    /// Whether it asks for generated text.
    pub fn generates(self) -> bool {
        matches!(
            self,
            Route::Completions | Route::Chat | Route::Generate | Route::Messages | Route::Responses
        )
    }

    /// Whether it answers without a key. Whatever is not listed as public needs one.
    pub fn is_public(self) -> bool {
        let probe = matches!(
            self,
            Route::Health | Route::Ready | Route::Live | Route::Ping | Route::V2Live | Route::V2Ready
        );
        let figures = matches!(
            self,
            Route::Metrics | Route::MetricsLoad | Route::Loads | Route::Stats | Route::Version
        );
        probe || figures || self.is_page()
    }

    /// Whether it is a page for people or a part of one, which `--no-ui` takes away.
    pub fn is_page(self) -> bool {
        matches!(self, Route::Page | Route::PageFile | Route::Docs)
    }

    /// Whether it is for operators and changes how the service runs or looks.
    pub fn is_admin(self) -> bool {
        matches!(self, Route::ResetPrefixCache | Route::DebugTrace | Route::StartProfile | Route::StopProfile)
    }

    /// The methods that the route takes, for `Allow`.
    fn allowed(self) -> &'static str {
        if self == Route::Kept {
            return "GET, HEAD, DELETE";
        }
        if self.method() == Method::POST { "POST" } else { "GET, HEAD" }
    }

    /// Whether the route takes this method. HEAD is GET up to the head: hyper leaves the body out.
    pub fn takes(self, method: &Method) -> bool {
        let deletes = self == Route::Kept && *method == Method::DELETE;
        deletes || self.method() == *method || (self.method() == Method::GET && *method == Method::HEAD)
    }

    /// The name of [`Route::method`].
    pub(crate) fn method_name(self) -> &'static str {
        if self.method() == Method::POST { "POST" } else { "GET" }
    }

    /// The methods that a page may be told of.
    pub(crate) fn page_methods(self) -> &'static str {
        if self == Route::Kept { "GET, DELETE" } else { self.method_name() }
    }

    /// The first method that the route has; the others are HEAD, and DELETE of a response.
    pub fn method(self) -> Method {
        match self {
            Route::Completions
            | Route::Chat
            | Route::Generate
            | Route::Messages
            | Route::CountTokens
            | Route::Responses
            | Route::CancelResponse
            | Route::Tokenize
            | Route::Detokenize
            | Route::Embeddings
            | Route::ResetPrefixCache
            | Route::DebugTrace
            | Route::StartProfile
            | Route::StopProfile => Method::POST,
            Route::Models
            | Route::Model
            | Route::Kept
            | Route::InputItems
            | Route::Health
            | Route::Ready
            | Route::Live
            | Route::Metrics
            | Route::Version
            | Route::OpenApi
            | Route::Docs
            | Route::DebugSlow
            | Route::MetricsLoad
            | Route::Loads
            | Route::Ping
            | Route::V2Live
            | Route::V2Ready
            | Route::Page
            | Route::PageFile
            | Route::Stats
            | Route::Unknown => Method::GET,
        }
    }
}

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
}

/// Answers one request.
pub async fn handle(app: Rc<App>, request: Request<Incoming>) -> Result<Response<AnswerBody>, Infallible> {
    let received_ns = clock::now_ns();
    let route = Route::of(request.uri().path());
    let label = label(request.headers()).unwrap_or_else(|| format!("req-{}", app.numbers.id()));
    let dialect = Dialect::of(request.uri().path());
    let (label_value, label_text) = (HeaderValue::from_str(&label), label.clone());
    let arrival = Arrival { route, label, received_ns, key: None };
    let origins = &app.settings.cors_origins;
    let origin = cors::allowed(origins, request.headers());
    let wanted = orca::asked(route, request.headers());
    let (head, body) = request.into_parts();
    let answer = match enter(&app, route, origin.as_ref(), &head) {
        Ok(None) => dispatch(&app, arrival, Request::from_parts(head, body)).await,
        Ok(Some(preflight)) => Ok(preflight),
        Err(refusal) => {
            intake::discard(body);
            Err(refusal)
        }
    };
    let mut response =
        answer.unwrap_or_else(|refusal| HttpError::from(refusal).response(dialect, &label_text));
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
    if let Some(report) = wanted.and_then(|form| orca::report(&app, form)) {
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
) -> Result<Response<AnswerBody>, Refusal> {
    let route = arrival.route;
    arrival.key = auth::check(route, request.headers(), &app.settings.api_keys)?;
    if route == Route::Unknown || (route.is_page() && !app.settings.ui) {
        let path: String = request.uri().path().chars().take(REQUEST_ID_BYTES_MAX).collect();
        return Err(Refusal::NoRoute(path));
    }
    if !route.takes(request.method()) {
        return Err(Refusal::Method { allow: route.allowed() });
    }
    if let Err(refusal) = framing::check_encoding(request.headers()) {
        intake::discard(request.into_body());
        return Err(refusal);
    }
    match route {
        Route::Completions | Route::Chat | Route::Generate => generate::serve(app, arrival, request).await,
        Route::Messages => told::messages(app, arrival, request).await,
        Route::CountTokens => tokens::count(app, arrival, request).await,
        Route::Responses => told::responses(app, arrival, request).await,
        Route::Kept | Route::InputItems | Route::CancelResponse => kept::serve(app, &arrival, &request),
        Route::Tokenize => tokens::tokenize(app, arrival, request).await,
        Route::Detokenize => tokens::detokenize(app, arrival, request).await,
        Route::Models => Ok(info::models(app)),
        Route::Model => info::model(app, request.uri().path().strip_prefix(MODEL_PREFIX).unwrap_or_default()),
        Route::Health | Route::Ping => Ok(info::health(app)),
        Route::Ready | Route::V2Ready => Ok(info::ready(app)),
        Route::Live | Route::V2Live => Ok(info::live()),
        Route::Metrics => Ok(info::metrics(app, Extent::Whole)),
        Route::MetricsLoad => Ok(info::metrics(app, Extent::Load)),
        Route::Loads => Ok(json(StatusCode::OK, load::loads(app, unix_s()).to_string())),
        Route::Version => Ok(info::version(app)),
        Route::Embeddings => Err(Refusal::NoEmbeddings),
        Route::OpenApi => Ok(info::openapi(app)),
        Route::Docs => Ok(info::docs(app, request.headers())),
        Route::Page | Route::PageFile => info::page_file(request.uri().path(), request.headers()),
        Route::Stats => Ok(info::stats(app)),
        Route::DebugSlow => Ok(info::debug_slow(app)),
        Route::DebugTrace => generate::trace(app, request).await,
        Route::StartProfile | Route::StopProfile if !app.settings.profiled => {
            let reason = "the service was not started with --profile; /debug/trace needs no profiler";
            Err(Fault::new(FaultCode::InvalidValue, reason).into())
        }
        Route::StartProfile => orders::serve(app, Admin::StartProfile).await,
        Route::StopProfile => orders::serve(app, Admin::StopProfile).await,
        Route::ResetPrefixCache => orders::serve(app, Admin::ClearPrefixCache).await,
        Route::Unknown => Err(Refusal::NoRoute(String::new())),
    }
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
