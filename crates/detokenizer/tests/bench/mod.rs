//! A detokenizer between an engine and its frontends, and the text that must come out.

#![allow(unreachable_pub)] // a part of its test

use pinion_detokenizer::Detokenizer;
use pinion_protocol::RequestId;
use pinion_protocol::detokenizer_inbox::{
    EVENT_LAST, EVENT_TOKEN, Open, TextForm, TokenEvent, encode_step, kind,
};
use pinion_protocol::frontend_inbox::{DELTA_LAST, DELTA_MARK, DELTA_STOPPED, deltas};
use pinion_protocol::names::Stage;
use pinion_shm::slots::SlotTable;
use pinion_text::{TextCodec, byte_tokenizer_json, byte_tokenizer_json_with};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

pub const SLOTS: usize = 8;
pub const EOS: u32 = 256;
pub const RECORD_BYTES_MAX: usize = 4096;

pub fn codec() -> TextCodec {
    TextCodec::parse(byte_tokenizer_json().as_bytes(), Path::new("tokenizer.json")).unwrap()
}

/// The same with the marks of reasoning as the tokens that follow [`EOS`].
pub fn marked_codec() -> TextCodec {
    let json = byte_tokenizer_json_with(&["<think>", "</think>"]);
    TextCodec::parse(json.as_bytes(), Path::new("tokenizer.json")).unwrap()
}

/// What a frontend has received for one request.
#[derive(Debug, Default, PartialEq)]
pub struct Received {
    pub text: String,
    pub ids: Vec<u32>,
    pub next_sequence: u32,
    pub last: bool,
    pub stopped: bool,
    /// Where in the text marks came by themselves.
    pub marks: Vec<(usize, String)>,
}

/// A detokenizer between an engine and its frontends.
pub struct Bench {
    pub detokenizer: Detokenizer,
    pub tables: Vec<SlotTable>,
    pub received: BTreeMap<RequestId, Received>,
    pub now_ns: u64,
    /// Of the streams opened from now on.
    pub form: TextForm,
}

impl Bench {
    pub fn new(frontends: usize, record_bytes_max: usize) -> Bench {
        let tables: Vec<SlotTable> =
            (0..frontends).map(|_| SlotTable::create(1, 1, SLOTS).unwrap()).collect();
        Bench::with_interval(tables, record_bytes_max, 1)
    }

    pub fn with_interval(tables: Vec<SlotTable>, record_bytes_max: usize, interval: u32) -> Bench {
        Bench::with_codec(codec(), tables, record_bytes_max, interval)
    }

    pub fn with_codec(
        codec: TextCodec,
        tables: Vec<SlotTable>,
        record_bytes_max: usize,
        interval: u32,
    ) -> Bench {
        let detokenizer = Detokenizer::new(codec, tables.clone(), record_bytes_max);
        let detokenizer = detokenizer.with_interval(interval);
        Bench { detokenizer, tables, received: BTreeMap::new(), now_ns: 0, form: TextForm::default() }
    }

    /// Takes a slot and opens a stream in it.
    pub fn open(&mut self, frontend: u16, slot: u16, stop: &[&str], resume: &[u32]) -> RequestId {
        let generation = self.tables[usize::from(frontend)].slot(usize::from(slot)).unwrap().open();
        let id = RequestId { frontend, slot, generation };
        self.open_as(id, stop, resume);
        self.received.insert(id, Received { next_sequence: resume.len() as u32, ..Received::default() });
        id
    }

    pub fn open_as(&mut self, id: RequestId, stop: &[&str], resume: &[u32]) {
        let stop = stop.iter().map(|&s| s.to_owned()).collect();
        let mut payload = Vec::new();
        Open { id, stop, form: self.form, resume: resume.to_vec() }.encode(&mut payload);
        self.detokenizer.open(id.frontend, kind::OPEN, &payload).unwrap();
    }

    /// One step; takes the deltas as a frontend would. Gives the number of records.
    pub fn step(&mut self, events: &[TokenEvent]) -> usize {
        self.now_ns += 1000;
        let mut payload = Vec::new();
        encode_step(&mut payload, 1, self.now_ns, events, &[]);
        self.detokenizer.step(kind::STEP, &payload, self.now_ns).unwrap();
        let mut records = 0;
        for frontend in 0..self.tables.len() as u16 {
            for record in self.detokenizer.records(frontend) {
                records += 1;
                for delta in deltas(record).map(Result::unwrap) {
                    let id = delta.header.id;
                    assert_eq!(id.frontend, frontend);
                    let received = self.received.get_mut(&id).unwrap();
                    assert!(!received.last, "a delta after the last one: {delta:?}");
                    assert_eq!(delta.header.first_sequence, received.next_sequence);
                    received.next_sequence += delta.header.token_count;
                    received.ids.extend(delta.ids());
                    if delta.header.flags & DELTA_MARK != 0 {
                        received.marks.push((received.text.len(), delta.text.to_owned()));
                    }
                    received.text.push_str(delta.text);
                    received.last = delta.header.flags & DELTA_LAST != 0;
                    received.stopped = delta.header.flags & DELTA_STOPPED != 0;
                }
            }
        }
        self.detokenizer.clear();
        records
    }

    pub fn slot_state(&self, id: RequestId) -> pinion_shm::slots::SlotState {
        self.tables[usize::from(id.frontend)].slot(usize::from(id.slot)).unwrap().state()
    }

    pub fn stamped(&self, id: RequestId, stage: Stage) -> u64 {
        self.tables[usize::from(id.frontend)]
            .slot(usize::from(id.slot))
            .unwrap()
            .stamped(id.generation, stage as usize)
    }
}

pub fn event(id: RequestId, token: u32, sequence: u32, flags: u32) -> TokenEvent {
    TokenEvent { id, token, sequence, flags: EVENT_TOKEN | flags, logprob_index: 0, logprob_count: 0 }
}

/// The end of a cancelled request: no token.
pub fn end(id: RequestId) -> TokenEvent {
    TokenEvent { id, token: 0, sequence: 0, flags: EVENT_LAST, logprob_index: 0, logprob_count: 0 }
}

/// Text up to the first stop string, and whether there is one.
pub fn oracle(ids: &[u32], stops: &[String]) -> (String, bool) {
    static CODEC: LazyLock<TextCodec> = LazyLock::new(codec);
    let text = CODEC.decode_all(ids);
    match stops.iter().filter_map(|stop| text.find(stop.as_str())).min() {
        Some(cut) => (text[..cut].to_owned(), true),
        None => (text, false),
    }
}
