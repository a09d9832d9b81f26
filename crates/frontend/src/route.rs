//! The paths of the service: a closed enum, so that metrics by route stay bounded, and one table of what holds for
//! each. A route that the table does not call open needs a key where there is one.

use crate::ui;
use hyper::Method;

/// The path of one model begins with it.
const MODEL_PREFIX: &str = "/v1/models/";
/// The path of a response that is kept begins with it.
const RESPONSE_PREFIX: &str = "/v1/responses/";

/// A path that exists, with its other names, or the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Route {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
    /// `/generate`.
    Generate,
    /// `/tokenize`.
    Tokenize,
    /// `/detokenize`.
    Detokenize,
    /// `/v1/models`.
    Models,
    /// `/v1/models/{id}`.
    Model,
    /// `/health`.
    Health,
    /// `/ready`.
    Ready,
    /// `/live`.
    Live,
    /// `/metrics`.
    Metrics,
    /// `/version`.
    Version,
    /// `/v1/embeddings`.
    Embeddings,
    /// `/openapi.json`.
    OpenApi,
    /// `/docs`.
    Docs,
    /// `/debug/slow`.
    DebugSlow,
    /// `/reset_prefix_cache`.
    ResetPrefixCache,
    /// `/debug/trace`.
    DebugTrace,
    /// `/start_profile`.
    StartProfile,
    /// `/stop_profile`.
    StopProfile,
    /// `/metrics/load`.
    MetricsLoad,
    /// `/v1/loads`.
    Loads,
    /// `/ping`.
    Ping,
    /// `/v2/health/live`.
    V2Live,
    /// `/v2/health/ready`.
    V2Ready,
    /// `/v1/messages`.
    Messages,
    /// `/v1/messages/count_tokens`.
    CountTokens,
    /// `/`: the page for people.
    Page,
    /// `/ui/{file}`: what the pages load.
    PageFile,
    /// `/stats`.
    Stats,
    /// `/v1/responses`.
    Responses,
    /// `/v1/responses/{id}`.
    StoredResponse,
    /// `/v1/responses/{id}/input_items`.
    InputItems,
    /// `/v1/responses/{id}/cancel`.
    CancelResponse,
    /// `/v1/rerank`.
    Rerank,
    /// `/v1/score`.
    Score,
    /// `/pooling`.
    Pooling,
    /// `/classify`.
    Classify,
    /// `/props`.
    Props,
    /// `/apply-template`.
    ApplyTemplate,
    /// `/v1/completions/render`.
    RenderCompletions,
    /// `/v1/chat/completions/render`.
    RenderChat,
    /// `/invocations`.
    Invocations,
    /// Everything else.
    Unknown,
}

/// What a route is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// To generate text.
    Generate,
    /// To ask for something else of the model or the service.
    Ask,
    /// To look at the service, without a key.
    Watch,
    /// A page for people or a part of one, without a key; `--no-ui` takes it away.
    Page,
    /// For operators: changes how the service runs or looks.
    Operate,
}

struct Entry {
    route: Route,
    purpose: Purpose,
    posts: bool,
    /// The first is the route's name.
    paths: &'static [&'static str],
}

const fn get(route: Route, purpose: Purpose, paths: &'static [&'static str]) -> Entry {
    Entry { route, purpose, posts: false, paths }
}

const fn post(route: Route, purpose: Purpose, paths: &'static [&'static str]) -> Entry {
    Entry { route, purpose, posts: true, paths }
}

const COUNT: usize = Route::Unknown as usize + 1;

