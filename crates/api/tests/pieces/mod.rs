//! What a model says, cut into pieces.

use bytes::BytesMut;
use pinion_api::{AnswerWriter, Said};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Reasoning(String),
    Text(String),
    Call(String),
    Arguments(String),
}

/// Letters that an answer has to escape.
pub(crate) const TEXT: &str = "[a\"\\\\é\n\u{1}]{0,3}";

/// Up to four parts, each reasoning, text or one of `calls`.
pub(crate) fn pieces(calls: impl Strategy<Value = Vec<Piece>>) -> impl Strategy<Value = Vec<Piece>> {
    let part = prop_oneof![
        prop::collection::vec(TEXT.prop_map(Piece::Reasoning), 0..3),
        prop::collection::vec(TEXT.prop_map(Piece::Text), 0..3),
        calls,
    ];
    prop::collection::vec(part, 0..5).prop_map(|parts| parts.concat())
}

/// Has all of them worded.
pub(crate) fn say(pieces: &[Piece], writer: &mut AnswerWriter, out: &mut BytesMut) {
    for (index, piece) in pieces.iter().enumerate() {
        let id = format!("call_{index}");
        let said = match piece {
            Piece::Reasoning(text) => Said::Reasoning(text),
            Piece::Text(text) => Said::Text(text),
            Piece::Call(name) => Said::Call { id: &id, name },
            Piece::Arguments(text) => Said::Arguments(text),
        };
        writer.say(said, out);
    }
}
