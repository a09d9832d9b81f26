//! The vector of a request whose answer is one.

use super::{Form, Outcome};
use crate::answers::openai::Usage;
use pinion_protocol::{Fault, FaultCode};

impl Form {
    /// Keeps the vector of the prompt. False: none was asked for, or it has another width than the model's vectors.
    pub(super) fn keep_vector(&mut self, vector: Vec<f32>) -> bool {
        match self {
            Form::Vector { width, values } if vector.len() == *width as usize => *values = Some(vector),
            Form::Vector { .. } | Form::Events(_) | Form::PlainStream | Form::Whole | Form::Translated(_) => {
                return false;
            }
        }
        true
    }

    /// The vector that came.
    pub(super) fn take_vector(&mut self) -> Option<Vec<f32>> {
        match self {
            Form::Vector { values, .. } => values.take(),
            Form::Events(_) | Form::PlainStream | Form::Whole | Form::Translated(_) => None,
        }
    }
}

/// The outcome of a text whose request has ended; its vector came ahead of that, if it came.
pub(super) fn outcome(came: bool, usage: Usage) -> Outcome {
    match came {
        true => Outcome::Vector(usage.prompt_tokens),
        false => Outcome::Failed(Fault::new(FaultCode::Internal, "the engine gave no vector for this text")),
    }
}
