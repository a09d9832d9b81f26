//! The tokens as the library knows them: bytes in a trie, built once for a process.

use crate::limits::parser_limits;
use llguidance::ParserFactory;
use pinion_text::TextCodec;
use std::sync::Arc;
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

/// The bytes of every token, the end-of-sequence token, and what a text loses at its start.
#[derive(Clone, Debug)]
pub struct Words {
    /// By token id, as many as the model has rows. What shows no text has none, so that no grammar can ask for it.
    pub bytes: Vec<Vec<u8>>,
    /// The token that ends a text.
    pub eos: Option<u32>,
    /// Whether a space at the very start of a text is not shown.
    pub drops_first_space: bool,
}

impl Words {
    /// The tokens of a codec, for a model with `vocab_size` rows.
    ///
    /// # Errors
    /// The text of this codec's tokens is not the sum of their bytes, so no token can be judged by itself.
    pub fn of(codec: &TextCodec, vocab_size: u32, eos: Option<u32>) -> Result<Words, String> {
        if !codec.concatenates() {
            return Err("is not supported with this model's tokenizer".to_owned());
        }
        let word = |id: u32| match codec.special_token(id) {
            // The library's own spelling: a grammar may name the token, but no text matches it.
            Some(name) => [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat(),
            None => {
                let mut bytes = Vec::new();
                codec.token_bytes(id, &mut bytes);
                bytes
            }
        };
        let mut bytes: Vec<Vec<u8>> = (0..vocab_size).map(word).collect();
        if let Some(word) = eos.and_then(|eos| bytes.get_mut(eos as usize)) {
            word.clear();
        }
        Ok(Words { bytes, eos, drops_first_space: codec.leading_spaces() > 0 })
    }
}

struct Environment(TokTrie);

impl TokenizerEnv for Environment {
    fn tok_trie(&self) -> &TokTrie {
        &self.0
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<u32> {
        self.0.greedy_tokenize(bytes)
    }

    /// The model draws every token itself; nothing is forced on it in one spelling.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// The tables that all matchers of a process share.
pub struct Vocabulary {
    pub(crate) factory: ParserFactory,
    /// Ids below this are the model's.
    pub(crate) vocab_size: u32,
    /// The end of sequence; an id of its own, `vocab_size`, if the model has none.
    pub(crate) eos: u32,
    /// One bit for each token that begins with a space, if the first space of a text is not shown.
    pub(crate) space_first: Option<Vec<u32>>,
}

impl Vocabulary {
    /// Builds the tables: some tenths of a second for a large vocabulary.
    ///
    /// # Errors
    /// The library's reason.
    pub fn new(mut words: Words) -> Result<Arc<Vocabulary>, String> {
        let vocab_size = words.bytes.len() as u32;
        let eos = words.eos.filter(|eos| *eos < vocab_size).unwrap_or(vocab_size);
        if eos == vocab_size {
            words.bytes.push(Vec::new());
        }
        let space_first =
            words.drops_first_space.then(|| bits_of(&words.bytes, |word| word.starts_with(b" ")));
        let info = TokRxInfo::new(words.bytes.len() as u32, eos);
        let environment: TokEnv = Arc::new(Environment(TokTrie::from(&info, &words.bytes)));
        drop(words);
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
            .map_err(|error| format!("the vocabulary cannot be used: {error}"))?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        Ok(Arc::new(Vocabulary { factory, vocab_size, eos, space_first }))
    }

    /// Ids are below this.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// The id that stands for the end of a text in masks. It may be [`Vocabulary::vocab_size`], which is no token.
    pub fn eos(&self) -> u32 {
        self.eos
    }
}

fn bits_of(words: &[Vec<u8>], wanted: impl Fn(&[u8]) -> bool) -> Vec<u32> {
    let word = |chunk: &[Vec<u8>]| {
        chunk.iter().enumerate().fold(0, |bits, (at, word)| bits | u32::from(wanted(word)) << at)
    };
    words.chunks(u32::BITS as usize).map(word).collect()
}
