//! What clients read: answers, their chunks and errors as bytes, and what is found in generated text on the way.

pub(crate) mod best_of;
pub mod calls;
pub mod errors;
pub mod extras;
pub mod openai;
pub mod prompt_part;
pub mod sse;
pub mod thoughts;
pub mod whole;
