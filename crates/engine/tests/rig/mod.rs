//! Everything around the engine's loop in one thread: real rings over heap memory, real slot tables, and readers that
//! hold every record against what may follow it.

#![allow(dead_code, unreachable_pub)] // each test file includes it and uses its part

pub mod grammars;
pub mod hashed;

use pinion_engine::{Engine, Ports, Sizes};
use pinion_model::{
    FakeModel, FakeOptions, FakeShape, Inline, Model, Pipeline, STEP_DEADLINE, Threaded, WarmUp,
};
use pinion_protocol::detokenizer_inbox::{self, EVENT_EOS, EVENT_LAST, EVENT_TOKEN, decode_step};
use pinion_protocol::engine_inbox::{self, Admit};
use pinion_protocol::frontend_inbox::{self, Finished, Pooled, Reject};
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::prompt_scores::decode_prompt;
use pinion_protocol::scores::LogprobEntry;
use pinion_protocol::status::Gauge;
use pinion_protocol::{Claim, Peer, RequestId, Role, Sampling, StopIds};
use pinion_scheduler::{Limits, Policy};
use pinion_shm::page::Page;
use pinion_shm::region::{Region, RegionKind};
use pinion_shm::ring::{Reader, Record, Wake, Writer, region_words};
use pinion_shm::slots::{SlotState, SlotTable};
use pinion_shm::spans::{self, SpanWriter};
use pinion_shm::words::HeapWords;
use pinion_worker::{Overflow, Recorder};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub const FRONTENDS: u16 = 2;
pub const DETOKENIZERS: u16 = 2;
pub const TOKENIZERS: u16 = 2;
pub const SLOTS: u16 = 32;
pub const VOCABULARY: u32 = 1000;
pub const EOS: u32 = 7;
const RING_BYTES: usize = 1 << 20;

/// Nothing sleeps in one thread.
pub struct NoBell;

impl Wake for NoBell {
    fn wake(&self) {}
}

pub struct Edge {
    writer: Writer<HeapWords, NoBell>,
    reader: Reader<HeapWords>,
}

impl Edge {
    fn new() -> Edge {
        let words = HeapWords::new(region_words(RING_BYTES));
        let writer = Writer::new(words.clone(), 1, NoBell).expect("the words are new");
        Edge { writer, reader: Reader::new(words, 1).expect("the words are a ring") }
    }
}

/// What came of one request, as its detokenizer and its frontend saw it.
#[derive(Debug, Default, Clone)]
pub struct Story {
    pub tokens: Vec<u32>,
    /// Of each token: its own and the alternatives, as the record has them.
    pub logprobs: Vec<Vec<LogprobEntry>>,
    /// Of each token of the prompt: its rank and its entries.
    pub prompt: Vec<(Option<u32>, Vec<LogprobEntry>)>,
    pub first_sequence: Option<u32>,
    pub last_events: u32,
    pub eos: bool,
    pub finished: Vec<Finished>,
    /// Of its prompt, if the model pools.
    pub vectors: Vec<Vec<f32>>,
    pub rejected: Vec<Reject>,
}

pub struct Rig {
    admits: Vec<Edge>,
    to_detokenizer: Vec<Edge>,
    to_frontend: Vec<Edge>,
    pub tables: Vec<SlotTable>,
    pub page: Page,
    /// Consumers that do not read.
    pub stuck: HashSet<Peer>,
    pub stories: HashMap<RequestId, Story>,
    pub records_sent: u64,
    recorder: Recorder,
    /// What the engine is told of its detokenizers.
    pub lag_bytes: usize,
    now_ns: std::cell::Cell<u64>,
    /// What models have taken, if a test's model says so.
    pub model_ns: Arc<AtomicU64>,
    /// Inboxes that the engine found corrupt, and why.
    pub condemned: Vec<(usize, &'static str)>,
}

impl Rig {
    pub fn new() -> Rig {
        let edges = |count: u16| (0..count).map(|_| Edge::new()).collect();
        let table = |_| SlotTable::create(1, 1, usize::from(SLOTS)).expect("memory for a table");
        Rig {
            admits: edges(TOKENIZERS),
            to_detokenizer: edges(DETOKENIZERS),
            to_frontend: edges(FRONTENDS),
            tables: (0..FRONTENDS).map(table).collect(),
            page: Page::create(1, 1, pinion_protocol::limits::GAUGE_COUNT).expect("memory for a page"),
            stuck: HashSet::new(),
            stories: HashMap::new(),
            records_sent: 0,
            recorder: recorder(),
            lag_bytes: 0,
            now_ns: std::cell::Cell::new(1),
            model_ns: Arc::default(),
            condemned: Vec::new(),
        }
    }

