//! How an answer leaves.

use crate::answers::sse;
use pinion_api::AnswerWriter;

/// How the answer leaves.
pub enum Form {
    /// Server-sent events.
    Events(sse::Writer),
    /// The bare text as it comes.
    PlainStream,
    /// All at once when it is complete.
    Whole,
    /// A vector instead of text.
    Vector {
        /// Its numbers.
        width: u32,
        /// Here once they came, until they are taken.
        values: Option<Vec<f32>>,
    },
    /// As another API than OpenAI's completions and chats words it, as a stream or whole.
    Translated(Box<AnswerWriter>),
}

impl Form {
    /// Whether the text is taken apart as it comes, and not once it is complete.
    pub(super) fn takes_events(&self) -> bool {
        matches!(self, Form::Events(_) | Form::Translated(_))
    }

    /// Whether the client gets bytes before the text is complete.
    pub(super) fn streams(&self) -> bool {
        match self {
            Form::Events(_) | Form::PlainStream => true,
            Form::Translated(writer) => writer.streams(),
            Form::Whole | Form::Vector { .. } => false,
        }
    }
}
