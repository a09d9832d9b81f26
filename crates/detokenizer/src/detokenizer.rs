//! The state of every stream, and what a record does to it.
//!
//! A state is freed when its last event arrives, when its frontend is replaced, or when its slot has moved
//! on ([`Detokenizer::sweep`]), so nothing leaks when any role dies. In the steady state a token costs no
//! allocation: streams are looked up by slot, and text and records go through buffers that keep their size.

use crate::outgoing::{Outgoing, Piece};
use crate::stream::{MarkIds, Progress, Stream, mark_ids};
use crate::waiting::Waiting;
use pinion_protocol::detokenizer_inbox::{
    EVENT_LAST, EVENT_TOKEN, Open, StepLogprobs, TokenEvent, decode_step, kind,
};
use pinion_protocol::frontend_inbox::{DELTA_LAST, DELTA_PROMPT, DELTA_STOPPED};
use pinion_protocol::limits::DELTA_WAITING_BYTES_MAX;
use pinion_protocol::names::Stage;
use pinion_protocol::prompt_scores::{PromptHeader, begin_prompt_score, decode_prompt};
use pinion_protocol::scores::{LogprobEntry, begin_scores, put_score};
use pinion_protocol::{Malformed, RequestId};
use pinion_shm::slots::{Slot, SlotTable};
use pinion_text::TextCodec;

/// Totals since the start, and the states held now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events and openings dropped because their request is over.
    pub stale: u64,
    /// Deltas made.
    pub deltas: u64,
    /// Streams with a state.
    pub states: u64,
}

/// The role without its links.
pub struct Detokenizer {
    codec: TextCodec,
    /// The codec's marks of reasoning.
    marks: Option<MarkIds>,
    record_bytes_max: usize,
    /// Tokens of a stream that leave together.
    interval: u32,
    /// By frontend.
    tables: Vec<SlotTable>,
    /// By frontend, then slot; grows to the largest slot used.
    streams: Vec<Vec<Option<Stream>>>,
    /// By frontend.
    outgoing: Vec<Outgoing>,
    counts: Counts,
    piece: String,
    text: String,
    /// What leaves before a mark.
    before: String,
    /// The scores of one token, and what they are made of.
    scores: Vec<u8>,
    logprobs: Vec<LogprobEntry>,
    bytes: Vec<u8>,
}

