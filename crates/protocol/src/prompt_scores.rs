//! Logprobs of a prompt's tokens on their way to the client. The engine reports each token of a prompt once, in order,
//! in records of at most [`PROMPT_SCORES_PER_RECORD_MAX`] tokens; the detokenizer adds the texts and sends a delta for
//! each. Nothing of this is sent for requests that do not ask.

use crate::ids::RequestId;
use crate::limits::PROMPT_SCORES_PER_RECORD_MAX;
use crate::scores::{ENTRIES_MAX, LogprobEntry, TokenScore, take_token_score};
use crate::wire::{Cursor, Malformed, put, put_ids};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The record's token begins the prompt: nothing comes before it, so it has no logprob and no rank.
pub const PROMPT_FIRST: u32 = 1;

/// Head of a record from an engine: 24 bytes, then a rank for each token, then the [`LogprobEntry`]s of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PromptHeader {
    /// Whose they are.
    pub id: RequestId,
    /// Index of the first token in the prompt.
    pub first_index: u32,
    /// Tokens of this record.
    pub token_count: u32,
    /// Entries of each: the token itself, then the likeliest ones.
    pub entry_count: u32,
    /// [`PROMPT_FIRST`], or nothing.
    pub flags: u32,
}

const _: () = assert!(size_of::<PromptHeader>() == 24);

/// Bytes of a record at most.
pub const PROMPT_RECORD_BYTES_MAX: usize = size_of::<PromptHeader>()
    + PROMPT_SCORES_PER_RECORD_MAX * (size_of::<u32>() + ENTRIES_MAX * size_of::<LogprobEntry>());

/// Replaces `out` by a record's payload; its kind is [`crate::detokenizer_inbox::kind::PROMPT`]. No allocation once
/// `out` has grown to its largest record.
pub fn encode_prompt(out: &mut Vec<u8>, header: &PromptHeader, ranks: &[u32], entries: &[LogprobEntry]) {
    out.clear();
    put(out, header);
    put_ids(out, ranks);
    out.extend_from_slice(entries.as_bytes());
}

/// A checked record.
#[derive(Clone, Copy, Debug)]
pub struct PromptRecord<'a> {
    /// The head.
    pub header: PromptHeader,
    ranks: &'a [u8],
    entries: &'a [u8],
}

impl PromptRecord<'_> {
    /// Replaces `entries` by those of the record's token `at` and gives its rank, if it has one. Errors: no such token,
    /// a number that is not finite.
    pub fn read(&self, at: u32, entries: &mut Vec<LogprobEntry>) -> Result<Option<u32>, Malformed> {
        const WHAT: Malformed = Malformed("prompt scores");
        let each = self.header.entry_count as usize * size_of::<LogprobEntry>();
        let mut ranks = Cursor(self.ranks.get(at as usize * size_of::<u32>()..).ok_or(WHAT)?);
        let rank: u32 = ranks.take("prompt ranks")?;
        let bytes = self.entries.get(at as usize * each..).and_then(|rest| rest.get(..each)).ok_or(WHAT)?;
        entries.clear();
        let chunks = bytes.chunks_exact(size_of::<LogprobEntry>());
        entries.extend(chunks.filter_map(|bytes| LogprobEntry::read_from_bytes(bytes).ok()));
        if entries.iter().any(|entry| !entry.logprob.is_finite()) {
            return Err(WHAT);
        }
        Ok((self.header.flags & PROMPT_FIRST == 0).then_some(rank))
    }
}

/// Checks a record.
pub fn decode_prompt(payload: &[u8]) -> Result<PromptRecord<'_>, Malformed> {
    let mut cursor = Cursor(payload);
    let header: PromptHeader = cursor.take("prompt header")?;
    let (tokens, entries) = (header.token_count as usize, header.entry_count as usize);
    let fits = (1..=PROMPT_SCORES_PER_RECORD_MAX).contains(&tokens) && (1..=ENTRIES_MAX).contains(&entries);
    if !fits || header.first_index.checked_add(header.token_count).is_none() {
        return Err(Malformed("prompt header"));
    }
    let ranks = cursor.bytes(tokens * size_of::<u32>(), "prompt ranks")?;
    let entries = cursor.bytes(tokens * entries * size_of::<LogprobEntry>(), "prompt entries")?;
    cursor.end("prompt tail")?;
    Ok(PromptRecord { header, ranks, entries })
}

