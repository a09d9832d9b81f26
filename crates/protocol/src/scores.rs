//! Logprobs on their way to the client: what the engine reports per token, and the same with the tokens' text, as it
//! stands behind a delta. Nothing of this is sent for requests that do not ask.

use crate::limits::{LOGPROB_ALTERNATIVES_MAX, SCORE_TEXT_BYTES_MAX};
use crate::wire::{Cursor, Malformed, put, put_ids};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A token and the logarithm of the probability that the model itself gave it: 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LogprobEntry {
    /// The token.
    pub token: u32,
    /// Finite.
    pub logprob: f32,
}

/// Entries of one token at most: its own and the alternatives.
pub const ENTRIES_MAX: usize = 1 + LOGPROB_ALTERNATIVES_MAX as usize;

/// Bytes of one token's scores at most, with the rank that a prompt's token has.
pub const SCORES_BYTES_MAX: usize = 4 * size_of::<u32>() + ENTRIES_MAX * (16 + SCORE_TEXT_BYTES_MAX) + 4;

/// A token's text and logprob.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Its id.
    pub token: u32,
    /// Its logprob.
    pub logprob: f32,
    /// Its bytes, which may be a part of a character; the name of a special token.
    pub bytes: Vec<u8>,
    /// It is a special token, whose name may not be part of the text.
    pub special: bool,
}

/// The scores of one generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenScore {
    /// The token that was drawn.
    pub drawn: Score,
    /// The likeliest tokens, likeliest first; the drawn one may be among them.
    pub alternatives: Vec<Score>,
}

/// Begins the scores of one token: `entry_count` calls of [`put_score`] follow, the drawn token's first.
pub fn begin_scores(out: &mut Vec<u8>, entry_count: usize) {
    put_ids(out, &[entry_count as u32]);
}

/// Appends one score; its text is cut to [`SCORE_TEXT_BYTES_MAX`]. That of a special token is its name.
pub fn put_score(out: &mut Vec<u8>, entry: LogprobEntry, bytes: &[u8], special: bool) {
    let bytes = &bytes[..bytes.len().min(SCORE_TEXT_BYTES_MAX)];
    put(out, &entry);
    put_ids(out, &[bytes.len() as u32, u32::from(special)]);
    out.extend_from_slice(bytes);
}

/// Checks and copies the scores of a delta, one for each of its tokens.
pub(crate) fn decode_scores(bytes: &[u8]) -> Result<Vec<TokenScore>, Malformed> {
    let mut cursor = Cursor(bytes);
    let mut all = Vec::new();
    while !cursor.0.is_empty() {
        all.push(take_token_score(&mut cursor)?);
    }
    Ok(all)
}

/// Takes what [`begin_scores`] began.
pub(crate) fn take_token_score(cursor: &mut Cursor<'_>) -> Result<TokenScore, Malformed> {
    let count: u32 = cursor.take("score count")?;
    if count == 0 || count as usize > ENTRIES_MAX {
        return Err(Malformed("score count"));
    }
    let drawn = take_score(cursor)?;
    let alternatives = (1..count).map(|_| take_score(cursor)).collect::<Result<_, _>>()?;
    Ok(TokenScore { drawn, alternatives })
}

fn take_score(cursor: &mut Cursor<'_>) -> Result<Score, Malformed> {
    let entry: LogprobEntry = cursor.take("score")?;
    let [len, special]: [u32; 2] = cursor.take("score")?;
    if special > 1 || !entry.logprob.is_finite() || len as usize > SCORE_TEXT_BYTES_MAX {
        return Err(Malformed("score"));
    }
    let bytes = cursor.bytes(len as usize, "score text")?.to_vec();
    Ok(Score { token: entry.token, logprob: entry.logprob, bytes, special: special == 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_round_trip_and_every_truncation_is_refused() {
        let entry = |token, logprob| LogprobEntry { token, logprob };
        let mut bytes = Vec::new();
        begin_scores(&mut bytes, 2);
        put_score(&mut bytes, entry(7, -1.5), b"\xc3", false);
        put_score(&mut bytes, entry(8, -0.5), b"</s>", true);
        let first_end = bytes.len();
        begin_scores(&mut bytes, 1);
        put_score(&mut bytes, entry(9, 0.0), &[b'x'; SCORE_TEXT_BYTES_MAX + 1], false);
        let score = |token, logprob, bytes: &[u8]| Score {
            token,
            logprob,
            bytes: bytes.to_vec(),
            special: token == 8,
        };
        let expected = vec![
            TokenScore { drawn: score(7, -1.5, b"\xc3"), alternatives: vec![score(8, -0.5, b"</s>")] },
            TokenScore { drawn: score(9, 0.0, &[b'x'; SCORE_TEXT_BYTES_MAX]), alternatives: vec![] },
        ];
        assert_eq!(decode_scores(&bytes), Ok(expected));
        for cut in (1..bytes.len()).filter(|cut| *cut != first_end) {
            assert!(decode_scores(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        for bad in [f32::NAN, f32::INFINITY] {
            bytes.clear();
            begin_scores(&mut bytes, 1);
            put_score(&mut bytes, entry(1, bad), b"x", false);
            assert!(decode_scores(&bytes).is_err());
        }
    }
}