/// In the order of the enum. Paths with braces stand for those that [`Route::of`] takes apart.
const TABLE: [Entry; COUNT] = [
    post(Route::Completions, Purpose::Generate, &["/v1/completions"]),
    post(Route::Chat, Purpose::Generate, &["/v1/chat/completions"]),
    post(Route::Generate, Purpose::Generate, &["/generate"]),
    post(Route::Tokenize, Purpose::Ask, &["/tokenize"]),
    post(Route::Detokenize, Purpose::Ask, &["/detokenize"]),
    get(Route::Models, Purpose::Ask, &["/v1/models"]),
    get(Route::Model, Purpose::Ask, &["/v1/models/{id}"]),
    get(Route::Health, Purpose::Watch, &["/health"]),
    get(Route::Ready, Purpose::Watch, &["/ready"]),
    get(Route::Live, Purpose::Watch, &["/live"]),
    get(Route::Metrics, Purpose::Watch, &["/metrics"]),
    get(Route::Version, Purpose::Watch, &["/version"]),
    post(Route::Embeddings, Purpose::Ask, &["/v1/embeddings"]),
    get(Route::OpenApi, Purpose::Ask, &["/openapi.json"]),
    get(Route::Docs, Purpose::Page, &["/docs"]),
    get(Route::DebugSlow, Purpose::Ask, &["/debug/slow"]),
    post(Route::ResetPrefixCache, Purpose::Operate, &["/reset_prefix_cache"]),
    post(Route::DebugTrace, Purpose::Operate, &["/debug/trace"]),
    post(Route::StartProfile, Purpose::Operate, &["/start_profile"]),
    post(Route::StopProfile, Purpose::Operate, &["/stop_profile"]),
    get(Route::MetricsLoad, Purpose::Watch, &["/metrics/load"]),
    get(Route::Loads, Purpose::Watch, &["/v1/loads"]),
    get(Route::Ping, Purpose::Watch, &["/ping"]),
    get(Route::V2Live, Purpose::Watch, &["/v2/health/live"]),
    get(Route::V2Ready, Purpose::Watch, &["/v2/health/ready"]),
    post(Route::Messages, Purpose::Generate, &["/v1/messages"]),
    post(Route::CountTokens, Purpose::Ask, &["/v1/messages/count_tokens"]),
    get(Route::Page, Purpose::Page, &["/"]),
    get(Route::PageFile, Purpose::Page, &["/ui/{file}"]),
    get(Route::Stats, Purpose::Watch, &["/stats"]),
    post(Route::Responses, Purpose::Generate, &["/v1/responses"]),
    get(Route::StoredResponse, Purpose::Ask, &["/v1/responses/{id}"]),
    get(Route::InputItems, Purpose::Ask, &["/v1/responses/{id}/input_items"]),
    post(Route::CancelResponse, Purpose::Ask, &["/v1/responses/{id}/cancel"]),
    post(Route::Rerank, Purpose::Ask, &["/v1/rerank", "/rerank", "/v2/rerank"]),
    post(Route::Score, Purpose::Ask, &["/v1/score", "/score"]),
    post(Route::Pooling, Purpose::Ask, &["/pooling"]),
    post(Route::Classify, Purpose::Ask, &["/classify"]),
    get(Route::Props, Purpose::Ask, &["/props"]),
    post(Route::ApplyTemplate, Purpose::Ask, &["/apply-template"]),
    post(Route::RenderCompletions, Purpose::Ask, &["/v1/completions/render"]),
    post(Route::RenderChat, Purpose::Ask, &["/v1/chat/completions/render"]),
    post(Route::Invocations, Purpose::Generate, &["/invocations"]),
    get(Route::Unknown, Purpose::Ask, &["unknown"]),
];

static ENTRIES: [Entry; COUNT] = TABLE;

impl Route {
    /// All, in the order of their numbers.
    pub const ALL: [Route; COUNT] = {
        let mut all = [Route::Unknown; COUNT];
        let mut at = 0;
        while at < COUNT {
            assert!(TABLE[at].route as usize == at, "the table has the order of the enum");
            all[at] = TABLE[at].route;
            at += 1;
        }
        all
    };