    /// Opens a slot as its frontend does.
    pub fn open(&self, frontend: u16, slot: u16) -> RequestId {
        let generation = self.tables[usize::from(frontend)].slot(usize::from(slot)).expect("a slot").open();
        RequestId { frontend, slot, generation }
    }

    pub fn close(&self, id: RequestId) {
        let table = &self.tables[usize::from(id.frontend)];
        table.slot(usize::from(id.slot)).expect("a slot").close(id.generation);
    }

    pub fn cancel(&self, id: RequestId) -> bool {
        self.tables[usize::from(id.frontend)]
            .slot(usize::from(id.slot))
            .expect("a slot")
            .cancel(id.generation)
    }

    pub fn stop(&self, id: RequestId) -> bool {
        self.tables[usize::from(id.frontend)].slot(usize::from(id.slot)).expect("a slot").stop(id.generation)
    }

    pub fn stamped(&self, id: RequestId, stage: Stage) -> u64 {
        self.tables[usize::from(id.frontend)]
            .slot(usize::from(id.slot))
            .expect("a slot")
            .stamped(id.generation, stage as usize)
    }

    pub fn counted(&self, id: RequestId, counter: Counter) -> u64 {
        let slot = self.tables[usize::from(id.frontend)].slot(usize::from(id.slot));
        slot.expect("a slot").counter(id.generation, counter as usize)
    }

    /// A raw record from one of the tokenizers.
    pub fn post(&mut self, tokenizer: u16, kind: u16, payload: &[u8]) {
        let edge = &mut self.admits[usize::from(tokenizer % TOKENIZERS)];
        edge.writer.push(kind, payload).expect("the ring is large");
        edge.writer.publish();
    }

    pub fn admit(&mut self, id: RequestId, ids: &[u32], prompt_tokens: usize, sampling: Sampling) {
        let mut bytes = Vec::new();
        let prompt_tokens = prompt_tokens as u32;
        Admit { id, claim: Claim::default(), sampling, ids: ids.to_vec(), prompt_tokens }.encode(&mut bytes);
        self.post(id.slot, engine_inbox::kind::ADMIT, &bytes);
    }

    pub fn gauge(&self, gauge: Gauge) -> u64 {
        self.page.get(gauge as usize)
    }

