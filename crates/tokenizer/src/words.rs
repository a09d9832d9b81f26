//! Words that must not be written, as the sequences of tokens that spell them.

use pinion_protocol::limits::GRAMMAR_BYTES_MAX;
use pinion_protocol::{Fault, Grammar, GrammarKind};
use pinion_text::TextCodec;
use serde_json::Value;

/// The grammar with `banned` in place of `words`, if it has those; else as it is.
///
/// # Errors
/// A word that has no tokens, or more than fit.
pub(crate) fn encoded(codec: &TextCodec, grammar: Grammar) -> Result<Grammar, Fault> {
    if grammar.kind != GrammarKind::Tokens {
        return Ok(grammar);
    }
    let name = grammar.field.name();
    let wrong = |reason: &str| Fault::field(name, format!("{name} {reason}"));
    let mut rules: Value =
        serde_json::from_str(&grammar.text).map_err(|_| wrong("is not what a frontend sends"))?;
    let Some(Value::Array(words)) = rules.as_object_mut().and_then(|rules| rules.remove("words")) else {
        return Ok(grammar);
    };
    let mut banned = Vec::with_capacity(2 * words.len());
    for word in words.iter().filter_map(Value::as_str) {
        for ids in spellings(codec, word) {
            if ids.is_empty() {
                return Err(wrong("has a word that this model's tokenizer does not know"));
            }
            banned.push(ids);
        }
    }
    rules["banned"] = banned.into();
    let text = rules.to_string();
    if text.len() > GRAMMAR_BYTES_MAX {
        return Err(wrong("has too many tokens"));
    }
    Ok(Grammar { text: text.into(), ..grammar })
}

/// How a word is spelled at the beginning of a text and behind a space, as in vLLM: the second only where a token of
/// its own begins it.
fn spellings(codec: &TextCodec, word: &str) -> Vec<Vec<u32>> {
    let word = word.trim_start_matches(' ');
    let ids = |text: &str| codec.encode(text, text.len() + 1).unwrap_or_default();
    let (plain, spaced) = (ids(word), ids(&format!(" {word}")));
    let is_new = spaced.len() == plain.len() && spaced.first() != plain.first();
    if is_new { vec![plain, spaced] } else { vec![plain] }
}
