//! What a detokenizer receives: the opening of each stream from its frontend, and one record per step from
//! the engine. The frontend publishes [`Open`] before it submits the request, so a detokenizer that drains
//! its frontends before its engines always knows a stream before its first token.

use crate::ids::RequestId;
use crate::limits::{STEP_EVENTS_MAX, STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX};
use crate::scores::{ENTRIES_MAX, LogprobEntry};
use crate::wire::{Cursor, Malformed, put, put_ids};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Record kinds of this inbox.
pub mod kind {
    /// [`super::Open`], from a frontend.
    pub const OPEN: u16 = 1;
    /// [`super::StepHeader`] and its [`super::TokenEvent`]s, from an engine.
    pub const STEP: u16 = 2;
    /// [`crate::prompt_scores`], from an engine.
    pub const PROMPT: u16 = 3;
}

/// A stream begins.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Open {
    /// Whose it is.
    pub id: RequestId,
    /// Strings that end the text; what follows them is not sent, and neither are they, unless `form.include_stop`.
    pub stop: Vec<String>,
    /// How its text is made.
    pub form: TextForm,
    /// Ids generated before a restart; they seed the decode state and send no text.
    pub resume: Vec<u32>,
}

/// How the text of a stream is made of its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TextForm {
    /// Send the stop string, or the text of the token, that ended the text.
    pub include_stop: bool,
    /// Send the marks of reasoning by themselves, where they are tokens. No stop string reaches across one then.
    pub marks: bool,
    /// Send the names of special tokens, which show nothing otherwise.
    pub special: bool,
    /// It goes on with a text that its reader has: a space at its beginning is shown, which some tokenizers drop at the
    /// beginning of a text.
    pub continues: bool,
}

impl TextForm {
    /// One bit for each field, in their order.
    fn bits(self) -> u32 {
        let fields = [self.include_stop, self.marks, self.special, self.continues];
        (0..).zip(fields).map(|(at, field)| u32::from(field) << at).sum()
    }

    fn of_bits(bits: u32) -> Result<TextForm, Malformed> {
        let bit = |at: u32| bits >> at & 1 != 0;
        let form = TextForm { include_stop: bit(0), marks: bit(1), special: bit(2), continues: bit(3) };
        if form.bits() == bits { Ok(form) } else { Err(Malformed("open flag")) }
    }
}

/// Replaces `out` by the payload of an [`Open`] of these parts.
pub fn encode_open(out: &mut Vec<u8>, id: RequestId, stop: &[String], form: TextForm, resume: &[u32]) {
    out.clear();
    put(out, &id);
    put_ids(out, &[stop.len() as u32, form.bits(), resume.len() as u32]);
    for stop in stop {
        put_ids(out, &[stop.len() as u32]);
        out.extend_from_slice(stop.as_bytes());
    }
    put_ids(out, resume);
}

impl Open {
    /// Replaces `out` by the record's payload; its kind is [`kind::OPEN`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_open(out, self.id, &self.stop, self.form, &self.resume);
    }

    /// Checks and copies a record. Errors: too many or too long stop strings, lengths that do not add up.
    pub fn decode(payload: &[u8]) -> Result<Open, Malformed> {
        let mut cursor = Cursor(payload);
        let id = cursor.take("open header")?;
        let [stop_count, flags, resume_len]: [u32; 3] = cursor.take("open header")?;
        let form = TextForm::of_bits(flags)?;
        if stop_count as usize > STOP_STRINGS_MAX {
            return Err(Malformed("stop string count"));
        }
        let mut stop = Vec::with_capacity(stop_count as usize);
        for _ in 0..stop_count {
            let len: u32 = cursor.take("stop string length")?;
            if len == 0 || len as usize > STOP_STRING_BYTES_MAX {
                return Err(Malformed("stop string length"));
            }
            stop.push(cursor.text(len as usize, "stop string")?.to_owned());
        }
        let resume = cursor.ids(resume_len as usize, "resume ids")?;
        cursor.end("open tail")?;
        Ok(Open { id, stop, form, resume })
    }
}

/// Head of a step record: when it happened and how many events follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct StepHeader {
    /// Number of the engine's step.
    pub step: u64,
    /// CLOCK_MONOTONIC ns of the publish.
    pub time_ns: u64,
    /// [`TokenEvent`]s that follow.
    pub event_count: u32,
    /// [`LogprobEntry`]s that follow the events.
    pub logprob_count: u32,
}

/// The event carries a token.
pub const EVENT_TOKEN: u32 = 1;
/// No further event comes for this request; the detokenizer flushes its tail.
pub const EVENT_LAST: u32 = 2;
/// The token is the end-of-sequence token or one of the request's stop ids: it ends the text and shows nothing, unless
/// the stream's [`TextForm::include_stop`] says so.
pub const EVENT_EOS: u32 = 4;

/// All bits of an event, which stand in its first byte.
const EVENT_FLAGS: u8 = (EVENT_TOKEN | EVENT_LAST | EVENT_EOS) as u8;

/// What one sequence got in one step: 24 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TokenEvent {
    /// Whose it is.
    pub id: RequestId,
    /// The token, if [`EVENT_TOKEN`] is set.
    pub token: u32,
    /// 0-based number of the token among the generated ones.
    pub sequence: u32,
    /// `EVENT_*` bits.
    pub flags: u32,
    /// Index among the step's logprobs of the token's first one, if it has any. [`encode_step`] fills it in.
    pub logprob_index: u16,
    /// How many it has: the token's own, then the alternatives; 0 if the request does not ask.
    pub logprob_count: u16,
}