impl Detokenizer {
    /// No streams yet. `tables` are the frontends' slot tables in order; a delta record has at most `record_bytes_max`
    /// bytes unless a single delta is larger.
    pub fn new(codec: TextCodec, tables: Vec<SlotTable>, record_bytes_max: usize) -> Detokenizer {
        Detokenizer {
            marks: mark_ids(&codec),
            codec,
            record_bytes_max,
            interval: 1,
            streams: tables.iter().map(|_| Vec::new()).collect(),
            outgoing: tables.iter().map(|_| Outgoing::default()).collect(),
            tables,
            counts: Counts::default(),
            piece: String::new(),
            text: String::new(),
            before: String::new(),
            scores: Vec::new(),
            logprobs: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// The same, with this number of tokens of a stream sent together; its first text leaves at once and its tail with
    /// the end.
    pub fn with_interval(self, interval: u32) -> Detokenizer {
        Detokenizer { interval, ..self }
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// A record from frontend `from`: a stream begins. A slot's earlier stream ends without a word.
    pub fn open(&mut self, from: u16, record_kind: u16, payload: &[u8]) -> Result<(), Malformed> {
        if record_kind != kind::OPEN {
            return Err(Malformed("kind of a record from a frontend"));
        }
        let open = Open::decode(payload)?;
        let id = open.id;
        let slots = self.tables.get(usize::from(from)).map_or(0, SlotTable::len);
        if id.frontend != from || usize::from(id.slot) >= slots || !self.is_possible(id) {
            return Err(Malformed("request of an opening"));
        }
        if self.current_slot(id).is_none() {
            self.counts.stale += 1;
            return Ok(());
        }
        let stream =
            Stream::new(open, (&self.codec, self.marks), self.interval, &mut self.piece, &mut self.text);
        let streams = &mut self.streams[usize::from(from)];
        let slot = usize::from(id.slot);
        if streams.len() <= slot {
            streams.resize_with(slot + 1, || None);
        }
        if streams[slot].replace(stream).is_none() {
            self.counts.states += 1;
        }
        Ok(())
    }

    /// A record from an engine, taken at `now_ns`: one event per token of a step. What it gives is in
    /// [`Detokenizer::records`] afterwards.
    pub fn step(&mut self, record_kind: u16, payload: &[u8], now_ns: u64) -> Result<(), Malformed> {
        if record_kind == kind::PROMPT {
            return self.prompt(payload);
        }
        if record_kind != kind::STEP {
            return Err(Malformed("kind of a record from an engine"));
        }
        let (_, events, logprobs) = decode_step(payload)?;
        let mut answer = Ok(());
        for event in events {
            answer = self.score(&event, logprobs).and_then(|()| self.event(event, now_ns));
            if answer.is_err() {
                break;
            }
        }
        self.outgoing.iter_mut().for_each(Outgoing::close);
        answer
    }

    /// Scores of prompt tokens: a delta for each, without text.
    fn prompt(&mut self, payload: &[u8]) -> Result<(), Malformed> {
        let record = decode_prompt(payload)?;
        let PromptHeader { id, first_index, token_count, .. } = record.header;
        let Some(stream) = stream_of(&mut self.streams, id) else { return self.stale(id) };
        if stream.progress != Progress::Flowing {
            return Ok(());
        }
        if first_index != stream.next_scored {
            return Err(Malformed("index of a prompt's score"));
        }
        stream.next_scored += token_count;
        let mut answer = Ok(());
        for at in 0..token_count {
            match record.read(at, &mut self.logprobs) {
                Ok(rank) => {
                    self.scores.clear();
                    begin_prompt_score(&mut self.scores, rank);
                    self.put_scores();
                    let piece = Piece {
                        id,
                        sequence: first_index + at,
                        ids: &[],
                        text: "",
                        flags: DELTA_PROMPT,
                        scores: &self.scores,
                    };
                    self.outgoing[usize::from(id.frontend)].put(piece, self.record_bytes_max);
                    self.counts.deltas += 1;
                }
                Err(malformed) => {
                    answer = Err(malformed);
                    break;
                }
            }
        }
        self.outgoing.iter_mut().for_each(Outgoing::close);
        answer
    }

    /// Appends what is in `logprobs` to `scores`, with the tokens' texts.
    fn put_scores(&mut self) {
        begin_scores(&mut self.scores, self.logprobs.len());
        for entry in &self.logprobs {
            self.bytes.clear();
            self.codec.token_bytes(entry.token, &mut self.bytes);
            let name = self.bytes.is_empty().then(|| self.codec.special_token(entry.token)).flatten();
            let special = name.is_some();
            self.bytes.extend(name.unwrap_or_default().into_bytes());
            put_score(&mut self.scores, *entry, &self.bytes, special);
        }
    }

    /// Replaces `scores` by those of the event's token.
    fn score(&mut self, event: &TokenEvent, logprobs: StepLogprobs<'_>) -> Result<(), Malformed> {
        self.scores.clear();
        if event.logprob_count == 0 || event.flags & EVENT_TOKEN == 0 {
            return Ok(());
        }
        logprobs.read(event, &mut self.logprobs)?;
        self.put_scores();
        Ok(())
    }

    /// Counts what came for a request that is over. Errors: there never was such a request.
    fn stale(&mut self, id: RequestId) -> Result<(), Malformed> {
        if !self.is_possible(id) {
            return Err(Malformed("request of an event"));
        }
        self.counts.stale += 1;
        Ok(())
    }

    /// Whether there is such a slot, and it has, or had, a request of that generation.
    fn is_possible(&self, id: RequestId) -> bool {
        let table = self.tables.get(usize::from(id.frontend));
        let slot = table.and_then(|table| table.slot(usize::from(id.slot)));
        slot.is_some_and(|slot| slot.state().has_reached(id.generation))
    }

    fn event(&mut self, event: TokenEvent, now_ns: u64) -> Result<(), Malformed> {
        let id = event.id;
        let Some(stream) = stream_of(&mut self.streams, id) else { return self.stale(id) };
        if !stream.expects(&event) {
            return Err(Malformed("sequence of an event"));
        }
        self.text.clear();
        let sequence = if event.flags & EVENT_TOKEN != 0 { event.sequence } else { stream.next_sequence };
        let outgoing = &mut self.outgoing[usize::from(id.frontend)];
        let flags = match stream.mark(&event) {
            None => stream.advance(&self.codec, &event, &mut self.piece, &mut self.text),
            Some(mark) => {
                self.before.clear();
                let texts = (&mut self.before, &mut self.text);
                let flags = stream.advance_mark(&self.codec, (&event, mark), &mut self.piece, texts);
                // The mark is alone in its delta: what waits leaves before it.
                if !self.before.is_empty() || !stream.waiting.is_empty() {
                    let piece = Piece { id, sequence, ids: &[], text: &self.before, flags: 0, scores: &[] };
                    self.counts.deltas += put(stream, outgoing, piece, true, self.record_bytes_max);
                }
                Some(flags)
            }
        };
        let is_first_text = !self.text.is_empty() && !std::mem::replace(&mut stream.has_text, true);
        // Behind a hole in the text only the end is told.
        let has_token = event.flags & EVENT_TOKEN != 0 && stream.progress != Progress::Lost;
        let ids: &[u32] = if has_token { &[event.token] } else { &[] };
        let piece = Piece { id, sequence, ids, text: &self.text, flags: 0, scores: &self.scores };
        if let Some(flags) = flags {
            let piece = Piece { flags, ..piece };
            let leaves = flags != 0 || is_first_text || !stream.has_text;
            self.counts.deltas += put(stream, outgoing, piece, leaves, self.record_bytes_max);
        }
        if event.flags & EVENT_LAST != 0 {
            self.streams[usize::from(id.frontend)][usize::from(id.slot)] = None;
            self.counts.states -= 1;
        }
        if let Some(flags) = flags {
            self.mark_slot(id, is_first_text, flags, now_ns);
        }
        Ok(())
    }

    /// Stamps the timeline, and lets the engine see a stop string by one store. A slot that has moved on is
    /// left alone.
    fn mark_slot(&self, id: RequestId, is_first_text: bool, flags: u32, now_ns: u64) {
        if !is_first_text && flags == 0 {
            return;
        }
        let Some(slot) = self.current_slot(id) else { return };
        if is_first_text {
            slot.stamp(id.generation, Stage::FirstText as usize, now_ns);
        }
        if flags & DELTA_LAST != 0 {
            slot.stamp(id.generation, Stage::LastText as usize, now_ns);
        }
        if flags & DELTA_STOPPED != 0 {
            slot.stop(id.generation);
        }
    }

    /// The delta records made since the last [`Detokenizer::clear`], for frontend `frontend`.
    pub fn records(&self, frontend: u16) -> impl Iterator<Item = &[u8]> {
        self.outgoing.get(usize::from(frontend)).into_iter().flat_map(Outgoing::records)
    }

    /// Forgets the records, which have been sent.
    pub fn clear(&mut self) {
        self.outgoing.iter_mut().for_each(Outgoing::clear);
    }

    /// The frontend did not take a record: its text has a hole, so every request that it has here is
    /// cancelled. Their ends are still sent when the engine says so.
    pub fn abandon(&mut self, frontend: u16) {
        let Some(streams) = self.streams.get_mut(usize::from(frontend)) else { return };
        for stream in streams.iter_mut().flatten().filter(|stream| stream.progress == Progress::Flowing) {
            stream.progress = Progress::Lost;
            if let Some(slot) = self.tables[usize::from(frontend)].slot(usize::from(stream.id.slot)) {
                slot.cancel(stream.id.generation);
            }
        }
    }

    /// A frontend has a fresh slot table: everything of its predecessor is gone.
    pub fn replace_slots(&mut self, frontend: u16, table: SlotTable) {
        let index = usize::from(frontend);
        let Some(place) = self.tables.get_mut(index) else { return };
        *place = table;
        self.counts.states -= self.streams[index].iter().flatten().count() as u64;
        self.streams[index].clear();
        self.outgoing[index].clear();
    }

    /// Frees the states whose slot is closed or has another request: the frontend gave them up, and no last
    /// event may ever come.
    pub fn sweep(&mut self) {
        if self.counts.states == 0 {
            return;
        }
        for (streams, table) in self.streams.iter_mut().zip(&self.tables) {
            for place in streams {
                if place.as_ref().is_some_and(|stream| current_slot(table, stream.id).is_none()) {
                    *place = None;
                    self.counts.states -= 1;
                }
            }
        }
    }

    fn current_slot(&self, id: RequestId) -> Option<Slot<'_>> {
        current_slot(self.tables.get(usize::from(id.frontend))?, id)
    }
}

/// Sends a stream's piece with what waited before it, or lets it wait. Gives the number of deltas.
fn put(
    stream: &mut Stream,
    outgoing: &mut Outgoing,
    piece: Piece<'_>,
    leaves: bool,
    bytes_max: usize,
) -> u64 {
    let waiting = &mut stream.waiting;
    if waiting.is_off() || stream.progress == Progress::Lost {
        outgoing.put(piece, bytes_max);
        return 1;
    }
    let mut deltas = 0;
    if waiting.is_full_for(piece.text, piece.scores) {
        send(waiting, outgoing, Piece { flags: 0, ..piece }, bytes_max);
        deltas += 1;
    }
    let is_large = piece.text.len() + piece.scores.len() > DELTA_WAITING_BYTES_MAX;
    if waiting.is_empty() && (leaves || is_large) {
        outgoing.put(piece, bytes_max);
        return deltas + 1;
    }
    if waiting.push(piece.sequence, piece.ids, piece.text, piece.scores) || leaves {
        send(waiting, outgoing, piece, bytes_max);
        deltas += 1;
    }
    deltas
}

/// Sends all that waits, with the flags of `piece`.
fn send(waiting: &mut Waiting, outgoing: &mut Outgoing, piece: Piece<'_>, bytes_max: usize) {
    let Waiting { first_sequence, ids, text, scores, .. } = &*waiting;
    outgoing.put(Piece { sequence: *first_sequence, ids, text, scores, ..piece }, bytes_max);
    waiting.clear();
}

/// The slot of `id` if it still holds that request.
fn current_slot(table: &SlotTable, id: RequestId) -> Option<Slot<'_>> {
    let slot = table.slot(usize::from(id.slot))?;
    let state = slot.state();
    (state.live && state.generation == id.generation).then_some(slot)
}

/// The stream of this request, if it has a state.
fn stream_of(streams: &mut [Vec<Option<Stream>>], id: RequestId) -> Option<&mut Stream> {
    let stream = streams.get_mut(usize::from(id.frontend))?.get_mut(usize::from(id.slot))?.as_mut()?;
    (stream.id == id).then_some(stream)
}
