//! The same loop over what was recorded.
//!
//! With the recorded config, every batch and every token must come out again. With a switch changed the loop goes its
//! own way: it gets the same requests in the same turns as far as it can take them, and the report says what came out.

use super::Group;
use super::reader::{Frames, Planned, PlannedRow, Recording, Taken};
use crate::engine::{Broken, Engine, Turn};
use crate::ports::Ports;
use pinion_protocol::detokenizer_inbox::{self, EVENT_TOKEN, decode_step};
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::status::Gauge;
use pinion_protocol::{Peer, RequestId, Role};
use pinion_scheduler::StepPlan;
use pinion_shm::ring::Record;
use pinion_shm::slots::SlotState;
use pinion_worker::{Overflow, Recorder};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Instant;

/// Turns after the last recorded one in which what is left may end.
const TURNS_AFTER_MAX: u32 = 10_000_000;

/// What a replay came to.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Nothing is missing in the file, every batch is the same and every token is. Of a recording that was not ended in
    /// order only what it has is compared.
    pub identical: bool,
    /// Bytes that the file lacks.
    pub lost_bytes: u64,
    /// The recording was ended in order.
    pub complete: bool,
    /// Steps recorded, and run here.
    pub steps: [u64; 2],
    /// Rows of those steps.
    pub rows: [u64; 2],
    /// Tokens recorded, and drawn here.
    pub tokens: [u64; 2],
    /// Requests that had a token.
    pub requests: u64,
    /// Requests whose tokens differ.
    pub requests_that_differ: u64,
    /// Steps with the same rows, counted up to the end of the shorter.
    pub steps_alike: u64,
    /// The first step whose batch differs, in words.
    pub first_difference: Option<String>,
    /// Seconds that the recorded turns took by the recorded clock.
    pub recorded_s: f64,
    /// Seconds that the replay took: what the model and the loop need without waiting for clients.
    pub replayed_s: f64,
}

impl Report {
    /// One line.
    pub fn in_words(&self) -> String {
        let Report { steps, rows, tokens, requests, .. } = self;
        if self.identical {
            return format!(
                "identical: {} steps with {} rows, {} tokens of {requests} requests",
                steps[0], rows[0], tokens[0]
            );
        }
        let lost = if self.lost_bytes > 0 { ", and the file lacks some bytes" } else { "" };
        let first = self.first_difference.as_deref().unwrap_or("the batches are the same");
        format!(
            "not identical: {} of {requests} requests have other tokens; {first}{lost}",
            self.requests_that_differ
        )
    }
}

type Tokens = BTreeMap<RequestId, Vec<u32>>;

fn take_tokens(tokens: &mut Tokens, payload: &[u8]) {
    let Ok((_, events, _)) = decode_step(payload) else { return };
    for event in events.filter(|event| event.flags & EVENT_TOKEN != 0) {
        tokens.entry(event.id).or_default().push(event.token);
    }
}

/// The recorded world.
#[derive(Default)]
struct World {
    inbox_count: usize,
    clocks: RefCell<VecDeque<u64>>,
    last_ns: Cell<u64>,
    records: VecDeque<Taken>,
    lent: Vec<u8>,
    slots: RefCell<VecDeque<super::reader::Seen>>,
    known: RefCell<HashMap<RequestId, Option<SlotState>>>,
    looks: Cell<u32>,
    backlogs: RefCell<VecDeque<(u32, u64)>>,
    backlog_looks: Cell<u32>,
    refused: VecDeque<u32>,
    sends: u32,
    planned: RefCell<Vec<Planned>>,
    tokens: Tokens,
    recorder: Recorder,
}

fn pop_if<T>(queue: &mut VecDeque<T>, is_next: impl Fn(&T) -> bool) -> Option<T> {
    if queue.front().is_some_and(is_next) { queue.pop_front() } else { None }
}

impl World {
    fn begin(&mut self, frames: &Frames) {
        self.settle_slots(u32::MAX);
        *self.clocks.get_mut() = frames.clocks.clone();
        self.records.extend(frames.records.iter().cloned());
        *self.slots.get_mut() = frames.slots.clone();
        self.refused = frames.refused.clone();
        *self.backlogs.get_mut() = frames.backlogs.clone();
        self.backlog_looks.set(0);
        self.looks.set(0);
        self.sends = 0;
    }

    /// What slots said up to this look stays so: within a generation they only move on.
    fn settle_slots(&self, look: u32) {
        let mut slots = self.slots.borrow_mut();
        while let Some(seen) = pop_if(&mut slots, |seen| seen.look <= look) {
            self.known.borrow_mut().insert(seen.id, seen.state);
        }
    }
}

impl Ports for World {
    fn now_ns(&self) -> u64 {
        // Past what was recorded time stands still, which no decision minds.
        let ns = self.clocks.borrow_mut().pop_front().unwrap_or(self.last_ns.get());
        self.last_ns.set(ns);
        ns
    }

    fn inbox_count(&self) -> usize {
        self.inbox_count
    }

