//! What a frontend receives: rejections and encode results from tokenizers, finished requests from
//! engines, text from detokenizers.

use crate::fault::{Fault, FaultCode};
use crate::ids::RequestId;
use crate::scores::{TokenScore, decode_scores};
use crate::tokenizer_inbox::cut_detail;
use crate::wire::{Cursor, Malformed, put, put_ids};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Record kinds of this inbox.
pub mod kind {
    /// [`super::Reject`], from a tokenizer or an engine: the request ended before its first token.
    pub const REJECT: u16 = 1;
    /// [`super::Encoded`], from a tokenizer.
    pub const ENCODED: u16 = 2;
    /// [`super::Decoded`], from a tokenizer.
    pub const DECODED: u16 = 3;
    /// [`super::Finished`], from an engine.
    pub const FINISHED: u16 = 4;
    /// [`super::DeltaHeader`]s, from a detokenizer.
    pub const DELTAS: u16 = 5;
    /// [`super::Pooled`], from an engine, before the request's [`super::Finished`].
    pub const POOLED: u16 = 6;
}

/// Why an engine finished a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// End-of-sequence token, or a stop string found by the detokenizer.
    Stop,
    /// `max_tokens` reached, or the context is full.
    Length,
    /// The slot's cancelled bit was seen.
    Cancelled,
    /// The request failed alone; the code says how.
    Failed(FaultCode),
}

/// A request left the engine: its KV is free, its counts are final. Sent exactly once per admitted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Whose it is.
    pub id: RequestId,
    /// Why.
    pub reason: FinishReason,
    /// Prompt length in tokens.
    pub prompt_tokens: u32,
    /// Prompt tokens that came from the prefix cache.
    pub cached_tokens: u32,
    /// Tokens generated: the text is complete when this many have arrived.
    pub generated_tokens: u32,
}

/// [`Finished`] as it crosses the ring: 32 bytes.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FinishedRecord {
    id: RequestId,
    reason: u32,
    fault: u32,
    prompt_tokens: u32,
    cached_tokens: u32,
    generated_tokens: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<FinishedRecord>() == 32);

/// A request ended before it reached the engine's running set.
#[derive(Clone, Debug, PartialEq)]
pub struct Reject {
    /// Whose it is.
    pub id: RequestId,
    /// Why, for the client.
    pub fault: Fault,
}

/// Ids for `/tokenize`.
#[derive(Clone, Debug, PartialEq)]
pub struct Encoded {
    /// Whose it is.
    pub id: RequestId,
    /// The prompt's ids.
    pub ids: Vec<u32>,
}

/// Text for `/detokenize`.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// Whose it is.
    pub id: RequestId,
    /// The decoded text.
    pub text: String,
}

/// What a model that pools makes of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooled {
    /// Whose it is.
    pub id: RequestId,
    /// The vector, neither cut nor normalised. Each number is finite.
    pub values: Vec<f32>,
}

/// Bytes of a record with a vector of this number of numbers.
pub const fn pooled_record_bytes(width: usize) -> usize {
    size_of::<RequestId>() + width * size_of::<f32>()
}

/// Replaces `out` by the payload of a [`Pooled`]; its kind is [`kind::POOLED`].
pub fn encode_pooled(out: &mut Vec<u8>, id: RequestId, values: &[f32]) {
    out.clear();
    put(out, &id);
    out.extend_from_slice(values.as_bytes());
}

impl Pooled {
    /// Checks and copies a record.
    pub fn decode(payload: &[u8]) -> Result<Pooled, Malformed> {
        let mut cursor = Cursor(payload);
        let id = cursor.take("pooled header")?;
        let words = cursor.ids(cursor.0.len() / size_of::<f32>(), "pooled values")?;
        cursor.end("pooled tail")?;
        let values: Vec<f32> = words.into_iter().map(f32::from_bits).collect();
        let fits = !values.is_empty() && values.iter().all(|value| value.is_finite());
        if fits { Ok(Pooled { id, values }) } else { Err(Malformed("pooled values")) }
    }
}

/// No further delta comes for this request.
pub const DELTA_LAST: u32 = 1;
/// The text was ended by a stop string; tokens past it carry no text.
pub const DELTA_STOPPED: u32 = 2;

/// Scores of the tokens follow the text: their length in bytes as a u32, then [`crate::scores`], padded like the text.
pub const DELTA_SCORES: u32 = 4;

/// The delta is a token of the prompt and not of the answer: its sequence number is its place in the prompt, and its
/// scores are [`crate::prompt_scores`].
pub const DELTA_PROMPT: u32 = 8;