    fn entry(self) -> &'static Entry {
        &ENTRIES[self as usize]
    }

    /// The route of a path.
    pub fn of(path: &str) -> Route {
        let named = |entry: &&Entry| entry.paths.contains(&path) && !path.contains('{');
        if let Some(entry) = ENTRIES.iter().find(named) {
            return entry.route;
        }
        match path {
            _ if ui::at(path).is_some() => Route::PageFile,
            _ if path.len() > MODEL_PREFIX.len() && path.starts_with(MODEL_PREFIX) => Route::Model,
            _ => match kept_response(path) {
                Some((_, "")) => Route::StoredResponse,
                Some((_, "/input_items")) => Route::InputItems,
                Some((_, "/cancel")) => Route::CancelResponse,
                Some(_) | None => Route::Unknown,
            },
        }
    }

    /// A path that exists, for one that does not: `/v1` is missing or stands twice, or there is a slash too many.
    pub(crate) fn meant_by(path: &str) -> Option<String> {
        let path = path.trim_end_matches('/').replace("//", "/");
        let shorter = path.strip_prefix("/v1").unwrap_or_default().to_owned();
        let near = [format!("/v1{path}"), shorter, path];
        near.into_iter().find(|near| {
            let route = Route::of(near);
            route != Route::Unknown && !route.is_page()
        })
    }

    /// What stands in a path of [`Route::Model`] behind the prefix.
    pub(crate) fn model_in(path: &str) -> &str {
        path.strip_prefix(MODEL_PREFIX).unwrap_or_default()
    }

    /// Label value, and the name in the log.
    pub fn name(self) -> &'static str {
        self.paths()[0]
    }

    /// All paths that lead to it.
    pub fn paths(self) -> &'static [&'static str] {
        self.entry().paths
    }

    /// Whether it asks for generated text.
    pub fn generates(self) -> bool {
        self.entry().purpose == Purpose::Generate
    }

    /// Whether it is for the model: to generate text, or to make something of texts.
    pub fn asks_model(self) -> bool {
        self.generates() || matches!(self, Route::Embeddings | Route::Rerank | Route::Score)
    }

    /// Whether it answers without a key.
    pub fn is_public(self) -> bool {
        self.entry().purpose == Purpose::Watch || self.is_page()
    }

    /// Whether it is a page for people or a part of one, which `--no-ui` takes away.
    pub fn is_page(self) -> bool {
        self.entry().purpose == Purpose::Page
    }

    /// Whether it is for operators and changes how the service runs or looks.
    pub fn is_admin(self) -> bool {
        self.entry().purpose == Purpose::Operate
    }

    /// The methods that the route takes, for `Allow`.
    pub(crate) fn allowed(self) -> &'static str {
        match self {
            Route::StoredResponse => "GET, HEAD, DELETE",
            _ if self.entry().posts => "POST",
            _ => "GET, HEAD",
        }
    }

    /// Whether the route takes this method. HEAD is GET up to the head: hyper leaves the body out.
    pub fn takes(self, method: &Method) -> bool {
        let deletes = self == Route::StoredResponse && *method == Method::DELETE;
        deletes || self.method() == *method || (self.method() == Method::GET && *method == Method::HEAD)
    }

    /// The name of [`Route::method`].
    pub(crate) fn method_name(self) -> &'static str {
        if self.entry().posts { "POST" } else { "GET" }
    }

    /// The methods that a page may be told of.
    pub(crate) fn page_methods(self) -> &'static str {
        if self == Route::StoredResponse { "GET, DELETE" } else { self.method_name() }
    }

    /// The first method that the route has; the others are HEAD, and DELETE of a response.
    pub fn method(self) -> Method {
        if self.entry().posts { Method::POST } else { Method::GET }
    }
}

/// The id in a path below `/v1/responses/`, and what follows it.
pub(crate) fn kept_response(path: &str) -> Option<(&str, &str)> {
    let path =
        path.strip_prefix(RESPONSE_PREFIX).filter(|rest| !rest.is_empty() && !rest.starts_with('/'))?;
    Some(path.split_at(path.find('/').unwrap_or(path.len())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_wrong_base_url_is_told_the_right_path() {
        for (path, meant) in [
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/models/a/b", Some("/v1/models/a/b")),
            ("/v1/v1/messages", Some("/v1/messages")),
            ("/v1/tokenize", Some("/tokenize")),
            ("/v1/chat/completions/", Some("/v1/chat/completions")),
            ("/v1//chat/completions", Some("/v1/chat/completions")),
            ("//", None),
            ("/v1/", None),
            ("/v1/docs", None),
            ("/", None),
            ("/api/chat", None),
        ] {
            assert_eq!(Route::meant_by(path).as_deref(), meant, "{path}");
        }
    }

    #[test]
    fn every_path_leads_to_its_route_and_to_no_other() {
        let mut seen = BTreeSet::new();
        for route in Route::ALL {
            for path in route.paths() {
                assert!(seen.insert(path), "{path} stands twice");
                let real = path.replace("{id}", "x").replace("{file}", "main.js");
                assert!(route == Route::Unknown || Route::of(&real) == route, "{path}");
            }
        }
        for path in ["/ui/{file}", "/v1/models/", "/v1/responses/", "/v1/responses/x/y", "/props/", ""] {
            assert_eq!(Route::of(path), Route::Unknown, "{path}");
        }
    }
}