const _: () = assert!(STEP_EVENTS_MAX * ENTRIES_MAX <= u16::MAX as usize);

const _: () = assert!(size_of::<TokenEvent>() == 24 && size_of::<StepHeader>() == 24);

/// Replaces `out` by a step record's payload; its kind is [`kind::STEP`]. `logprobs` holds those of the events one
/// after another. No allocation once `out` has grown to its largest step.
pub fn encode_step(
    out: &mut Vec<u8>,
    step: u64,
    time_ns: u64,
    events: &[TokenEvent],
    logprobs: &[LogprobEntry],
) {
    out.clear();
    let (event_count, logprob_count) = (events.len() as u32, logprobs.len() as u32);
    put(out, &StepHeader { step, time_ns, event_count, logprob_count });
    let mut logprob_index = 0u16;
    for event in events {
        put(out, &TokenEvent { logprob_index, ..*event });
        logprob_index = logprob_index.saturating_add(event.logprob_count);
    }
    out.extend_from_slice(logprobs.as_bytes());
}

/// The logprobs of a step record.
#[derive(Clone, Copy, Debug)]
pub struct StepLogprobs<'a>(&'a [u8]);

impl StepLogprobs<'_> {
    /// Replaces `out` by those of one event. Errors: a range outside the record, a number that is not finite.
    pub fn read(&self, event: &TokenEvent, out: &mut Vec<LogprobEntry>) -> Result<(), Malformed> {
        const BYTES: usize = size_of::<LogprobEntry>();
        out.clear();
        let (index, count) = (usize::from(event.logprob_index), usize::from(event.logprob_count));
        let range = index * BYTES..(index + count) * BYTES;
        let bytes = self.0.get(range).filter(|_| count <= ENTRIES_MAX).ok_or(Malformed("step logprobs"))?;
        out.extend(bytes.chunks_exact(BYTES).filter_map(|bytes| LogprobEntry::read_from_bytes(bytes).ok()));
        if out.iter().all(|entry| entry.logprob.is_finite()) { Ok(()) } else { Err(Malformed("logprob")) }
    }
}

/// Checks a step record and returns its head, its events one by one, and their logprobs.
pub fn decode_step(
    payload: &[u8],
) -> Result<(StepHeader, impl Iterator<Item = TokenEvent> + '_, StepLogprobs<'_>), Malformed> {
    let mut cursor = Cursor(payload);
    let header: StepHeader = cursor.take("step header")?;
    let count = header.event_count as usize;
    if count > STEP_EVENTS_MAX {
        return Err(Malformed("step events"));
    }
    let events = cursor.bytes(count * size_of::<TokenEvent>(), "step events")?;
    let logprob_bytes = (header.logprob_count as usize).checked_mul(size_of::<LogprobEntry>());
    if logprob_bytes != Some(cursor.0.len()) {
        return Err(Malformed("step length"));
    }
    let events = events.chunks_exact(size_of::<TokenEvent>());
    if events.clone().any(|bytes| bytes[16] & !EVENT_FLAGS != 0 || bytes[17..20] != [0; 3]) {
        return Err(Malformed("step event flags"));
    }
    let events = events.filter_map(|bytes| TokenEvent::read_from_bytes(bytes).ok());
    Ok((header, events, StepLogprobs(cursor.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_round_trips() {
        let event = TokenEvent {
            id: RequestId { frontend: 1, slot: 2, generation: 3 },
            token: 4,
            sequence: 5,
            flags: EVENT_TOKEN | EVENT_LAST,
            logprob_index: 0,
            logprob_count: 0,
        };
        let mut bytes = Vec::new();
        encode_step(&mut bytes, 6, 7, &[event; 3], &[]);
        let (header, events, _) = decode_step(&bytes).unwrap();
        assert_eq!((header.step, header.time_ns), (6, 7));
        assert_eq!(events.collect::<Vec<_>>(), vec![event; 3]);
        assert!(decode_step(&bytes[..bytes.len() - 1]).is_err());

        let counts = [2, 0, 1];
        let events = counts.map(|logprob_count| TokenEvent { logprob_count, ..event });
        let entries = [1, 2, 3].map(|token| LogprobEntry { token, logprob: -(token as f32) });
        encode_step(&mut bytes, 6, 7, &events, &entries);
        let (_, events, logprobs) = decode_step(&bytes).unwrap();
        let mut read = Vec::new();
        let tokens: Vec<Vec<u32>> = events
            .map(|event| logprobs.read(&event, &mut read).map(|()| read.iter().map(|e| e.token).collect()))
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(tokens, [vec![1, 2], vec![], vec![3]]);
        let beyond = TokenEvent { logprob_index: 2, logprob_count: 2, ..event };
        assert!(logprobs.read(&beyond, &mut read).is_err());
        assert!(decode_step(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn an_opening_round_trips_and_refuses_an_empty_stop_string() {
        let mut bytes = Vec::new();
        for bits in 0..16 {
            let form = TextForm::of_bits(bits).unwrap();
            let stop = vec!["\n\n".into(), "終".into()];
            let open = Open { stop, form, resume: vec![1], ..Open::default() };
            open.encode(&mut bytes);
            assert_eq!(Open::decode(&bytes), Ok(open));
        }
        assert!(TextForm::of_bits(16).is_err());
        Open { stop: vec![String::new()], ..Open::default() }.encode(&mut bytes);
        assert!(Open::decode(&bytes).is_err());
    }
}
