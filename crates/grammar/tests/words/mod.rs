//! A small vocabulary in which a text has many spellings, and texts drawn from it at random.

#![allow(dead_code, unreachable_pub)] // each test file includes it and uses its part

use pinion_grammar::{Matcher, Next, Vocabulary, Words};
use pinion_protocol::{Grammar, GrammarField, GrammarKind, StopIds};
use pinion_random::Random;
use std::sync::Arc;

pub const EOS: u32 = 256;

/// Every byte, the end of sequence, and pieces that cross what grammars see as boundaries.
pub fn words() -> Words {
    let mut bytes: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    bytes.push(Vec::new());
    let pieces = [
        "{\"", "\":", "\": \"", "\",", "\"}", "},{", "[]", "{}", "true", "false", "null", " true", "ab",
        "ba", "aa", "bb", "abc", "12", "00", ".5", "-1", "e+", "é", "éa", "\n\n", "  ", "\", \"", "name",
        "yes", "no", "maybe", "\\u00", "日本", "20", "-0", "T1", ":0", "@", "a@b.c", "}}", "]}", "x\"",
        "\\\"", "start", " a", " b", "1}", "0]",
    ];
    bytes.extend(pieces.iter().map(|piece| piece.as_bytes().to_vec()));
    Words { bytes, stop_ids: StopIds::one(EOS), marks: None, drops_first_space: false }
}

pub fn vocabulary() -> Arc<Vocabulary> {
    Vocabulary::new(words()).expect("the words are a vocabulary")
}

pub fn grammar(kind: GrammarKind, text: &str) -> Grammar {
    Grammar { kind, field: GrammarField::GuidedGrammar, text: text.into() }
}

pub fn allowed(bits: &[u32], token: u32) -> bool {
    bits[(token / 32) as usize] >> (token % 32) & 1 == 1
}

/// A text drawn token by token from what the matcher allows, ending where it is complete, where the end is drawn, or
/// after `tokens_max`. Gives the bytes and whether the text ended by itself.
pub fn draw(
    matcher: &mut Matcher,
    words: &Words,
    random: &mut Random,
    tokens_max: usize,
    mut look: impl FnMut(&mut Matcher, &[u32]),
) -> (Vec<u8>, bool) {
    let (mut text, mut bits) = (Vec::new(), Vec::new());
    for _ in 0..tokens_max {
        if matcher.next(&mut bits).expect("a small grammar is never too complex") == Next::Complete {
            return (text, true);
        }
        look(matcher, &bits);
        let mut all: Vec<u32> =
            (0..words.bytes.len() as u32).filter(|token| allowed(&bits, *token)).collect();
        // The end is drawn often, or texts would hardly ever be whole.
        if all.contains(&EOS) && random.below(3) == 0 {
            all = vec![EOS];
        }
        let token = all[random.below(all.len())];
        if token == EOS {
            return (text, true);
        }
        matcher.advance(token).expect("an allowed token may follow");
        text.extend_from_slice(&words.bytes[token as usize]);
    }
    (text, false)
}
