//! The one place where a refusal becomes a status, a type, a code and a body in OpenAI's error shape.
//!
//! Start at [`HttpError::from`]. Nothing else in this crate chooses a status for an error.

use crate::limits::{HEADER_BYTES_MAX, HEADERS_MAX, QUOTED_BYTES_MAX, RETRY_AFTER_S};
use pinion_api::{Failure, messages, responses};
use pinion_protocol::{Blame, Fault, FaultCode};
use serde::Serialize;

/// Why a request is not answered with what it asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// An operating error from any role.
    Fault(Fault),
    /// No such path.
    NoRoute {
        /// It.
        path: String,
        /// One that exists and that clients with another base URL may mean.
        meant: Option<String>,
    },
    /// The path exists, the method is not for it.
    Method {
        /// What is allowed there.
        allow: &'static str,
    },
    /// The route needs a key.
    Unauthorized {
        /// Whether one was shown.
        shown: bool,
    },
    /// No such response is kept.
    NoResponse(String),
    /// A response goes on from one that is not kept.
    NoPrevious(String),
    /// The served model generates text and does not pool.
    NotPooling {
        /// Its name.
        model: String,
        /// What the route would give.
        gives: &'static str,
        /// For programs.
        code: &'static str,
        /// What to do instead.
        hint: &'static str,
    },
    /// The served model pools and generates no text; its name.
    NotGenerating(String),
    /// The service has no such name.
    Host(String),
    /// A page of another origin asks for what changes something.
    Origin {
        /// The route is an operator's.
        admin: bool,
    },
    /// The head can be understood in two ways.
    Framing(&'static str),
    /// hyper cannot read the head.
    Head {
        /// The status that it gives.
        status: u16,
    },
    /// `CONNECT`.
    Connect,
    /// An `Expect` that is not `100-continue`.
    Expectation,
    /// A compressed body.
    Encoding,
    /// No connection can be held any more.
    NoRoom,
    /// The body did not arrive in time.
    BodyTimeout,
    /// The client closed or broke the framing within the body.
    BodyBroken,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Refusal::Fault(fault)
    }
}

/// A refusal as HTTP shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpError {
    /// HTTP status.
    pub status: u16,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// OpenAI's `code`.
    pub code: Option<&'static str>,
    /// The field at fault.
    pub param: Option<String>,
    /// For a human reader.
    pub message: String,
    /// Seconds for `Retry-After`.
    pub retry_after_s: Option<u32>,
    /// For `Allow`.
    pub allow: Option<&'static str>,
    /// For `Accept-Encoding`.
    pub accept_encoding: Option<&'static str>,
    /// Clients that would retry the status are told not to.
    pub is_final: bool,
    /// The connection cannot be used further.
    pub close: bool,
}

/// The shape in which clients of an API expect its errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `{"error": {...}}`.
    OpenAi,
    /// The same, for bodies that were translated.
    Responses,
    /// `{"type": "error", "error": {...}}`.
    Anthropic,
}

impl Dialect {
    /// The dialect of a path, whether it exists or not.
    pub fn of(path: &str) -> Dialect {
        let is_below =
            |root| path.strip_prefix(root).is_some_and(|rest: &str| rest.is_empty() || rest.starts_with('/'));
        match path {
            _ if is_below("/v1/messages") => Dialect::Anthropic,
            _ if is_below("/v1/responses") => Dialect::Responses,
            _ => Dialect::OpenAi,
        }
    }

    /// An error's body. `label` is the request's id in the response's head.
    pub fn body(self, error: &HttpError, label: &str) -> Vec<u8> {
        match self {
            Dialect::OpenAi => error.body(),
            Dialect::Responses => {
                let (param, message) = responses::renamed(error.param.as_deref(), &error.message);
                error.body_with(param.as_deref(), &message)
            }
            Dialect::Anthropic => messages::error_body(&error.failure(), Some(label)),
        }
    }
}