/// The score of one token of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptScore {
    /// Place of the token among all, from 1 for the likeliest; `None` for the first token of a prompt, whose logprob
    /// means nothing.
    pub rank: Option<u32>,
    /// The token, and the likeliest at its place.
    pub score: TokenScore,
}

/// Begins the score of one token; [`crate::scores::begin_scores`] and its entries follow.
pub fn begin_prompt_score(out: &mut Vec<u8>, rank: Option<u32>) {
    put_ids(out, &[u32::from(rank.is_some()), rank.unwrap_or(0)]);
}

/// Checks and copies scores that stand one after another.
pub fn decode_prompt_scores(bytes: &[u8]) -> Result<Vec<PromptScore>, Malformed> {
    let mut cursor = Cursor(bytes);
    let mut all = Vec::new();
    while !cursor.0.is_empty() {
        let [has_rank, rank]: [u32; 2] = cursor.take("prompt rank")?;
        if has_rank > 1 {
            return Err(Malformed("prompt rank"));
        }
        all.push(PromptScore {
            rank: (has_rank == 1).then_some(rank),
            score: take_token_score(&mut cursor)?,
        });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scores::{Score, begin_scores, put_score};

    const ID: RequestId = RequestId { frontend: 1, slot: 2, generation: 3 };

    fn entry(token: u32) -> LogprobEntry {
        LogprobEntry { token, logprob: -(token as f32) }
    }

    #[test]
    fn a_record_round_trips_and_every_truncation_is_refused() {
        let header = PromptHeader { id: ID, first_index: 7, token_count: 2, entry_count: 3, flags: 0 };
        let entries: Vec<_> = (1..=6).map(entry).collect();
        let mut bytes = Vec::new();
        encode_prompt(&mut bytes, &header, &[9, 1], &entries);
        let record = decode_prompt(&bytes).unwrap();
        assert_eq!(record.header, header);
        let mut read = Vec::new();
        assert_eq!(record.read(0, &mut read), Ok(Some(9)));
        assert_eq!(read, entries[..3]);
        assert_eq!(record.read(1, &mut read), Ok(Some(1)));
        assert_eq!(read, entries[3..]);
        assert!(record.read(2, &mut read).is_err());
        assert!((0..bytes.len()).all(|cut| decode_prompt(&bytes[..cut]).is_err()));
        encode_prompt(&mut bytes, &PromptHeader { flags: PROMPT_FIRST, ..header }, &[0, 0], &entries);
        assert_eq!(decode_prompt(&bytes).unwrap().read(0, &mut read), Ok(None));
        for bad in [
            PromptHeader { token_count: 0, ..header },
            PromptHeader { token_count: PROMPT_SCORES_PER_RECORD_MAX as u32 + 1, ..header },
            PromptHeader { entry_count: 0, ..header },
            PromptHeader { entry_count: ENTRIES_MAX as u32 + 1, ..header },
            PromptHeader { first_index: u32::MAX, ..header },
        ] {
            let (tokens, entries) = (bad.token_count as usize, bad.entry_count as usize);
            encode_prompt(&mut bytes, &bad, &vec![1; tokens], &vec![entry(1); tokens * entries]);
            assert!(decode_prompt(&bytes).is_err(), "{bad:?}");
        }
        let nan = LogprobEntry { token: 1, logprob: f32::NAN };
        encode_prompt(&mut bytes, &PromptHeader { token_count: 1, entry_count: 1, ..header }, &[1], &[nan]);
        assert!(decode_prompt(&bytes).unwrap().read(0, &mut read).is_err());
    }

    #[test]
    fn scores_with_texts_round_trip() {
        let mut bytes = Vec::new();
        let mut expected = Vec::new();
        for (rank, texts) in [(None, vec!["a"]), (Some(3), vec!["b", "c"])] {
            begin_prompt_score(&mut bytes, rank);
            begin_scores(&mut bytes, texts.len());
            let mut scores: Vec<Score> = Vec::new();
            for (token, text) in (1..).zip(texts) {
                put_score(&mut bytes, entry(token), text.as_bytes(), false);
                scores.push(Score {
                    token,
                    logprob: entry(token).logprob,
                    bytes: text.into(),
                    special: false,
                });
            }
            let drawn = scores.remove(0);
            expected.push(PromptScore { rank, score: TokenScore { drawn, alternatives: scores } });
        }
        assert_eq!(decode_prompt_scores(&bytes), Ok(expected));
        assert!(decode_prompt_scores(&bytes[..bytes.len() - 1]).is_err());
    }
}