/// The text is one mark of reasoning, which was one token, and nothing else.
pub const DELTA_MARK: u32 = 16;

/// Where the place of a stop string begins among the flags ...
const STOP_PLACE_SHIFT: u32 = 8;
/// ... and the bits that it has.
const STOP_PLACE_BITS: u32 = 0xff << STOP_PLACE_SHIFT;
const _: () =
    assert!(crate::limits::STOP_STRINGS_MAX <= 256, "a place among the stop strings has eight bits");

/// The flags of a text that was ended by the stop string at this place of its request's list.
pub fn stopped_by(place: usize) -> u32 {
    DELTA_STOPPED | ((place as u32) << STOP_PLACE_SHIFT) & STOP_PLACE_BITS
}

/// All bits of a delta.
const DELTA_FLAGS: u32 =
    DELTA_LAST | DELTA_STOPPED | DELTA_SCORES | DELTA_PROMPT | DELTA_MARK | STOP_PLACE_BITS;

/// Head of one request's share of a delta record: 24 bytes, then `token_count` ids, then `text_len` bytes of
/// UTF-8, padded with zeros to a multiple of 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeltaHeader {
    /// Whose it is.
    pub id: RequestId,
    /// Sequence number of the first id.
    pub first_sequence: u32,
    /// Ids that follow.
    pub token_count: u32,
    /// Bytes of text that follow the ids; may be 0 while a character or stop string is incomplete.
    pub text_len: u32,
    /// `DELTA_*` bits.
    pub flags: u32,
}

const _: () = assert!(size_of::<DeltaHeader>() == 24);

impl DeltaHeader {
    /// The place of the stop string that ended the text.
    pub fn stop_place(&self) -> Option<usize> {
        let place = (self.flags & STOP_PLACE_BITS) >> STOP_PLACE_SHIFT;
        (self.flags & DELTA_STOPPED != 0).then_some(place as usize)
    }
}

/// One request's share of a delta record, borrowed from the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta<'a> {
    /// The head.
    pub header: DeltaHeader,
    /// `token_count` little-endian u32 ids.
    pub id_bytes: &'a [u8],
    /// The new text.
    pub text: &'a str,
    /// Scores of the tokens, unchecked; empty if there are none.
    pub score_bytes: &'a [u8],
}

impl Delta<'_> {
    /// The ids.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.id_bytes.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]))
    }

    /// The scores of its tokens: one for each, or none at all.
    pub fn scores(&self) -> Result<Vec<TokenScore>, Malformed> {
        let scores = decode_scores(self.score_bytes)?;
        let fits = scores.is_empty() || scores.len() == self.header.token_count as usize;
        if fits { Ok(scores) } else { Err(Malformed("scores of a delta")) }
    }
}

/// Appends one request's delta to a record's payload; the record's kind is [`kind::DELTAS`].
pub fn put_delta(out: &mut Vec<u8>, id: RequestId, first_sequence: u32, ids: &[u32], text: &str, flags: u32) {
    let (token_count, text_len) = (ids.len() as u32, text.len() as u32);
    put(out, &DeltaHeader { id, first_sequence, token_count, text_len, flags });
    put_ids(out, ids);
    out.extend_from_slice(text.as_bytes());
    out.resize(out.len().next_multiple_of(4), 0);
}

/// [`put_delta`] with the scores of its tokens, if there are any: see [`crate::scores::begin_scores`].
pub fn put_scored_delta(
    out: &mut Vec<u8>,
    id: RequestId,
    first_sequence: u32,
    ids: &[u32],
    text: &str,
    flags: u32,
    scores: &[u8],
) {
    if scores.is_empty() {
        return put_delta(out, id, first_sequence, ids, text, flags);
    }
    put_delta(out, id, first_sequence, ids, text, flags | DELTA_SCORES);
    put_ids(out, &[scores.len() as u32]);
    out.extend_from_slice(scores);
    out.resize(out.len() + scores.len().next_multiple_of(4) - scores.len(), 0);
}

/// Walks a delta record. The iterator ends after the first malformed entry, which it yields as an error.
pub fn deltas(payload: &[u8]) -> impl Iterator<Item = Result<Delta<'_>, Malformed>> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut cursor = Cursor(rest);
        let delta = take_delta(&mut cursor);
        rest = if delta.is_ok() { cursor.0 } else { &[] };
        Some(delta)
    })
}

