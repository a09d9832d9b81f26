//! The engine alone: token ids in, times and counts out. No HTTP, no tokenizer, no ring, no other process: what the
//! loop and the model need by themselves. The loop is the service's ([`Engine::turn`]); only its edges are others.
//!
//! Requests are encoded before the clock starts. A time is taken when a record leaves the loop, once for the tokens of
//! a step.

use crate::engine::{Engine, Turn};
use crate::ports::Ports;
use pinion_config::{AloneOutcome, AlonePhase, AloneReport, AloneWork};
use pinion_os::clock;
use pinion_protocol::detokenizer_inbox::{self, EVENT_TOKEN, decode_step};
use pinion_protocol::engine_inbox::{self, Admit};
use pinion_protocol::frontend_inbox::{self, FinishReason, Finished, Reject};
use pinion_protocol::limits::SLOTS_MAX;
use pinion_protocol::names::{Counter, Stage};
use pinion_protocol::status::Gauge;
use pinion_protocol::{Claim, Peer, RequestId, Role, Sampling};
use pinion_scheduler::StepPlan;
use pinion_shm::ring::Record;
use pinion_shm::slots::SlotState;
use pinion_worker::{Overflow, Recorder};
use std::cell::Cell;
use std::time::Duration;

/// The phases are told apart by the generation of their slots.
const WARM_UP: u32 = 1;
const MEASURED: u32 = 2;

/// Edges that lead nowhere: what leaves the loop is counted and dropped.
struct World {
    /// Encoded admissions, in the order of their times.
    admits: Vec<Vec<u8>>,
    /// When each comes, in ns from the start.
    due_ns: Vec<u64>,
    /// Of a closed loop.
    streams: Option<usize>,
    generation: u32,
    /// Those before it were taken in.
    next: usize,
    ended: usize,
    begin_ns: u64,
    outcomes: Vec<AloneOutcome>,
    /// What the loop sent that it cannot send to anyone here.
    fault: Option<String>,
    steps: Cell<u64>,
    rows: Cell<u64>,
    computed_tokens: Cell<u64>,
    preemptions: Cell<u64>,
    recorder: Recorder,
}

impl World {
    fn new(phase: &AlonePhase, generation: u32, work: &AloneWork) -> Result<World, String> {
        let limit = (u32::from(work.config.frontends) * work.config.max_inflight).min(SLOTS_MAX) as usize;
        if phase.requests.len() > limit {
            let count = phase.requests.len();
            return Err(format!("{count} requests are more than the {limit} that the engine takes"));
        }
        let admits = phase.requests.iter().enumerate().map(|(index, request)| {
            let admit = Admit {
                id: RequestId { frontend: 0, slot: index as u16, generation },
                claim: Claim::default(),
                sampling: Sampling {
                    temperature: work.temperature,
                    top_p: work.top_p,
                    top_k: work.top_k,
                    seed: index as u64,
                    max_tokens: Some(request.output_tokens),
                    ignore_eos: work.ignore_eos,
                    ..Sampling::default()
                },
                prompt_tokens: request.ids.len() as u32,
                ids: request.ids.clone(),
            };
            let mut bytes = Vec::new();
            admit.encode(&mut bytes);
            bytes
        });
        let outcome = |tokens: u32| AloneOutcome {
            token_ns: Vec::with_capacity(tokens as usize),
            ..AloneOutcome::default()
        };
        Ok(World {
            admits: admits.collect(),
            due_ns: phase.requests.iter().map(|request| request.at_ns).collect(),
            streams: phase.streams.map(|streams| streams as usize),
            generation,
            next: 0,
            ended: 0,
            begin_ns: clock::now_ns(),
            outcomes: phase.requests.iter().map(|request| outcome(request.output_tokens)).collect(),
            fault: None,
            steps: Cell::new(0),
            rows: Cell::new(0),
            computed_tokens: Cell::new(0),
            preemptions: Cell::new(0),
            recorder: Recorder::default(),
        })
    }

    /// ns from the start.
    fn elapsed_ns(&self) -> u64 {
        clock::now_ns().saturating_sub(self.begin_ns)
    }

    fn open(&self) -> usize {
        self.next - self.ended
    }

    /// The outcome of a request of this phase.
    fn outcome(&mut self, id: RequestId) -> Option<&mut AloneOutcome> {
        let is_ours = id.generation == self.generation && id.frontend == 0;
        self.outcomes.get_mut(usize::from(id.slot)).filter(|_| is_ours)
    }