impl From<Refusal> for HttpError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Fault(fault) => HttpError::from(fault),
            Refusal::NoRoute { path, meant } => no_route(&path, meant.as_deref()),
            Refusal::Method { allow } => HttpError {
                allow: Some(allow),
                ..HttpError::of_client(
                    405,
                    Some("method_not_allowed"),
                    format!("this path allows only {allow}"),
                )
            },
            Refusal::Unauthorized { shown } => {
                let message = if shown {
                    "the API key is not one of this service's"
                } else {
                    "this service needs an API key: send it once, as `Authorization: Bearer KEY` or `x-api-key: KEY`"
                };
                HttpError::of_client(401, Some("invalid_api_key"), message.into())
            }
            Refusal::NoResponse(id) => HttpError::of_client(
                404,
                Some("response_not_found"),
                format!("there is no response \"{id}\" here, or it is kept no longer"),
            ),
            Refusal::NoPrevious(id) => no_previous(&id),
            Refusal::NotPooling { model, gives, code, hint } => not_pooling(&model, gives, code, hint),
            Refusal::NotGenerating(model) => not_generating(&model),
            Refusal::Host(name) => HttpError::of_client(403, Some("host_not_allowed"), host_message(&name)),
            Refusal::Origin { admin } => foreign_page(admin),
            Refusal::Framing(rule) => HttpError::of_head(400, "malformed_head", rule.into()),
            Refusal::Head { status } => HttpError::of_head(status, "malformed_head", head_message(status)),
            Refusal::Connect => HttpError {
                allow: Some("GET, HEAD, POST, DELETE"),
                ..HttpError::of_head(
                    405,
                    "method_not_allowed",
                    "this is no proxy: CONNECT is not served".into(),
                )
            },
            Refusal::Expectation => {
                HttpError::of_head(417, "expectation_failed", "the only Expect is 100-continue".into())
            }
            Refusal::Encoding => compressed(),
            Refusal::NoRoom => no_room(),
            Refusal::BodyTimeout => HttpError {
                close: true,
                ..HttpError::of_client(
                    408,
                    Some("body_timeout"),
                    "the request body did not arrive in time".into(),
                )
            },
            Refusal::BodyBroken => HttpError {
                close: true,
                ..HttpError::of_client(
                    400,
                    None,
                    "the request body ended early or its framing is broken".into(),
                )
            },
        }
    }
}

impl From<Fault> for HttpError {
    fn from(fault: Fault) -> Self {
        let (status, code) = match fault.code {
            FaultCode::InvalidValue => (400, None),
            FaultCode::ContextLengthExceeded => (400, Some("context_length_exceeded")),
            FaultCode::ModelNotFound => (404, Some("model_not_found")),
            FaultCode::TooManyRequests => (429, Some("rate_limit_exceeded")),
            FaultCode::BodyTooLarge => (413, Some("body_too_large")),
            FaultCode::RoleRestarted => (503, Some("role_restarted")),
            FaultCode::Unavailable => (503, Some("unavailable")),
            FaultCode::NonFinite => (500, Some("non_finite")),
            FaultCode::SlowReader => (408, Some("slow_reader")),
            FaultCode::Internal => (500, Some("internal")),
            FaultCode::GrammarFailed => (400, Some("grammar_failed")),
        };
        let blame = fault.code.blame();
        let kind = match blame {
            Blame::Client => "invalid_request_error",
            Blame::Overload => "rate_limit_error",
            Blame::Engine => "engine_error",
            Blame::Bug => "internal_error",
        };
        HttpError {
            status,
            kind,
            code,
            param: fault.param,
            message: fault.message,
            retry_after_s: matches!(blame, Blame::Overload | Blame::Engine).then_some(RETRY_AFTER_S),
            allow: None,
            accept_encoding: None,
            is_final: false,
            close: fault.code == FaultCode::BodyTooLarge,
        }
    }
}

