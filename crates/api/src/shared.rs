//! Fields that mean the same in a chat, whichever API a body is of.

use crate::object::Object;
use serde_json::{Map, Value};

/// What tunes an answer, in every API.
const TUNING: [&str; 17] = [
    "model",
    "stream",
    "top_k",
    "min_p",
    "seed",
    "min_tokens",
    "ignore_eos",
    "repetition_penalty",
    "logit_bias",
    "stop_token_ids",
    "priority",
    "chat_template_kwargs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
];

/// Moves what tunes an answer, and the members that the API has beside it, from a body into its chat.
pub(crate) fn move_shared(body: &mut Object, beside: &[&str], chat: &mut Map<String, Value>) {
    for name in TUNING.iter().chain(beside) {
        if let Some(value) = body.take(name) {
            chat.insert((*name).to_owned(), value);
        }
    }
}