    fn take(&mut self, to: Peer, kind: u16, payload: &[u8]) -> Result<(), String> {
        let now_ns = self.elapsed_ns();
        let unknown = |id: RequestId| format!("a record of {id}, which is no request of this phase");
        match (to.role, kind) {
            (Role::Detokenizer, detokenizer_inbox::kind::STEP) => {
                let (_, events, _) = decode_step(payload).map_err(|malformed| malformed.0)?;
                for event in events.filter(|event| event.flags & EVENT_TOKEN != 0) {
                    self.outcome(event.id).ok_or_else(|| unknown(event.id))?.token_ns.push(now_ns);
                }
            }
            (Role::Frontend, frontend_inbox::kind::FINISHED) => {
                let finished = Finished::decode(payload).map_err(|malformed| malformed.0)?;
                self.ended += 1;
                let outcome = self.outcome(finished.id).ok_or_else(|| unknown(finished.id))?;
                outcome.end_ns = now_ns;
                outcome.generated_tokens = finished.generated_tokens;
                outcome.cached_tokens = finished.cached_tokens;
                outcome.error = match finished.reason {
                    FinishReason::Stop | FinishReason::Length => None,
                    reason @ (FinishReason::Cancelled | FinishReason::Failed(_)) => {
                        Some(format!("{reason:?}"))
                    }
                };
            }
            (Role::Frontend, frontend_inbox::kind::REJECT) => {
                let Reject { id, fault } = Reject::decode(payload).map_err(|malformed| malformed.0)?;
                self.ended += 1;
                let outcome = self.outcome(id).ok_or_else(|| unknown(id))?;
                (outcome.end_ns, outcome.error) = (now_ns, Some(fault.to_string()));
            }
            (role, kind) => return Err(format!("a record of kind {kind} to a {}", role.name())),
        }
        Ok(())
    }

    /// Until every request has its end, which leaves the loop a moment before the tokens of its last step.
    fn run(&mut self, engine: &mut Engine) -> Result<(), String> {
        self.begin_ns = clock::now_ns();
        while self.ended < self.admits.len() {
            let turn = engine.turn(self).map_err(|broken| broken.reason)?;
            if let Some(fault) = self.fault.take() {
                return Err(format!("the engine sent {fault}"));
            }
            if turn == Turn::Worked {
                continue;
            }
            let Some(due_ns) = self.due_ns.get(self.next).filter(|_| self.open() == 0) else {
                return Err(format!("the engine stands still with {} open requests", self.open()));
            };
            std::thread::sleep(Duration::from_nanos(due_ns.saturating_sub(self.elapsed_ns())));
        }
        for outcome in &mut self.outcomes {
            outcome.end_ns = outcome.end_ns.max(outcome.token_ns.last().copied().unwrap_or(0));
        }
        Ok(())
    }
}

impl Ports for World {
    fn now_ns(&self) -> u64 {
        clock::now_ns()
    }

    fn inbox_count(&self) -> usize {
        1
    }

    fn next_record(&mut self, _: usize) -> Option<Record<'_>> {
        let due_ns = *self.due_ns.get(self.next)?;
        let now_ns = self.elapsed_ns();
        let is_there = match self.streams {
            Some(streams) => self.open() < streams,
            None => due_ns <= now_ns,
        };
        if !is_there {
            return None;
        }
        self.outcomes[self.next].taken_ns = now_ns;
        self.next += 1;
        Some(Record { kind: engine_inbox::kind::ADMIT, sequence: 0, payload: &self.admits[self.next - 1] })
    }

    fn condemn(&mut self, _: usize, what: &'static str) {
        self.fault = Some(format!("a complaint about {what}"));
    }

    fn slot(&self, id: RequestId) -> Option<SlotState> {
        Some(SlotState { generation: id.generation, live: true, cancelled: false, stopped: false })
    }

    fn stamp(&self, _: RequestId, _: Stage, _: u64) {}

    fn count(&self, _: RequestId, counter: Counter, value: u64) {
        if matches!(counter, Counter::Preemptions) {
            self.preemptions.set(self.preemptions.get() + value);
        }
    }

    fn send(&mut self, to: Peer, kind: u16, payload: &[u8]) -> Result<(), Overflow> {
        if let Err(fault) = self.take(to, kind, payload) {
            self.fault = Some(fault);
        }
        Ok(())
    }

    fn detokenizer_lag_bytes(&self) -> usize {
        0
    }

    fn publish(&mut self) {}

    fn excuse(&mut self, _: u64) {}

    fn set_gauge(&self, _: Gauge, _: u64) {}

    fn add_one(&self, _: Gauge) {}

    fn planned(&self, plan: &StepPlan) {
        self.steps.set(self.steps.get() + 1);
        self.rows.set(self.rows.get() + plan.rows.len() as u64);
        self.computed_tokens.set(self.computed_tokens.get() + u64::from(plan.token_count));
    }

    fn recorder(&self) -> &Recorder {
        &self.recorder
    }
}

/// Runs both phases. The report lacks what only the program around it knows.
///
/// # Errors
/// The model is broken, or the loop did what it must not.
pub fn run_alone(work: &AloneWork, engine: &mut Engine) -> Result<AloneReport, String> {
    let mut warm_up = World::new(&work.warm_up, WARM_UP, work)?;
    warm_up.run(engine)?;
    if let Some(error) = warm_up.outcomes.iter().find_map(|outcome| outcome.error.as_ref()) {
        return Err(format!("the warm-up failed: {error}"));
    }
    let mut measured = World::new(&work.measured, MEASURED, work)?;
    measured.run(engine)?;
    Ok(AloneReport {
        steps: measured.steps.get(),
        rows: measured.rows.get(),
        computed_tokens: measured.computed_tokens.get(),
        preemptions: measured.preemptions.get(),
        requests: measured.outcomes,
        ..AloneReport::default()
    })
}