    /// Reads everything that was published, and checks each record against what came before it.
    pub fn read(&mut self) {
        for (index, edge) in self.to_detokenizer.iter_mut().enumerate() {
            while let Some(record) = edge.reader.next().expect("the ring is sound") {
                if record.kind == detokenizer_inbox::kind::PROMPT {
                    take_prompt(record.payload, &mut self.stories);
                    continue;
                }
                let (_, events, logprobs) = decode_step(record.payload).expect("a step");
                for event in events {
                    assert_eq!(usize::from(event.id.detokenizer(DETOKENIZERS)), index, "sent to another");
                    let story = self.stories.entry(event.id).or_default();
                    assert_eq!(story.last_events, 0, "{}: an event after the last", event.id);
                    if event.flags & EVENT_TOKEN != 0 {
                        let first = *story.first_sequence.get_or_insert(event.sequence);
                        assert_eq!(event.sequence, first + story.tokens.len() as u32, "{}", event.id);
                        story.tokens.push(event.token);
                        let mut entries = Vec::new();
                        logprobs.read(&event, &mut entries).expect("logprobs");
                        story.logprobs.push(entries);
                    }
                    story.last_events += u32::from(event.flags & EVENT_LAST != 0);
                    story.eos |= event.flags & EVENT_EOS != 0;
                }
            }
        }
        for (index, edge) in self.to_frontend.iter_mut().enumerate() {
            while let Some(record) = edge.reader.next().expect("the ring is sound") {
                let id = match record.kind {
                    frontend_inbox::kind::FINISHED => {
                        let finished = Finished::decode(record.payload).expect("a finished record");
                        self.stories.entry(finished.id).or_default().finished.push(finished);
                        finished.id
                    }
                    frontend_inbox::kind::POOLED => {
                        let pooled = Pooled::decode(record.payload).expect("a vector");
                        let story = self.stories.entry(pooled.id).or_default();
                        assert!(story.finished.is_empty(), "a vector comes ahead of the end");
                        story.vectors.push(pooled.values);
                        continue;
                    }
                    frontend_inbox::kind::REJECT => {
                        let reject = Reject::decode(record.payload).expect("a rejection");
                        let id = reject.id;
                        self.stories.entry(id).or_default().rejected.push(reject);
                        id
                    }
                    other => panic!("record kind {other} is nothing that an engine sends"),
                };
                assert_eq!(usize::from(id.frontend), index, "sent to another");
                let story = &self.stories[&id];
                assert_eq!(story.finished.len() + story.rejected.len(), 1, "{id}: ended twice");
            }
        }
    }

    /// The story of a request that has ended by a finished record, checked for being whole.
    pub fn ended(&self, id: RequestId) -> (Story, Finished) {
        let story = self.stories.get(&id).cloned().unwrap_or_default();
        let [finished] = story.finished[..] else { panic!("{id} has not ended: {story:?}") };
        assert_eq!(story.last_events, 1, "{id}: the detokenizer hears of the end once");
        let resumed = story.first_sequence.unwrap_or(finished.generated_tokens);
        assert_eq!(resumed as usize + story.tokens.len(), finished.generated_tokens as usize, "{id}");
        (story, finished)
    }
}

/// Scores of prompt tokens come in order, each once, before anything that the request generates.
fn take_prompt(payload: &[u8], stories: &mut HashMap<RequestId, Story>) {
    let record = decode_prompt(payload).expect("scores of a prompt");
    let story = stories.entry(record.header.id).or_default();
    assert_eq!((story.tokens.len(), story.last_events), (0, 0), "late scores of a prompt");
    assert_eq!(record.header.first_index as usize, story.prompt.len(), "scores in order");
    for at in 0..record.header.token_count {
        let mut entries = Vec::new();
        let rank = record.read(at, &mut entries).expect("a score");
        story.prompt.push((rank, entries));
    }
}

impl Ports for Rig {
    fn now_ns(&self) -> u64 {
        self.now_ns.set(self.now_ns.get() + 1000);
        self.now_ns.get() + self.model_ns.load(Ordering::Relaxed)
    }

    fn inbox_count(&self) -> usize {
        self.admits.len()
    }

    fn next_record(&mut self, inbox: usize) -> Option<Record<'_>> {
        self.admits[inbox].reader.next().expect("the ring is sound")
    }

    fn condemn(&mut self, inbox: usize, what: &'static str) {
        self.condemned.push((inbox, what));
    }

    fn slot(&self, id: RequestId) -> Option<SlotState> {
        Some(self.tables.get(usize::from(id.frontend))?.slot(usize::from(id.slot))?.state())
    }

    fn stamp(&self, id: RequestId, stage: Stage, ns: u64) {
        let slot = self.tables[usize::from(id.frontend)].slot(usize::from(id.slot));
        slot.expect("a slot").stamp(id.generation, stage as usize, ns);
    }

    fn count(&self, id: RequestId, counter: Counter, value: u64) {
        let slot = self.tables[usize::from(id.frontend)].slot(usize::from(id.slot));
        slot.expect("a slot").set_counter(id.generation, counter as usize, value);
    }