fn no_route(path: &str, meant: Option<&str>) -> HttpError {
    let message = match meant {
        Some(meant) => format!("unknown request URL: {path}; did you mean {meant}? Then change the base URL"),
        None => format!("unknown request URL: {path}; GET /openapi.json lists what there is"),
    };
    HttpError::of_client(404, Some("unknown_url"), message)
}

fn foreign_page(admin: bool) -> HttpError {
    let way = if admin {
        "call it without a browser, or start the service with --api-key"
    } else {
        "start the service with --cors-origin and the page's origin"
    };
    let message = format!("a web page of another origin may not ask for this: {way}");
    HttpError::of_client(403, Some("origin_not_allowed"), message)
}

fn no_previous(id: &str) -> HttpError {
    let reason = "is not kept here, or is kept no longer; send the items themselves";
    let message = format!("previous_response_id: the response \"{id}\" {reason}");
    let param = Some("previous_response_id".to_owned());
    HttpError { param, ..HttpError::of_client(400, Some("previous_response_not_found"), message) }
}

fn not_pooling(model: &str, gives: &str, code: &'static str, hint: &str) -> HttpError {
    let message = format!("the served model \"{model}\" gives no {gives}; {hint}");
    let param = Some("model".to_owned());
    HttpError { is_final: true, param, ..HttpError::of_client(400, Some(code), message) }
}

fn not_generating(model: &str) -> HttpError {
    let message = format!(
        "the served model \"{model}\" gives vectors for texts and generates no text; /v1/embeddings, /v1/score and \
         /v1/rerank are its routes"
    );
    let param = Some("model".to_owned());
    HttpError { is_final: true, param, ..HttpError::of_client(400, Some("no_generation"), message) }
}

fn head_message(status: u16) -> String {
    match status {
        408 => "the request's head did not arrive in time".to_owned(),
        414 => "the request's target is too long".to_owned(),
        431 => {
            let limits =
                format!("larger than {HEADER_BYTES_MAX} bytes or has more than {HEADERS_MAX} fields");
            format!("the request's head is {limits}")
        }
        _ => "the request's head cannot be read as HTTP/1.1".to_owned(),
    }
}

fn compressed() -> HttpError {
    let message = "compressed bodies are not read: send the JSON without Content-Encoding";
    HttpError {
        accept_encoding: Some("identity"),
        ..HttpError::of_client(415, Some("unsupported_encoding"), message.into())
    }
}

fn no_room() -> HttpError {
    let message = "every connection that this service can hold is in use; try again";
    HttpError {
        kind: "rate_limit_error",
        retry_after_s: Some(RETRY_AFTER_S),
        ..HttpError::of_head(503, "too_many_connections", message.into())
    }
}

