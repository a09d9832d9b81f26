//! [`Topology`]: which processes exist, which rings connect them, and how large each ring is.
//!
//! This file is the one home of ring capacities. A capacity is a sum of named users, rounded up to a power of
//! two; and because a record may take at most half of its ring, it is never less than twice the largest record
//! plus its head. A ring that fills all the same is back-pressure, never a loss: the writer keeps a bounded
//! backlog.

use crate::config::Config;
use crate::scheduling::SpeculationKind;
use pinion_protocol::detokenizer_inbox::{StepHeader, TokenEvent};
use pinion_protocol::events_inbox::entry_bytes;
use pinion_protocol::frontend_inbox::{DeltaHeader, FinishedRecord, pooled_record_bytes};
use pinion_protocol::limits::{
    CACHE_RECORD_BYTES_MAX, DELTA_WAITING_BYTES_MAX, DETAIL_BYTES_MAX, DRAFT_STEP_ROWS_MAX,
    STOP_STRING_BYTES_MAX, STOP_STRINGS_MAX, STREAM_INTERVAL_MAX,
};
use pinion_protocol::prompt_scores::PROMPT_RECORD_BYTES_MAX;
use pinion_protocol::sampling::{LISTS_BYTES_MAX, SamplingRecord};
use pinion_protocol::scores::{ENTRIES_MAX, LogprobEntry, SCORES_BYTES_MAX};
use pinion_protocol::{Peer, RequestId, Role};
use serde::{Deserialize, Serialize};

/// Head that the ring puts before each record.
const RECORD_HEAD_BYTES: usize = 16;
/// Smallest ring: one page.
const RING_BYTES_MIN: usize = 4096;
/// Bytes before the variable part of a submit, an admit, an open or a reject; none has a larger head.
const FIXED_PART_BYTES: usize = 120;
/// Steps that a detokenizer may lag behind its engine, and a frontend behind its detokenizer, before the
/// writer's backlog begins.
const LAG_STEPS: usize = 256;
/// Steps whose changes of the prefix cache may wait in the ring of the events role.
const LAG_CACHE_STEPS: usize = 16;
/// Prompt bytes of an ordinary submit, before encoding.
const ORDINARY_PROMPT_BYTES: usize = 2048;
/// Prompt ids of an ordinary admit.
const ORDINARY_PROMPT_IDS: usize = 256;
/// Stop strings of an ordinary open.
const ORDINARY_STOP_BYTES: usize = 64;
/// Text of one token in an ordinary delta.
const ORDINARY_DELTA_TEXT_BYTES: usize = 12;
/// Text of one delta at most: what a stop string held back, and the longest tokens.
const DELTA_TEXT_BYTES_MAX: usize = STOP_STRING_BYTES_MAX + 768;
/// Records of prompt scores that may wait for one detokenizer.
const WAITING_PROMPT_RECORDS: usize = 8;
/// Rejections that may wait for one frontend.
const WAITING_REJECTS: usize = 64;

/// One process and what it may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// The process.
    pub peer: Peer,
    /// CPUs to run on.
    pub cpus: Vec<usize>,
    /// Threads that it may keep busy.
    pub threads: u32,
    /// How long it may spin before it sleeps, in µs; 0 unless it owns its cores.
    pub spin_us: u32,
    /// Its threads may spin for each other within a step.
    pub step_spin: bool,
}

/// The variable that libgomp reads how often its threads spin at a parallel region before they sleep.
const SPINS_VARIABLE: &str = "GOMP_SPINCOUNT";
/// The same where the engine shares its cores: about 0.1 ms, as long as a sleep and a wake-up take, and longer than
/// nearly every gap within a step. A thread that spins for longer beside another program has used up its share of the
/// core when there is work for it (docs/EXPERIMENTS.md).
const SHARED_CORES_SPINS: &str = "2000";

impl Process {
    /// Thread pools are sized by the plan, never by what a library finds. How long their threads spin is left to this
    /// process's environment where that says it.
    pub fn thread_variables(&self) -> Vec<(&'static str, String)> {
        let threads = self.threads.to_string();
        let mut variables = vec![("OMP_NUM_THREADS", threads.clone()), ("MKL_NUM_THREADS", threads)];
        let spins = match (self.step_spin, self.spin_us) {
            (false, _) => Some("0"),
            (true, 0) => Some(SHARED_CORES_SPINS),
            // On its own cores libgomp's default holds.
            (true, _) => None,
        };
        let spins = spins.filter(|_| std::env::var_os(SPINS_VARIABLE).is_none());
        variables.extend(spins.map(|spins| (SPINS_VARIABLE, spins.to_owned())));
        variables
    }
}

/// One ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edge {
    /// The writer.
    pub from: Peer,
    /// The reader.
    pub to: Peer,
    /// Data bytes of the ring; a power of two.
    pub capacity_bytes: usize,
}

impl Edge {
    /// Largest payload that this ring takes. A writer of records whose length a client decides checks it
    /// against this first and answers with a fault.
    pub fn payload_bytes_max(&self) -> usize {
        self.capacity_bytes / 2 - RECORD_HEAD_BYTES
    }
}

