//! The tokens as the library knows them: bytes in a trie, built once for a process.

use crate::gate::MarkIds;
use crate::limits::parser_limits;
use llguidance::ParserFactory;
use pinion_protocol::StopIds;
use pinion_text::TextCodec;
use std::sync::Arc;
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenizerEnv};

/// The bytes of every token, the end-of-sequence tokens, and what a text loses at its start.
#[derive(Clone, Debug)]
pub struct Words {
    /// By token id, as many as the model has rows. What shows no text has none, so that no grammar can ask for it.
    pub bytes: Vec<Vec<u8>>,
    /// The tokens that end a text.
    pub stop_ids: StopIds,
    /// The marks of reasoning, where they are tokens.
    pub marks: Option<MarkIds>,
    /// Whether a space at the very start of a text is not shown.
    pub drops_first_space: bool,
}

impl Words {
    /// The tokens of a codec, for a model with `vocab_size` rows.
    ///
    /// # Errors
    /// The text of this codec's tokens is not the sum of their bytes, so no token can be judged by itself.
    pub fn of(codec: &TextCodec, vocab_size: u32, stop_ids: StopIds) -> Result<Words, String> {
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
        for id in stop_ids.as_slice() {
            bytes.get_mut(*id as usize).into_iter().for_each(Vec::clear);
        }
        Ok(Words {
            bytes,
            stop_ids,
            marks: MarkIds::of(codec),
            drops_first_space: codec.leading_spaces() > 0,
        })
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
    /// Tokens that end a text as [`Vocabulary::eos`] does. The library knows that one only.
    pub(crate) other_ends: Vec<u32>,
    /// The marks of reasoning, if the vocabulary has both.
    pub(crate) marks: Option<MarkIds>,
    /// What each token spells.
    environment: TokEnv,
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
        let mut ends = words.stop_ids.as_slice().iter().copied().filter(|id| *id < vocab_size);
        let eos = ends.next().unwrap_or(vocab_size);
        let other_ends = ends.collect();
        if eos == vocab_size {
            words.bytes.push(Vec::new());
        }
        let space_first =
            words.drops_first_space.then(|| bits_of(&words.bytes, |word| word.starts_with(b" ")));
        let marks = words.marks.filter(|marks| marks.open.max(marks.close) < vocab_size);
        let info = TokRxInfo::new(words.bytes.len() as u32, eos);
        let environment: TokEnv = Arc::new(Environment(TokTrie::from(&info, &words.bytes)));
        drop(words);
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
            .map_err(|error| format!("the vocabulary cannot be used: {error}"))?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        Ok(Arc::new(Vocabulary { factory, vocab_size, eos, other_ends, marks, space_first, environment }))
    }

    /// The bytes that a token spells.
    pub(crate) fn bytes(&self, token: u32) -> &[u8] {
        let known = (token as usize) < self.environment.tok_trie().vocab_size();
        if known { self.environment.tok_trie().token(token) } else { &[] }
    }

    /// The token by which the library knows it: every end of a text is [`Vocabulary::eos`] there.
    pub(crate) fn as_the_library_knows(&self, token: u32) -> u32 {
        if self.other_ends.contains(&token) { self.eos } else { token }
    }

    /// Ids are below this.
    pub fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// The id that stands for the end of a text where only one can. It may be [`Vocabulary::vocab_size`], which is no
    /// token.
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