fn take_delta<'a>(cursor: &mut Cursor<'a>) -> Result<Delta<'a>, Malformed> {
    let header: DeltaHeader = cursor.take("delta header")?;
    if header.flags & !DELTA_FLAGS != 0 {
        return Err(Malformed("delta flags"));
    }
    let id_len = (header.token_count as usize).checked_mul(4).ok_or(Malformed("delta ids"))?;
    let id_bytes = cursor.bytes(id_len, "delta ids")?;
    let text_len = header.text_len as usize;
    let text = cursor.text(text_len, "delta text")?;
    cursor.bytes(text_len.next_multiple_of(4) - text_len, "delta padding")?;
    let mut score_bytes: &[u8] = &[];
    if header.flags & DELTA_SCORES != 0 {
        let len = cursor.take::<u32>("delta scores")? as usize;
        score_bytes = cursor.bytes(len, "delta scores")?;
        cursor.bytes(len.next_multiple_of(4) - len, "delta padding")?;
    }
    Ok(Delta { header, id_bytes, text, score_bytes })
}

impl Finished {
    /// Replaces `out` by the record's payload; its kind is [`kind::FINISHED`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (reason, fault) = match self.reason {
            FinishReason::Stop => (1, 0),
            FinishReason::Length => (2, 0),
            FinishReason::Cancelled => (3, 0),
            FinishReason::Failed(code) => (4, code as u32),
        };
        out.clear();
        put(
            out,
            &FinishedRecord {
                id: self.id,
                reason,
                fault,
                prompt_tokens: self.prompt_tokens,
                cached_tokens: self.cached_tokens,
                generated_tokens: self.generated_tokens,
                reserved: 0,
            },
        );
    }

    /// Checks and copies a record.
    pub fn decode(payload: &[u8]) -> Result<Finished, Malformed> {
        let r = FinishedRecord::read_from_bytes(payload).map_err(|_| Malformed("finished record"))?;
        let reason = match r.reason {
            1 => FinishReason::Stop,
            2 => FinishReason::Length,
            3 => FinishReason::Cancelled,
            4 => FinishReason::Failed(FaultCode::from_word(r.fault).ok_or(Malformed("finish fault"))?),
            _ => return Err(Malformed("finish reason")),
        };
        Ok(Finished {
            id: r.id,
            reason,
            prompt_tokens: r.prompt_tokens,
            cached_tokens: r.cached_tokens,
            generated_tokens: r.generated_tokens,
        })
    }
}

impl Reject {
    /// Replaces `out` by the record's payload; its kind is [`kind::REJECT`]. The message is cut to
    /// [`crate::limits::DETAIL_BYTES_MAX`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        let param = self.fault.param.as_deref().unwrap_or("");
        let message = cut_detail(&self.fault.message);
        out.clear();
        put(out, &self.id);
        put_ids(out, &[self.fault.code as u32, u32::from(self.fault.param.is_some()), param.len() as u32]);
        out.extend_from_slice(param.as_bytes());
        out.extend_from_slice(message.as_bytes());
    }

    /// Checks and copies a record.
    pub fn decode(payload: &[u8]) -> Result<Reject, Malformed> {
        let mut cursor = Cursor(payload);
        let id = cursor.take("reject header")?;
        let [code, has_param, param_len]: [u32; 3] = cursor.take("reject header")?;
        let param = cursor.text(param_len as usize, "reject param")?;
        let message_len = cursor.0.len();
        let message = cursor.text(message_len, "reject message")?.to_owned();
        let code = FaultCode::from_word(code).ok_or(Malformed("reject code"))?;
        let param = (has_param == 1).then(|| param.to_owned());
        Ok(Reject { id, fault: Fault { code, param, message } })
    }
}

impl Encoded {
    /// Replaces `out` by the record's payload; its kind is [`kind::ENCODED`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        put(out, &self.id);
        put_ids(out, &self.ids);
    }

    /// Checks and copies a record.
    pub fn decode(payload: &[u8]) -> Result<Encoded, Malformed> {
        let mut cursor = Cursor(payload);
        let id = cursor.take("encoded header")?;
        let count = cursor.0.len() / 4;
        let ids = cursor.ids(count, "encoded ids")?;
        cursor.end("encoded tail")?;
        Ok(Encoded { id, ids })
    }
}