/// The processes and rings of one service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// In start order ([`Role::SPAWNED`]), then by index.
    pub processes: Vec<Process>,
    /// One ring each; the order is the order of the launcher's ring-depth gauges.
    pub edges: Vec<Edge>,
}

impl Topology {
    /// Follows from the config alone, so every process computes the same one.
    pub fn new(config: &Config) -> Topology {
        let mut processes = Vec::new();
        for role in Role::SPAWNED {
            for peer in peers(config, role) {
                let place = config.cpu_plan.placement(peer);
                processes.push(Process {
                    peer,
                    cpus: place.map(|p| p.cpus.clone()).unwrap_or_default(),
                    threads: place.map_or(1, |p| p.threads),
                    spin_us: place.map_or(0, |p| p.spin_us),
                    step_spin: place.is_some_and(|p| p.step_spin),
                });
            }
        }
        let sizes = RingSizes::new(config);
        let kinds = [
            (Role::Frontend, Role::Tokenizer, sizes.frontend_to_tokenizer()),
            (Role::Frontend, Role::Detokenizer, sizes.frontend_to_detokenizer()),
            (Role::Tokenizer, Role::Engine, sizes.tokenizer_to_engine()),
            (Role::Tokenizer, Role::Frontend, sizes.tokenizer_to_frontend()),
            (Role::Engine, Role::Detokenizer, sizes.engine_to_detokenizer()),
            (Role::Engine, Role::Frontend, sizes.engine_to_frontend()),
            (Role::Detokenizer, Role::Frontend, sizes.detokenizer_to_frontend()),
            (Role::Engine, Role::Events, sizes.engine_to_events()),
        ];
        let mut edges = Vec::new();
        for (from_role, to_role, capacity_bytes) in kinds {
            for from in peers(config, from_role) {
                edges.extend(peers(config, to_role).map(|to| Edge { from, to, capacity_bytes }));
            }
        }
        Topology { processes, edges }
    }

    /// The process of this peer, if the service has one.
    pub fn process(&self, peer: Peer) -> Option<&Process> {
        self.processes.iter().find(|p| p.peer == peer)
    }

    /// The ring between these two, if there is one.
    pub fn edge(&self, from: Peer, to: Peer) -> Option<&Edge> {
        self.edges.iter().find(|e| e.from == from && e.to == to)
    }

    /// Data bytes of all rings together.
    pub fn shared_bytes(&self) -> usize {
        self.edges.iter().map(|e| e.capacity_bytes).sum()
    }
}

/// The peers of one role.
fn peers(config: &Config, role: Role) -> impl Iterator<Item = Peer> {
    let count = match role {
        Role::Launcher => 0,
        Role::Frontend => config.frontends,
        Role::Tokenizer => config.tokenizers,
        Role::Engine => 1,
        Role::Detokenizer => config.detokenizers,
        Role::Events => u16::from(config.kv_events.is_some()),
    };
    (0..count).map(move |index| Peer::new(role, index))
}

/// Rows of a step: a sequence each, and drafts.
fn rows_max(config: &Config) -> usize {
    let drafts = config.scheduling.speculation != SpeculationKind::Off;
    config.max_num_seqs.max(if drafts { DRAFT_STEP_ROWS_MAX } else { 0 }) as usize
}

/// The numbers that ring sizes follow from.
struct RingSizes {
    /// Slots of one frontend.
    slots: usize,
    /// Requests that can be under way in the whole service.
    slots_total: usize,
    /// Requests that one tokenizer may hold for the engine.
    slots_per_tokenizer: usize,
    /// Bytes of a body.
    body: usize,
    /// Bytes of a full context of ids.
    context_ids: usize,
    /// Rows of a step, each of which gives a token.
    rows: usize,
    /// Bytes of a record with a vector; 0 if the model gives none.
    vector: usize,
    /// KV blocks that a step can fill, and bytes of the entry that tells of one.
    step_blocks: usize,
    block_entry: usize,
}

impl RingSizes {
    fn new(config: &Config) -> RingSizes {
        let slots = config.max_inflight as usize;
        let slots_total = slots * usize::from(config.frontends);
        RingSizes {
            slots,
            slots_total,
            slots_per_tokenizer: slots_total.div_ceil(usize::from(config.tokenizers.max(1))),
            body: config.body_bytes_max,
            context_ids: config.max_model_len as usize * size_of::<u32>(),
            rows: rows_max(config),
            vector: config.pooling.as_ref().map_or(0, |pooling| pooled_record_bytes(pooling.width as usize)),
            step_blocks: config.max_num_batched_tokens.div_ceil(config.block_size) as usize
                + config.max_num_seqs as usize,
            block_entry: entry_bytes(config.block_size as usize),
        }
    }

    /// The longest prompt as it crosses to a tokenizer or comes back from it: ids take four bytes, and two in
    /// the JSON that they came from (`1,`), so a body can double.
    fn prompt_max(&self) -> usize {
        2 * self.body + FIXED_PART_BYTES + self.context_ids
    }

