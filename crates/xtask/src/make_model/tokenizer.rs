//! GPT-2's tokenizer, rebuilt from the ranks that the tiktoken-rs crate carries.
//!
//! Why from the ranks: that crate's public API gives the bytes of every id, and the merges follow from them (each
//! token is made by exactly one merge: the last that BPE does on its bytes when it may use lower ranks only). The
//! crate's `assets/` hold `vocab.bpe` as well, but they could be reached only by a path into cargo's registry,
//! which differs between vendored, offline and git builds.

use std::collections::HashMap;

use tiktoken_rs::CoreBPE;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::{AddedToken, Tokenizer};

pub(super) const END_OF_TEXT: &str = "<|endoftext|>";
const END_OF_TEXT_ID: u32 = 50256;
const MERGE_COUNT: usize = 50_000;

/// The tokenizer, ready to be saved as tokenizer.json.
pub(super) fn gpt2() -> Result<Tokenizer, String> {
    let ranks = tiktoken_rs::r50k_base().map_err(|error| format!("r50k ranks: {error}"))?;
    let tokens = ordinary_tokens(&ranks, END_OF_TEXT_ID);
    let merges = recover_merges(&tokens);
    if merges.len() != MERGE_COUNT {
        return Err(format!("{} merges recovered from the ranks, GPT-2 has {MERGE_COUNT}", merges.len()));
    }
    assemble(&tokens, &merges).map_err(|error| format!("tokenizer: {error}"))
}

/// The bytes of the first ids. They are dense, so the position is the id.
pub(super) fn ordinary_tokens(ranks: &CoreBPE, count: u32) -> Vec<Vec<u8>> {
    ranks._decode_native_and_split((0..count).collect()).collect()
}

/// The pair that each token of two or more bytes was merged from, in rank order.
pub(super) fn recover_merges(tokens: &[Vec<u8>]) -> Vec<(&[u8], &[u8])> {
    let ranks: HashMap<&[u8], usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.as_slice(), id)).collect();
    let long_tokens = tokens.iter().enumerate().filter(|(_, token)| token.len() > 1);
    long_tokens.filter_map(|(id, token)| last_merge(token, id, &ranks)).collect()
}

/// Runs BPE on one token's bytes with the ranks below its own, and gives the two parts that remain.
fn last_merge<'a>(token: &'a [u8], id: usize, ranks: &HashMap<&[u8], usize>) -> Option<(&'a [u8], &'a [u8])> {
    // Part i is token[bounds[i]..bounds[i + 1]].
    let mut bounds: Vec<usize> = (0..=token.len()).collect();
    loop {
        let joined = bounds.windows(3).enumerate().filter_map(|(at, part)| {
            let rank = *ranks.get(&token[part[0]..part[2]])?;
            (rank < id).then_some((rank, at))
        });
        let Some((_, at)) = joined.min() else { break };
        bounds.remove(at + 1);
    }
    let [_, middle, _] = bounds.as_slice() else { return None };
    Some(token.split_at(*middle))
}

fn assemble(tokens: &[Vec<u8>], merges: &[(&[u8], &[u8])]) -> tokenizers::Result<Tokenizer> {
    let characters = byte_characters();
    let spelled = |bytes: &[u8]| bytes.iter().map(|&byte| characters[usize::from(byte)]).collect::<String>();
    let mut vocabulary: Vocab = tokens.iter().zip(0..).map(|(token, id)| (spelled(token), id)).collect();
    vocabulary.insert(END_OF_TEXT.to_owned(), END_OF_TEXT_ID);
    let merges: Merges = merges.iter().map(|(left, right)| (spelled(left), spelled(right))).collect();

    let mut tokenizer = Tokenizer::new(BPE::builder().vocab_and_merges(vocabulary, merges).build()?);
    // No prefix space, GPT-2's own splitting expression, offsets as the published tokenizer.json has them.
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_decoder(Some(ByteLevel::new(false, true, true)));
    tokenizer.with_post_processor(Some(ByteLevel::new(true, false, true)));
    tokenizer.add_special_tokens([AddedToken::from(END_OF_TEXT, true).normalized(true)])?;
    Ok(tokenizer)
}

/// GPT-2's `bytes_to_unicode`: printable bytes stand for themselves, the others move up to 256 and above.
pub(super) fn byte_characters() -> [char; 256] {
    let mut next_free = 256;
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
        let code = if printable { u32::from(byte) } else { next_free };
        next_free += u32::from(!printable);
        char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

#[cfg(test)]
#[path = "tokenizer_tests.rs"]
mod tests;
