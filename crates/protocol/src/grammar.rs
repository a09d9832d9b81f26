//! What a text must look like, where a request says so: a grammar as its client wrote it.
//!
//! Carried with [`crate::Sampling`] from the frontend to the engine. The tokenizer compiles it first, under limits, and
//! refuses what does not pass; the engine compiles it again. No role on the way reads it.

use crate::limits::GRAMMAR_BYTES_MAX;
use crate::wire::{Cursor, Malformed};
use std::sync::Arc;

/// What stands behind each item and each key of JSON along a grammar that does not say it, as Python's json.dumps
/// writes it. There is no other white space.
pub const JSON_SEPARATORS: (&str, &str) = (", ", ": ");

/// How a grammar's text is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum GrammarKind {
    /// Any JSON object; the text is empty.
    JsonObject = 1,
    /// A JSON schema.
    JsonSchema = 2,
    /// A regular expression, in the dialect of Rust's `regex`, that the whole text matches.
    Regex = 3,
    /// A JSON array of strings, of which the text is one.
    Choice = 4,
    /// A Lark grammar, in the dialect of llguidance, with the rule `start`.
    Lark = 5,
    /// Which tokens may be drawn: a JSON object of `allowed`, a list of the only ids, and `banned`, a list of sequences
    /// of ids. A frontend has `words` in place of `banned`, and the tokenizer encodes them.
    Tokens = 6,
}

impl GrammarKind {
    fn from_word(word: u32) -> Option<GrammarKind> {
        use GrammarKind::*;
        [JsonObject, JsonSchema, Regex, Choice, Lark, Tokens].into_iter().find(|kind| *kind as u32 == word)
    }
}

/// The field of the API that a grammar came from, to be named when it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum GrammarField {
    /// OpenAI's.
    ResponseFormat = 1,
    /// vLLM's, and so are those that follow.
    GuidedJson = 2,
    /// A regular expression.
    GuidedRegex = 3,
    /// Some strings.
    GuidedChoice = 4,
    /// Lark.
    GuidedGrammar = 5,
    /// Any of them.
    StructuredOutputs = 6,
    /// The schemas of tools whose call is forced.
    Tools = 7,
    /// Token ids.
    AllowedTokenIds = 8,
    /// Words that must not be written.
    BadWords = 9,
}

impl GrammarField {
    /// In the API's spelling.
    pub fn name(self) -> &'static str {
        match self {
            GrammarField::ResponseFormat => "response_format",
            GrammarField::GuidedJson => "guided_json",
            GrammarField::GuidedRegex => "guided_regex",
            GrammarField::GuidedChoice => "guided_choice",
            GrammarField::GuidedGrammar => "guided_grammar",
            GrammarField::StructuredOutputs => "structured_outputs",
            GrammarField::Tools => "tools",
            GrammarField::AllowedTokenIds => "allowed_token_ids",
            GrammarField::BadWords => "bad_words",
        }
    }

    fn from_word(word: u32) -> Option<GrammarField> {
        use GrammarField::*;
        let all = [
            ResponseFormat,
            GuidedJson,
            GuidedRegex,
            GuidedChoice,
            GuidedGrammar,
            StructuredOutputs,
            Tools,
            AllowedTokenIds,
            BadWords,
        ];
        all.into_iter().find(|field| *field as u32 == word)
    }
}

/// A grammar that the generated text must follow. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grammar {
    /// How to read the text.
    pub kind: GrammarKind,
    /// Where it came from.
    pub field: GrammarField,
    /// At most [`GRAMMAR_BYTES_MAX`] bytes.
    pub text: Arc<str>,
}

/// Kind and field in one word; 0 is "no grammar", and no kind is 0.
pub(crate) fn tag_of(grammar: Option<&Grammar>) -> u32 {
    grammar.map_or(0, |grammar| grammar.kind as u32 | (grammar.field as u32) << 8)
}

/// Takes what [`tag_of`] and the text's length announce. Errors: an unknown tag, a text too long, cut short or not
/// UTF-8.
pub(crate) fn decode(tag: u32, len: u32, cursor: &mut Cursor<'_>) -> Result<Option<Grammar>, Malformed> {
    if tag == 0 && len == 0 {
        return Ok(None);
    }
    let kind = GrammarKind::from_word(tag & 0xff).ok_or(Malformed("grammar kind"))?;
    let field = GrammarField::from_word(tag >> 8).ok_or(Malformed("grammar field"))?;
    if len as usize > GRAMMAR_BYTES_MAX {
        return Err(Malformed("grammar length"));
    }
    let text = cursor.text(len as usize, "grammar text")?.into();
    Ok(Some(Grammar { kind, field, text }))
}