    fn frontend_to_tokenizer(&self) -> usize {
        // an ordinary submit for every slot
        let ordinary = self.slots * (ORDINARY_PROMPT_BYTES + FIXED_PART_BYTES + RECORD_HEAD_BYTES);
        ring_bytes(ordinary, LISTS_BYTES_MAX + self.prompt_max())
    }

    fn frontend_to_detokenizer(&self) -> usize {
        // an open for every slot
        let opens = self.slots * (ORDINARY_STOP_BYTES + FIXED_PART_BYTES + RECORD_HEAD_BYTES);
        // and one with every stop string at full length that resumes a full context
        let stops = STOP_STRINGS_MAX * (size_of::<u32>() + STOP_STRING_BYTES_MAX);
        ring_bytes(opens, FIXED_PART_BYTES + stops + self.context_ids)
    }

    fn tokenizer_to_engine(&self) -> usize {
        // an ordinary admit for every request that this tokenizer can hold
        let admit = ORDINARY_PROMPT_IDS * size_of::<u32>() + FIXED_PART_BYTES + RECORD_HEAD_BYTES;
        ring_bytes(self.slots_per_tokenizer * admit, FIXED_PART_BYTES + LISTS_BYTES_MAX + self.context_ids)
    }

    fn tokenizer_to_frontend(&self) -> usize {
        // rejections that wait while the frontend is busy
        let rejects = WAITING_REJECTS * (DETAIL_BYTES_MAX + FIXED_PART_BYTES + RECORD_HEAD_BYTES);
        // and the answer to one /tokenize or /detokenize
        ring_bytes(rejects, self.prompt_max())
    }

    fn engine_to_detokenizer(&self) -> usize {
        let step = size_of::<StepHeader>() + self.rows * size_of::<TokenEvent>();
        // a lag of full batches, and one last event for every request if all are cancelled at once
        let lag = LAG_STEPS * (step + RECORD_HEAD_BYTES);
        let endings = self.slots_total * size_of::<TokenEvent>();
        // a step in which every request asks for every logprob
        let logprobs = self.rows * ENTRIES_MAX * size_of::<LogprobEntry>();
        // scores of prompts: a step's worth and a bit, before the engine slows them down
        let scores = WAITING_PROMPT_RECORDS * (PROMPT_RECORD_BYTES_MAX + RECORD_HEAD_BYTES);
        ring_bytes(lag + endings + scores, PROMPT_RECORD_BYTES_MAX.max(step + logprobs))
    }

    fn engine_to_frontend(&self) -> usize {
        // the end of every request of this frontend
        let finished = self.slots * (size_of::<FinishedRecord>() + RECORD_HEAD_BYTES);
        // and rejections that wait while the frontend is busy
        let reject = DETAIL_BYTES_MAX + FIXED_PART_BYTES;
        let rejects = WAITING_REJECTS * (reject + RECORD_HEAD_BYTES);
        // and, where the model pools, the vector of every request: nothing holds the engine back while it is not read
        let vectors = match self.vector {
            0 => 0,
            bytes => self.slots * (bytes + RECORD_HEAD_BYTES),
        };
        ring_bytes(finished + rejects + vectors, reject.max(self.vector))
    }

    fn engine_to_events(&self) -> usize {
        // changes of full steps; what does not fit waits in the engine, where it cannot grow
        ring_bytes(LAG_CACHE_STEPS * self.step_blocks * self.block_entry, CACHE_RECORD_BYTES_MAX)
    }

    fn detokenizer_to_frontend(&self) -> usize {
        let delta = size_of::<DeltaHeader>() + size_of::<u32>() + ORDINARY_DELTA_TEXT_BYTES;
        // a lag of full batches, and one last delta for every request if all end at once
        let lag = LAG_STEPS * (self.rows * delta + RECORD_HEAD_BYTES);
        let endings = self.slots * (size_of::<DeltaHeader>() + RECORD_HEAD_BYTES);
        let longest = self.rows * (size_of::<DeltaHeader>() + size_of::<u32>() + DELTA_TEXT_BYTES_MAX);
        // records are cut, but a single delta may have the scores of its token, or tokens that waited for each other
        let scored =
            size_of::<DeltaHeader>() + 2 * size_of::<u32>() + DELTA_TEXT_BYTES_MAX + SCORES_BYTES_MAX;
        let waited = DELTA_WAITING_BYTES_MAX + STREAM_INTERVAL_MAX as usize * size_of::<u32>();
        ring_bytes(lag + endings, longest.max(scored + waited))
    }
}

/// Room for the users' sum and one largest record, of which the ring must be at least twice the size.
fn ring_bytes(users: usize, payload_max: usize) -> usize {
    let largest = payload_max.next_multiple_of(8) + RECORD_HEAD_BYTES;
    (users + largest).max(2 * largest).max(RING_BYTES_MIN).next_power_of_two()
}

const _: () = assert!(size_of::<RequestId>() + size_of::<SamplingRecord>() + 16 <= FIXED_PART_BYTES);
