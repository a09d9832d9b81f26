//! Operating errors as values: what went wrong, on which side, in which field, and what to do about it.

use serde::{Deserialize, Serialize};

/// The side that must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Blame {
    /// The request is wrong; sending it again gives the same answer.
    Client,
    /// Too much work right now; try again later.
    Overload,
    /// A role died or stopped; try again.
    Engine,
    /// Our own fault.
    Bug,
}

/// What went wrong, closed so that every receiver handles every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u32)]
pub enum FaultCode {
    /// A field is missing, of the wrong type or out of range.
    InvalidValue = 1,
    /// The prompt, or prompt plus `max_tokens`, does not fit the context.
    ContextLengthExceeded = 2,
    /// The model name is not the served one.
    ModelNotFound = 3,
    /// All request slots are taken.
    TooManyRequests = 4,
    /// The body is over its limit.
    BodyTooLarge = 5,
    /// A role that held the request died.
    RoleRestarted = 6,
    /// The service is draining or a role is down.
    Unavailable = 7,
    /// The model gave a non-finite number for this request.
    NonFinite = 8,
    /// The reader was too slow and its buffer reached the bound.
    SlowReader = 9,
    /// A record or state that should not exist.
    Internal = 10,
    /// The grammar that the text must follow could not be followed any further.
    GrammarFailed = 11,
}

impl FaultCode {
    /// The code with this number.
    pub fn from_word(word: u32) -> Option<FaultCode> {
        use FaultCode::*;
        [
            InvalidValue,
            ContextLengthExceeded,
            ModelNotFound,
            TooManyRequests,
            BodyTooLarge,
            RoleRestarted,
            Unavailable,
            NonFinite,
            SlowReader,
            Internal,
            GrammarFailed,
        ]
        .into_iter()
        .find(|c| *c as u32 == word)
    }

    /// The side that must act on it.
    pub fn blame(self) -> Blame {
        match self {
            FaultCode::InvalidValue
            | FaultCode::ContextLengthExceeded
            | FaultCode::ModelNotFound
            | FaultCode::BodyTooLarge
            | FaultCode::SlowReader
            | FaultCode::GrammarFailed => Blame::Client,
            FaultCode::TooManyRequests => Blame::Overload,
            FaultCode::RoleRestarted | FaultCode::Unavailable => Blame::Engine,
            FaultCode::NonFinite | FaultCode::Internal => Blame::Bug,
        }
    }
}

/// One operating error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// What.
    pub code: FaultCode,
    /// The request field at fault, in the API's spelling.
    pub param: Option<String>,
    /// One sentence for the reader.
    pub message: String,
}

impl Fault {
    /// A fault of the field `param`.
    pub fn field(param: &str, message: impl Into<String>) -> Fault {
        Fault { code: FaultCode::InvalidValue, param: Some(param.to_owned()), message: message.into() }
    }

    /// A fault that no single field causes.
    pub fn new(code: FaultCode, message: impl Into<String>) -> Fault {
        Fault { code, param: None, message: message.into() }
    }

    /// The prompt in the field `param` has no token.
    pub fn empty_prompt(param: &str) -> Fault {
        Fault::field(
            param,
            format!("{param} must not be empty: the model needs at least one token to continue"),
        )
    }

    /// OpenAI's words for a prompt of the field `param` that does not fit the `context` with an answer of `max_tokens`.
    pub fn past_context(param: &str, prompt_tokens: u32, max_tokens: u32, context: u32) -> Fault {
        let total = u64::from(prompt_tokens) + u64::from(max_tokens);
        let message = format!(
            "This model's maximum context length is {context} tokens. However, you requested {total} tokens \
             ({prompt_tokens} in the {param}, {max_tokens} in the completion). Please reduce the length of the {param} or \
             of the completion."
        );
        Fault { code: FaultCode::ContextLengthExceeded, param: Some(param.to_owned()), message }
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.param {
            Some(param) => write!(f, "{param}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl std::error::Error for Fault {}