impl Decoded {
    /// Replaces `out` by the record's payload; its kind is [`kind::DECODED`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.clear();
        put(out, &self.id);
        out.extend_from_slice(self.text.as_bytes());
    }

    /// Checks and copies a record.
    pub fn decode(payload: &[u8]) -> Result<Decoded, Malformed> {
        let mut cursor = Cursor(payload);
        let id = cursor.take("decoded header")?;
        let len = cursor.0.len();
        Ok(Decoded { id, text: cursor.text(len, "decoded text")?.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scores::{LogprobEntry, begin_scores, put_score};

    const ID: RequestId = RequestId { frontend: 0, slot: 1, generation: 2 };

    #[test]
    fn deltas_round_trip_and_a_torn_record_ends_in_one_error() {
        let mut bytes = Vec::new();
        put_delta(&mut bytes, ID, 0, &[5, 6], "héé", 0);
        put_delta(&mut bytes, ID, 2, &[7], "", DELTA_LAST);
        let got: Vec<_> = deltas(&bytes).collect::<Result<_, _>>().unwrap();
        assert_eq!(got.len(), 2);
        assert_eq!((got[0].text, got[0].ids().collect::<Vec<_>>()), ("héé", vec![5, 6]));
        assert_eq!((got[1].header.flags, got[1].header.stop_place()), (DELTA_LAST, None));
        for place in [0, 15] {
            bytes.clear();
            put_delta(&mut bytes, ID, 2, &[7], "", DELTA_LAST | stopped_by(place));
            let header = deltas(&bytes).next().unwrap().unwrap().header;
            assert_eq!((header.stop_place(), header.flags & DELTA_STOPPED), (Some(place), DELTA_STOPPED));
        }
        bytes.clear();
        put_delta(&mut bytes, ID, 0, &[5, 6], "héé", 0);
        put_delta(&mut bytes, ID, 2, &[7], "", DELTA_LAST);
        let torn: Vec<_> = deltas(&bytes[..bytes.len() - 2]).collect();
        assert!(torn[0].is_ok() && torn[1].is_err() && torn.len() == 2);
    }

    #[test]
    fn scores_travel_behind_the_text_of_their_delta() {
        let (mut scores, mut bytes) = (Vec::new(), Vec::new());
        begin_scores(&mut scores, 1);
        put_score(&mut scores, LogprobEntry { token: 5, logprob: -0.25 }, b"abc", false);
        put_scored_delta(&mut bytes, ID, 0, &[5], "abc", DELTA_LAST, &scores);
        put_scored_delta(&mut bytes, ID, 1, &[6], "d", 0, &[]);
        put_scored_delta(&mut bytes, ID, 2, &[6, 7], "d", 0, &scores);
        let got: Vec<_> = deltas(&bytes).collect::<Result<_, _>>().unwrap();
        assert_eq!(got[0].header.flags, DELTA_LAST | DELTA_SCORES);
        assert_eq!((got[0].text, got[0].scores().unwrap()[0].drawn.bytes.as_slice()), ("abc", &b"abc"[..]));
        assert_eq!((got[1].header.flags, got[1].scores()), (0, Ok(vec![])));
        assert!(got[2].scores().is_err(), "one score for two tokens");
        let first_len = 24 + 4 + 4 + 4 + scores.len().next_multiple_of(4);
        for cut in 1..first_len {
            assert!(deltas(&bytes[..cut]).any(|delta| delta.is_err()), "cut at {cut}");
        }
    }

    #[test]
    fn vectors_round_trip_and_none_is_empty_torn_or_not_finite() {
        let mut bytes = Vec::new();
        let values = vec![0.5, -0.0, f32::MAX];
        encode_pooled(&mut bytes, ID, &values);
        assert_eq!(bytes.len(), pooled_record_bytes(3));
        assert_eq!(Pooled::decode(&bytes), Ok(Pooled { id: ID, values }));
        assert!(Pooled::decode(&bytes[..bytes.len() - 1]).is_err());
        for bad in [&[][..], &[1.0, f32::NAN], &[f32::INFINITY]] {
            encode_pooled(&mut bytes, ID, bad);
            assert!(Pooled::decode(&bytes).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn finished_and_reject_round_trip() {
        let mut bytes = Vec::new();
        for reason in [
            FinishReason::Stop,
            FinishReason::Length,
            FinishReason::Cancelled,
            FinishReason::Failed(FaultCode::NonFinite),
        ] {
            let finished =
                Finished { id: ID, reason, prompt_tokens: 1, cached_tokens: 0, generated_tokens: 9 };
            finished.encode(&mut bytes);
            assert_eq!(Finished::decode(&bytes), Ok(finished));
        }
        let reject = Reject { id: ID, fault: Fault::field("prompt", "too long") };
        reject.encode(&mut bytes);
        assert_eq!(Reject::decode(&bytes), Ok(reject));
    }
}
