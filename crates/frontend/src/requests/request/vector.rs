//! The vector of a request whose answer is one.

use super::{Form, Next, Outcome, Request};
use crate::answers::openai::Usage;
use pinion_protocol::{Fault, FaultCode};

impl Request {
    /// Takes the vector of the prompt. A gap: none was asked for, or it has another width than the model's vectors.
    pub fn pool(&mut self, values: Vec<f32>) -> Next {
        match &mut self.form {
            Form::Vector { width, values: kept } if values.len() == *width as usize => *kept = Some(values),
            Form::Vector { .. } | Form::Events(_) | Form::PlainStream | Form::Whole | Form::Translated(_) => {
                return Next::Gap;
            }
        }
        Next::Continue
    }

    /// The vector, for the answer.
    pub fn take_vector(&mut self) -> Option<Vec<f32>> {
        match &mut self.form {
            Form::Vector { values, .. } => values.take(),
            Form::Events(_) | Form::PlainStream | Form::Whole | Form::Translated(_) => None,
        }
    }

    /// The engine that made it is gone, or the request begins anew.
    pub(super) fn forget_vector(&mut self) {
        drop(self.take_vector());
    }
}

/// The outcome of a text whose request has ended; its vector came ahead of that, if it came.
pub(super) fn outcome(came: bool, usage: Usage) -> Outcome {
    match came {
        true => Outcome::Vector(usage.prompt_tokens),
        false => Outcome::Failed(Fault::new(FaultCode::Internal, "the engine gave no vector for this text")),
    }
}