    fn next_record(&mut self, inbox: usize) -> Option<Record<'_>> {
        let taken = pop_if(&mut self.records, |taken| taken.inbox as usize == inbox)?;
        self.lent = taken.payload;
        Some(Record { kind: taken.kind, sequence: 0, payload: &self.lent })
    }

    fn condemn(&mut self, _: usize, _: &'static str) {}

    fn slot(&self, id: RequestId) -> Option<SlotState> {
        let look = self.looks.get();
        self.looks.set(look + 1);
        self.settle_slots(look);
        let simple = SlotState { generation: id.generation, live: true, cancelled: false, stopped: false };
        self.known.borrow().get(&id).copied().unwrap_or(Some(simple))
    }

    fn stamp(&self, _: RequestId, _: Stage, _: u64) {}

    fn count(&self, _: RequestId, _: Counter, _: u64) {}

    fn send(&mut self, to: Peer, kind: u16, payload: &[u8]) -> Result<(), Overflow> {
        let number = self.sends;
        self.sends += 1;
        if pop_if(&mut self.refused, |refused| *refused == number).is_some() {
            return Err(Overflow);
        }
        if to.role == Role::Detokenizer && kind == detokenizer_inbox::kind::STEP {
            take_tokens(&mut self.tokens, payload);
        }
        Ok(())
    }

    fn detokenizer_lag_bytes(&self) -> usize {
        let look = self.backlog_looks.get();
        self.backlog_looks.set(look + 1);
        let found = pop_if(&mut self.backlogs.borrow_mut(), |(number, _)| *number == look);
        found.map_or(0, |(_, bytes)| bytes as usize)
    }

    fn publish(&mut self) {}

    fn excuse(&mut self, _: u64) {}

    fn set_gauge(&self, _: Gauge, _: u64) {}

    fn add_one(&self, _: Gauge) {}

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    fn planned(&self, plan: &StepPlan) {
        let row = |row: &pinion_scheduler::PlanRow| PlannedRow {
            id: row.id,
            start: row.start,
            len: row.len,
            draw: row.draw,
        };
        self.planned
            .borrow_mut()
            .push(Planned { step: plan.step, rows: plan.rows.iter().map(row).collect() });
    }
}

/// Drives `engine` through the recording.
///
/// # Errors
/// [`Broken`]: the model failed.
pub fn replay(recording: &Recording, mut engine: Engine) -> Result<Report, Broken> {
    let mut world = World { inbox_count: recording.inbox_count, ..World::default() };
    let began = Instant::now();
    for (group, index, frames) in &recording.groups {
        world.begin(frames);
        match group {
            Group::Turn => _ = engine.turn(&mut world)?,
            Group::OldRecord => {
                if let Some(Taken { kind, payload, .. }) = world.records.pop_back() {
                    engine.take_record(kind, &payload, &mut world);
                }
            }
            Group::FrontendGone => engine.discard_where(|id| id.frontend == *index),
            Group::DetokenizerGone => engine.lose_detokenizer(*index),
            Group::CacheCleared => engine.clear_prefix_cache(&world),
        }
    }
    // What a changed switch has put off.
    world.begin(&Frames::default());
    for _ in 0..TURNS_AFTER_MAX {
        if engine.turn(&mut world)? == Turn::Idle {
            break;
        }
    }
    let replayed_s = began.elapsed().as_secs_f64();
    Ok(Report { replayed_s, ..compare(recording, &world) })
}

/// The first row, or the number of rows, in which two batches differ.
fn in_words(recorded: &Planned, here: &Planned) -> String {
    let step = recorded.step;
    match recorded.rows.iter().zip(&here.rows).find(|(a, b)| a != b) {
        Some((a, b)) if a.id == b.id => {
            format!(
                "step {step}: {} position(s) from {} recorded, {} from {} here",
                a.len, a.start, b.len, b.start
            )
        }
        Some(_) => format!("step {step}: other requests are in the batch"),
        None => format!("step {step}: {} rows recorded, {} here", recorded.rows.len(), here.rows.len()),
    }
}

fn compare(recording: &Recording, world: &World) -> Report {
    let mut tokens = Tokens::new();
    let frames = || recording.groups.iter().map(|(_, _, frames)| frames);
    frames().flat_map(|frames| &frames.steps).for_each(|payload| take_tokens(&mut tokens, payload));
    let recorded: Vec<&Planned> = frames().filter_map(|frames| frames.planned.as_ref()).collect();
    let planned = world.planned.borrow();
    // The engine was killed: its requests go on here to their end.
    let compared = if recording.complete { planned.len() } else { planned.len().min(recorded.len()) };
    let planned = &planned[..compared];
    let differs = recorded.iter().zip(planned.iter()).find(|(a, b)| **a != *b);
    let first_difference = match differs {
        Some((recorded, here)) => Some(in_words(recorded, here)),
        None if recorded.len() != planned.len() => {
            Some(format!("{} steps recorded, {} here", recorded.len(), planned.len()))
        }
        None => None,
    };
    let all: std::collections::BTreeSet<_> = tokens.keys().chain(world.tokens.keys()).collect();
    let is_alike = |id: &RequestId| match (tokens.get(id), world.tokens.get(id)) {
        (recorded, Some(here)) if !recording.complete => {
            here.starts_with(recorded.map_or(&[], Vec::as_slice))
        }
        (recorded, here) => recorded == here,
    };
    let differing = all.iter().filter(|id| !is_alike(id)).count() as u64;
    let count = |tokens: &Tokens| tokens.values().map(|tokens| tokens.len() as u64).sum();
    let times = || frames().flat_map(|frames| frames.clocks.iter().copied());
    let ns = times().max().unwrap_or(0).saturating_sub(times().min().unwrap_or(0));
    Report {
        identical: recording.lost_bytes == 0 && first_difference.is_none() && differing == 0,
        lost_bytes: recording.lost_bytes,
        complete: recording.complete,
        steps: [recorded.len() as u64, planned.len() as u64],
        rows: [
            recorded.iter().map(|plan| plan.rows.len() as u64).sum(),
            planned.iter().map(|plan| plan.rows.len() as u64).sum(),
        ],
        tokens: [count(&tokens), count(&world.tokens)],
        requests: all.len() as u64,
        requests_that_differ: differing,
        steps_alike: recorded.iter().zip(planned.iter()).filter(|(a, b)| **a == *b).count() as u64,
        first_difference,
        recorded_s: ns as f64 / 1e9,
        replayed_s: 0.0,
    }
}
