//! The paths of the API: a closed enum, so that metrics by route stay bounded.

use crate::ui;
use hyper::Method;

/// The path of one model begins with it.
pub(crate) const MODEL_PREFIX: &str = "/v1/models/";
/// The path of a response that is kept begins with it.
const RESPONSE_PREFIX: &str = "/v1/responses/";

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
            _ if ui::at(path).is_some() => Route::PageFile,
            _ if path.len() > MODEL_PREFIX.len() && path.starts_with(MODEL_PREFIX) => Route::Model,
            _ => match kept_response(path) {
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
    pub(crate) fn allowed(self) -> &'static str {
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

/// The id in a path below `/v1/responses/`, and what follows it.
pub(crate) fn kept_response(path: &str) -> Option<(&str, &str)> {
    let path =
        path.strip_prefix(RESPONSE_PREFIX).filter(|rest| !rest.is_empty() && !rest.starts_with('/'))?;
    Some(path.split_at(path.find('/').unwrap_or(path.len())))
}