fn host_message(name: &str) -> String {
    let name: String = name.chars().take(QUOTED_BYTES_MAX).collect();
    format!(
        "this service is not known as `{name}`; if it should be, start it with --allowed-hosts and that name"
    )
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: ErrorBody<'a>,
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    message: &'a str,
    r#type: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

impl HttpError {
    fn of_client(status: u16, code: Option<&'static str>, message: String) -> HttpError {
        HttpError {
            status,
            kind: "invalid_request_error",
            code,
            param: None,
            message,
            retry_after_s: None,
            allow: None,
            accept_encoding: None,
            is_final: false,
            close: false,
        }
    }

    /// A refusal after which the connection cannot be used.
    fn of_head(status: u16, code: &'static str, message: String) -> HttpError {
        HttpError { close: true, ..HttpError::of_client(status, Some(code), message) }
    }

    /// What an API words by itself.
    pub fn failure(&self) -> Failure<'_> {
        let (param, code) = (self.param.as_deref(), self.code);
        Failure { status: self.status, param, code, message: &self.message }
    }

    /// `{"error": {...}}`.
    pub fn body(&self) -> Vec<u8> {
        self.body_with(self.param.as_deref(), &self.message)
    }

    fn body_with(&self, param: Option<&str>, message: &str) -> Vec<u8> {
        let error = ErrorBody { message, r#type: self.kind, param, code: self.code };
        serde_json::to_vec(&Envelope { error }).expect("four strings always serialise")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The refusal that stands behind this one in a list of all.
    fn next(refusal: &Refusal) -> Option<Refusal> {
        Some(match refusal {
            Refusal::Fault(_) => Refusal::NoRoute { path: String::new(), meant: None },
            Refusal::NoRoute { .. } => Refusal::Method { allow: "" },
            Refusal::Method { .. } => Refusal::Unauthorized { shown: false },
            Refusal::Unauthorized { .. } => Refusal::NoResponse(String::new()),
            Refusal::NoResponse(_) => Refusal::NoPrevious(String::new()),
            Refusal::NoPrevious(_) => {
                Refusal::NotPooling { model: String::new(), gives: "", code: "", hint: "" }
            }
            Refusal::NotPooling { .. } => Refusal::NotGenerating(String::new()),
            Refusal::NotGenerating(_) => Refusal::Host(String::new()),
            Refusal::Host(_) => Refusal::Origin { admin: false },
            Refusal::Origin { .. } => Refusal::Framing(""),
            Refusal::Framing(_) => Refusal::Head { status: 400 },
            Refusal::Head { .. } => Refusal::Connect,
            Refusal::Connect => Refusal::Expectation,
            Refusal::Expectation => Refusal::Encoding,
            Refusal::Encoding => Refusal::NoRoom,
            Refusal::NoRoom => Refusal::BodyTimeout,
            Refusal::BodyTimeout => Refusal::BodyBroken,
            Refusal::BodyBroken => return None,
        })
    }

    /// The statuses of all errors.
    pub(crate) fn statuses() -> BTreeSet<u16> {
        let codes = (0..=u32::from(u8::MAX)).filter_map(FaultCode::from_word);
        let faults = codes.map(|code| Refusal::Fault(Fault::new(code, "why")));
        let heads = [408, 414, 431].map(|status| Refusal::Head { status });
        let others = std::iter::successors(Some(Refusal::NoRoute { path: String::new(), meant: None }), next);
        let all = faults.chain(heads).chain(others);
        all.map(|refusal| HttpError::from(refusal).status).collect()
    }

    #[test]
    fn every_fault_code_has_its_status_and_only_passing_troubles_ask_to_retry() {
        let table = [
            (FaultCode::InvalidValue, 400, "invalid_request_error", false),
            (FaultCode::ContextLengthExceeded, 400, "invalid_request_error", false),
            (FaultCode::ModelNotFound, 404, "invalid_request_error", false),
            (FaultCode::TooManyRequests, 429, "rate_limit_error", true),
            (FaultCode::BodyTooLarge, 413, "invalid_request_error", false),
            (FaultCode::RoleRestarted, 503, "engine_error", true),
            (FaultCode::Unavailable, 503, "engine_error", true),
            (FaultCode::NonFinite, 500, "internal_error", false),
            (FaultCode::SlowReader, 408, "invalid_request_error", false),
            (FaultCode::Internal, 500, "internal_error", false),
            (FaultCode::GrammarFailed, 400, "invalid_request_error", false),
        ];
        for (code, status, kind, retry) in table {
            let error = HttpError::from(Fault::new(code, "why"));
            assert_eq!(
                (error.status, error.kind, error.retry_after_s.is_some()),
                (status, kind, retry),
                "{code:?}"
            );
        }
    }

    #[test]
    fn the_body_has_openai_s_four_members_even_when_they_are_null() {
        let error = HttpError::from(Fault::new(FaultCode::InvalidValue, "a \"quoted\" word"));
        let body: serde_json::Value = serde_json::from_slice(&error.body()).unwrap();
        let expected = serde_json::json!({"error": {"message": "a \"quoted\" word",
            "type": "invalid_request_error", "param": null, "code": null}});
        assert_eq!(body, expected);
    }
}
