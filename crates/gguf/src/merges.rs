//! The merges of a vocabulary: those that the file lists, or those that follow from the scores of its pieces. A small
//! header can stand for very many, so both their number and the bytes of their JSON are bounded.

use crate::config::texts;
use crate::vocabulary::{Vocabulary, shortened};
use crate::{Error, Header, Value};
use serde::{Serialize, Serializer};

/// Most merges.
const MERGES_MAX: usize = 2 << 20;
/// Most bytes of them in tokenizer.json.
const MERGES_JSON_BYTES_MAX: usize = 64 << 20;
/// Longest piece in bytes: each of its parts is looked up.
const PIECE_BYTES_MAX: usize = 256;

/// Pairs of tokens that make one, those that are merged first in front.
pub(crate) struct Merges<'a> {
    vocabulary: &'a Vocabulary<'a>,
    pairs: Vec<(u32, u32)>,
}

/// `merges` of a tokenizer.json.
impl Serialize for Merges<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let token = |id: u32| &self.vocabulary.tokens[id as usize];
        serializer.collect_seq(self.pairs.iter().map(|&(left, right)| [token(left), token(right)]))
    }
}

impl<'a> Merges<'a> {
    /// The merges of the file, each of two tokens that make one.
    pub(crate) fn of_file(header: &Header, vocabulary: &'a Vocabulary<'a>) -> Result<Self, Error> {
        const KEY: &str = "tokenizer.ggml.merges";
        let listed = texts(header, KEY)?;
        if listed.len() > MERGES_MAX {
            return Err(Error(format!("{KEY} has {} merges, more than {MERGES_MAX}", listed.len())));
        }
        let known = vocabulary.ids()?;
        let mut size = Size::default();
        let mut whole = String::new();
        let mut pairs = Vec::with_capacity(listed.len());
        for merge in listed.iter() {
            let pair = merge.split_once(' ').and_then(|(left, right)| {
                whole.clear();
                whole.extend([left, right]);
                known.get(whole.as_str())?;
                size.add([left, right]);
                Some((*known.get(left)?, *known.get(right)?))
            });
            let Some(pair) = pair else {
                return Err(Error(format!(
                    "{KEY} has {}, which is not two tokens that make one",
                    shortened(merge)
                )));
            };
            size.check(KEY)?;
            pairs.push(pair);
        }
        Ok(Self { vocabulary, pairs })
    }

    /// For each piece, the pairs that make it; the pairs of the best piece first, then in the order of transformers'
    /// `generate_merges`.
    pub(crate) fn of_scores(header: &Header, vocabulary: &'a Vocabulary<'a>) -> Result<Self, Error> {
        const KEY: &str = "tokenizer.ggml.scores";
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let scores = match header.get(KEY) {
            Some(Value::Floats(scores)) if scores.len() == vocabulary.tokens.len() => scores,
            _ => return Err(Error(format!("{KEY} is not a list of one number for each token"))),
        };
        let known = vocabulary.ids()?;
        let mut size = Size::default();
        let mut merges: Vec<(f32, u32, u32)> = Vec::new();
        for (id, token) in vocabulary.tokens.iter().enumerate().filter(|(id, _)| vocabulary.is_normal(*id)) {
            if token.len() > PIECE_BYTES_MAX {
                let token = shortened(token);
                return Err(Error(format!("{TOKENS} has {token}, longer than {PIECE_BYTES_MAX} bytes")));
            }
            let first = merges.len();
            for at in token.char_indices().map(|(at, _)| at).skip(1) {
                let (left, right) = token.split_at(at);
                if let (Some(&left_id), Some(&right_id)) = (known.get(left), known.get(right)) {
                    merges.push((scores[id], left_id, right_id));
                    size.add([left, right]);
                }
            }
            merges[first..].sort_by_key(|&(_, left, right)| (left, right));
            if merges.len() > MERGES_MAX {
                return Err(Error(format!("{TOKENS} make more than {MERGES_MAX} pairs")));
            }
            size.check(TOKENS)?;
        }
        let characters = |id: u32| vocabulary.tokens[id as usize].chars().count();
        merges.sort_by(|&(score, left, right), &(other, other_left, other_right)| {
            let lengths = || {
                (characters(other_left), characters(other_right)).cmp(&(characters(left), characters(right)))
            };
            other.total_cmp(&score).then_with(lengths)
        });
        let pairs = merges.into_iter().map(|(_, left, right)| (left, right)).collect();
        Ok(Self { vocabulary, pairs })
    }
}

/// Bytes of merges in JSON.
#[derive(Default)]
struct Size(usize);

impl Size {
    fn add(&mut self, pair: [&str; 2]) {
        // Brackets and commas, and for each token its quotes; `\u0000` is the longest form of a character of one byte.
        self.0 += 4;
        for token in pair {
            let escaped = |byte: u8| match byte {
                b'"' | b'\\' => 2,
                0..0x20 => 6,
                _ => 1,
            };
            self.0 += 2 + token.bytes().map(escaped).sum::<usize>();
        }
    }

    fn check(&self, key: &str) -> Result<(), Error> {
        match self.0 <= MERGES_JSON_BYTES_MAX {
            true => Ok(()),
            false => Err(Error(format!(
                "{key} makes merges of more than {} MiB in tokenizer.json",
                MERGES_JSON_BYTES_MAX >> 20
            ))),
        }
    }
}
