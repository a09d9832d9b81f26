//! What each token contributes to the text, in bytes, built once at load. Decoding a token is then a
//! look-up and a copy: no allocation, no dependence on the length of the stream.
//!
//! A table exists where the text is the plain concatenation of the tokens' bytes: byte-level BPE (GPT-2,
//! Llama 3, Qwen), byte-fallback chains (Llama 2, Mistral) and tokenizers without a decoder. What depends
//! on a token's neighbours in another way (WordPiece, CTC, ...) has none.

use crate::byte_tokenizer::spelling;
use std::collections::HashMap;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::normalizers::replace::Replace;
use tokenizers::{Decoder, Tokenizer};

/// Bytes per token id.
pub(crate) struct ByteTable {
    /// `ends[id]` is where the id's bytes end in `bytes`; they begin where those of `id - 1` end.
    ends: Vec<u32>,
    bytes: Vec<u8>,
    /// Spaces dropped at the very start of a text.
    pub(crate) leading_spaces: u8,
    /// There is no decoder: the library writes a space before each token, special ones too.
    pub(crate) joined: bool,
}

/// How a token's spelling in the vocabulary becomes bytes.
enum Chain<'a> {
    ByteLevel,
    /// No decoder: tokens are joined by spaces.
    Joined,
    /// `<0x0A>` is a byte if `byte_fallback`; other tokens go through the replacements.
    Replaced {
        replaces: Vec<&'a Replace>,
        byte_fallback: bool,
        leading_spaces: u8,
    },
}

impl ByteTable {
    /// The table of a tokenizer with ids below `vocab_size`, or `None` if its decoder is not a plain
    /// concatenation.
    pub(crate) fn build(tokenizer: &Tokenizer, vocab_size: u32) -> Option<ByteTable> {
        let chain = Chain::of(tokenizer.get_decoder())?;
        let leading_spaces = match chain {
            Chain::ByteLevel => 0,
            Chain::Joined => 1,
            Chain::Replaced { leading_spaces, .. } => leading_spaces,
        };
        let byte_of: HashMap<char, u8> = (0..=255).map(|byte| (spelling(byte), byte)).collect();
        let joined = matches!(chain, Chain::Joined);
        let ends = Vec::with_capacity(vocab_size as usize);
        let mut table = ByteTable { ends, bytes: Vec::new(), leading_spaces, joined };
        for id in 0..vocab_size {
            if let Some(token) = shown_token(tokenizer, id) {
                chain.append(&token, &byte_of, &mut table.bytes)?;
            }
            table.ends.push(u32::try_from(table.bytes.len()).ok()?);
        }
        Some(table)
    }

    /// The token's bytes; none for a special token and for an id outside the vocabulary.
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let begin = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[begin as usize..end as usize]
    }

    /// Length of the longest token's bytes.
    pub(crate) fn longest(&self) -> usize {
        (0..self.ends.len() as u32).map(|id| self.get(id).len()).max().unwrap_or(0)
    }
}

/// The vocabulary's spelling of a token that shows text: neither special nor a hole in the numbering.
pub(crate) fn shown_token(tokenizer: &Tokenizer, id: u32) -> Option<String> {
    tokenizer.id_to_token(id).filter(|token| !tokenizer.get_added_vocabulary().is_special_token(token))
}

impl<'a> Chain<'a> {
    fn of(decoder: Option<&'a DecoderWrapper>) -> Option<Chain<'a>> {
        let Some(decoder) = decoder else { return Some(Chain::Joined) };
        let parts = match decoder {
            DecoderWrapper::Sequence(sequence) => sequence.get_decoders(),
            single => std::slice::from_ref(single),
        };
        if let [DecoderWrapper::ByteLevel(_)] = parts {
            return Some(Chain::ByteLevel);
        }
        let (mut replaces, mut byte_fallback, mut fused, mut leading_spaces) = (Vec::new(), false, false, 0);
        for part in parts {
            match part {
                DecoderWrapper::Replace(replace) if !byte_fallback && !fused => replaces.push(replace),
                DecoderWrapper::ByteFallback(_) if !byte_fallback && !fused => byte_fallback = true,
                DecoderWrapper::Fuse(_) => fused = true,
                DecoderWrapper::Strip(strip)
                    if fused && leading_spaces == 0 && strip.content == ' ' && strip.stop == 0 =>
                {
                    leading_spaces = u8::try_from(strip.start).ok()?;
                }
                _ => return None,
            }
        }
        Some(Chain::Replaced { replaces, byte_fallback, leading_spaces })
    }

    fn append(&self, token: &str, byte_of: &HashMap<char, u8>, out: &mut Vec<u8>) -> Option<()> {
        match self {
            Chain::ByteLevel => {
                // A token with a character outside the alphabet (an added one) stands for itself.
                match token.chars().map(|c| byte_of.get(&c).copied()).collect::<Option<Vec<u8>>>() {
                    Some(bytes) => out.extend_from_slice(&bytes),
                    None => out.extend_from_slice(token.as_bytes()),
                }
            }
            Chain::Joined => {
                out.push(b' ');
                out.extend_from_slice(token.as_bytes());
            }
            Chain::Replaced { replaces, byte_fallback, .. } => {
                let mut pieces = vec![token.to_owned()];
                for replace in replaces {
                    pieces = replace.decode_chain(pieces).ok()?;
                }
                let text = pieces.concat();
                match fallback_byte(&text).filter(|_| *byte_fallback) {
                    Some(byte) => out.push(byte),
                    None => out.extend_from_slice(text.as_bytes()),
                }
            }
        }
        Some(())
    }
}

/// The byte that a token of the form `<0x0A>` stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}
