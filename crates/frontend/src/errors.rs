//! The one place where a refusal becomes a status, a type, a code and a body in OpenAI's error shape.
//!
//! Start at [`HttpError::from`]. Nothing else in this crate chooses a status for an error.

use crate::limits::RETRY_AFTER_S;
use pinion_protocol::{Blame, Fault, FaultCode};
use serde::Serialize;

/// Why a request is not answered with what it asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// An operating error from any role.
    Fault(Fault),
    /// No such path.
    NoRoute(String),
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
    /// A route of OpenAI's that this service answers with a clear no.
    NotImplemented(&'static str),
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
    /// For the person who reads it.
    pub message: String,
    /// Seconds for `Retry-After`.
    pub retry_after_s: Option<u32>,
    /// For `Allow`.
    pub allow: Option<&'static str>,
    /// The connection cannot be used further.
    pub close: bool,
}

impl From<Refusal> for HttpError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Fault(fault) => HttpError::from(fault),
            Refusal::NoRoute(path) => HttpError::of_client(
                404,
                Some("unknown_url"),
                format!("unknown request URL: {path}; GET /docs lists what there is"),
            ),
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
                    "this service needs an API key: send it once, as `Authorization: Bearer KEY`"
                };
                HttpError::of_client(401, Some("invalid_api_key"), message.into())
            }
            Refusal::NotImplemented(what) => HttpError::of_client(501, Some("not_implemented"), what.into()),
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
            close: fault.code == FaultCode::BodyTooLarge,
        }
    }
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
            close: false,
        }
    }

    /// `{"error": {...}}`.
    pub fn body(&self) -> Vec<u8> {
        let error = ErrorBody {
            message: &self.message,
            r#type: self.kind,
            param: self.param.as_deref(),
            code: self.code,
        };
        serde_json::to_vec(&Envelope { error }).expect("four strings always serialise")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