    fn send(&mut self, to: Peer, kind: u16, payload: &[u8]) -> Result<(), Overflow> {
        if self.stuck.contains(&to) {
            return Err(Overflow);
        }
        let edges = match to.role {
            Role::Detokenizer => &mut self.to_detokenizer,
            Role::Frontend => &mut self.to_frontend,
            other => panic!("an engine sends nothing to a {}", other.name()),
        };
        self.records_sent += 1;
        edges[usize::from(to.index)].writer.push(kind, payload).map_err(|_| Overflow)
    }

    fn detokenizer_lag_bytes(&self) -> usize {
        self.lag_bytes
    }

    fn publish(&mut self) {
        for edge in self.to_detokenizer.iter_mut().chain(&mut self.to_frontend) {
            edge.writer.publish();
        }
    }

    fn excuse(&mut self, _ns: u64) {}

    fn set_gauge(&self, gauge: Gauge, value: u64) {
        self.page.set(gauge as usize, value);
    }

    fn add_one(&self, gauge: Gauge) {
        self.page.add(gauge as usize, 1);
    }

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }
}

/// With a ring, as in the service, so that what the tests count includes it.
fn recorder() -> Recorder {
    let words = spans::region_words(256);
    let ring = Region::create("pinion-test", RegionKind::Spans, 1, 1, words).expect("memory for a ring");
    Recorder::new(SpanWriter::new(ring), None)
}

/// Sizes that make preemption, chunks and queueing common.
pub fn small() -> Sizes {
    Sizes {
        limits: Limits {
            max_num_seqs: 8,
            max_num_batched_tokens: 24,
            max_requests: u32::from(SLOTS) * u32::from(FRONTENDS),
            max_model_len: 128,
            block_size: 4,
            block_count: 60,
            stop_ids: StopIds::one(EOS),
        },
        policy: Policy::default(),
        command_budget: 5,
        fill_to_target: false,
        detokenizer_count: DETOKENIZERS,
    }
}

pub fn shape(limits: &Limits) -> FakeShape {
    FakeShape {
        vocab_size: VOCABULARY,
        max_context: limits.max_model_len,
        eos: limits.stop_ids.first(),
        block_size: limits.block_size,
        block_count: limits.block_count,
    }
}

pub fn fake(limits: &Limits) -> Box<dyn Model> {
    Box::new(FakeModel::new(shape(limits), FakeOptions::default()))
}

/// The same with texts that repeat themselves.
pub fn fake_repeating(limits: &Limits) -> Box<dyn Model> {
    Box::new(FakeModel::new(shape(limits), FakeOptions::default()).repeating(5))
}

pub fn pipeline(model: Box<dyn Model>, overlap: bool) -> Box<dyn Pipeline> {
    if overlap {
        Box::new(Threaded::start(|| Ok(model), STEP_DEADLINE).expect("a thread for the model"))
    } else {
        Box::new(Inline::new(model))
    }
}

/// The shapes that an engine of these limits tells its pipeline before the first step.
pub fn shapes(limits: &Limits) -> WarmUp {
    WarmUp { max_rows: limits.max_num_seqs, max_tokens: limits.max_num_batched_tokens }
}

pub fn engine(sizes: Sizes, overlap: bool) -> Engine {
    let mut pipeline = pipeline(fake(&sizes.limits), overlap);
    pipeline.warm_up(&shapes(&sizes.limits)).expect("the fake model is always warm");
    Engine::new(pipeline, sizes)
}

/// Draws what a test asks for.
pub struct Random(pinion_random::Random);

impl Random {
    /// A failing test prints the seed.
    pub fn new(seed: u64) -> Random {
        Random(pinion_random::Random::new(seed))
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        self.0.below(bound as usize) as u32
    }

    pub fn prompt(&mut self, len: u32) -> Vec<u32> {
        (0..len).map(|_| self.below(VOCABULARY)).collect()
    }
}
