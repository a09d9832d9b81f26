//! Random workloads against a model that is a pure function of the tokens it can read back through the block tables.
//! Whatever the batching, chunking, preemption and cancelling around it, each request must get the tokens that it
//! gets alone, end exactly once and within a bounded number of steps, and leave no block behind.

use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::{FaultCode, RequestId, Sampling};
use pinion_scheduler::{Ended, Limits, Refusal, Request, RowResult, Scheduler};
use proptest::prelude::*;
use std::collections::HashMap;

const VOCABULARY: u32 = 24;
const EOS: u32 = 0;

fn mix(hash: u64, token: u32) -> u64 {
    let mut x = (hash ^ u64::from(token)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 27)
}

fn draw(hash: u64) -> u32 {
    (hash >> 33) as u32 % VOCABULARY
}

/// What a request gets when it is alone in the world.
fn alone(ids: &[u32], generate: usize, ignore_eos: bool) -> Vec<u32> {
    let mut hash = ids.iter().fold(1, |hash, &token| mix(hash, token));
    let mut out = Vec::new();
    while out.len() < generate && (ignore_eos || out.last() != Some(&EOS)) {
        let token = draw(hash);
        hash = mix(hash, token);
        out.push(token);
    }
    out
}

/// A cache of one rolling hash per position of each block.
struct Mock {
    block_size: usize,
    cache: Vec<u64>,
}

impl Mock {
    fn new(limits: &Limits) -> Mock {
        let size = limits.block_size as usize;
        Mock { block_size: size, cache: vec![0xdead; size * limits.block_count as usize] }
    }

    fn at(&mut self, blocks: &[u32], position: usize) -> &mut u64 {
        &mut self.cache
            [blocks[position / self.block_size] as usize * self.block_size + position % self.block_size]
    }

    fn step(&mut self, scheduler: &Scheduler) -> Vec<RowResult> {
        let rows = &scheduler.current_plan().rows;
        rows.iter()
            .map(|row| {
                let view = scheduler.row(row);
                assert_eq!(view.tokens.len(), row.len as usize);
                let start = row.start as usize;
                let mut hash = if start == 0 { 1 } else { *self.at(view.blocks, start - 1) };
                for (offset, &token) in view.tokens.iter().enumerate() {
                    hash = mix(hash, token);
                    *self.at(view.blocks, start + offset) = hash;
                }
                if row.draw.is_some() { RowResult::Token(draw(hash)) } else { RowResult::Computed }
            })
            .collect()
    }
}

#[derive(Debug, Clone)]
enum Exit {
    Cancel(u32),
    Stop(u32),
    Discard(u32),
    /// The row fails at the given step after arrival.
    Fail(u32),
}

#[derive(Debug, Clone)]
struct Arrival {
    at_step: u32,
    prompt: Vec<u32>,
    resumed: u32,
    max_tokens: u32,
    ignore_eos: bool,
    exit: Option<Exit>,
}

fn limits() -> impl Strategy<Value = Limits> {
    (1..6u32, 1..24u32, prop_oneof![Just(1u32), Just(4), Just(16)], 1..40u32, any::<bool>()).prop_map(
        |(max_num_seqs, max_num_batched_tokens, block_size, block_count, ends)| Limits {
            max_num_seqs,
            max_num_batched_tokens,
            max_requests: 16,
            max_model_len: 64,
            block_size,
            block_count,
            eos: ends.then_some(EOS),
        },
    )
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let exit = prop_oneof![
        6 => Just(None),
        1 => (0..40u32).prop_map(|after| Some(Exit::Cancel(after))),
        1 => (0..40u32).prop_map(|after| Some(Exit::Stop(after))),
        1 => (0..40u32).prop_map(|after| Some(Exit::Discard(after))),
        1 => (0..40u32).prop_map(|after| Some(Exit::Fail(after))),
    ];
    let prompt = proptest::collection::vec(0..VOCABULARY, 1..40);
    (0..30u32, prompt, 0..4u32, 1..30u32, any::<bool>(), exit).prop_map(
        |(at_step, prompt, resumed, max_tokens, ignore_eos, exit)| Arrival {
            at_step,
            prompt,
            resumed,
            max_tokens,
            ignore_eos,
            exit,
        },
    )
}

/// One request as the test sees it.
struct Watched {
    arrival: Arrival,
    expected: Vec<u32>,
    got: Vec<u32>,
    deadline: u32,
    ended: Option<Ended>,
    discarded: bool,
    failed: bool,
}

struct Simulation {
    limits: Limits,
    scheduler: Scheduler,
    mock: Mock,
    step: u32,
    watched: HashMap<RequestId, Watched>,
    /// Sum of the longest lengths of all requests so far: the oldest request advances in every step.
    work: u32,
}

impl Simulation {
    fn new(limits: Limits) -> Simulation {
        let (scheduler, mock) = (Scheduler::new(limits), Mock::new(&limits));
        Simulation { limits, scheduler, mock, step: 0, watched: HashMap::new(), work: 0 }
    }

    fn arrive(&mut self, slot: usize, arrival: Arrival) {
        let id = RequestId { frontend: 0, slot: slot as u16, generation: 1 };
        let eos_ends = self.limits.eos.is_some() && !arrival.ignore_eos;
        let expected = alone(&arrival.prompt, arrival.max_tokens as usize, !eos_ends);
        let resumed = expected.len().min(arrival.resumed as usize);
        let mut ids = arrival.prompt.clone();
        ids.extend(&expected[..resumed]);
        let prompt_tokens = arrival.prompt.len() as u32;
        let sampling = Sampling {
            max_tokens: Some(arrival.max_tokens),
            ignore_eos: arrival.ignore_eos,
            ..Sampling::default()
        };
        let request = Request { id, sampling, ids, prompt_tokens };
        let length = prompt_tokens + arrival.max_tokens;
        let fits = length <= self.limits.max_model_len.min(self.limits.block_count * self.limits.block_size);
        match self.scheduler.admit(request.clone(), u64::from(self.step)) {
            Ok(()) => {
                assert!(fits, "a request that can never fit was taken");
                if expected.len() > resumed {
                    assert_eq!(self.scheduler.admit(request, 0), Err(Refusal::Duplicate));
                }
                self.work += length;
                let got = expected[..resumed].to_vec();
                let (deadline, ended) = (self.step + self.work, None);
                let watched =
                    Watched { arrival, expected, got, deadline, ended, discarded: false, failed: false };
                self.watched.insert(id, watched);
            }
            Err(Refusal::Fault(fault)) => {
                let full = self.scheduler.running().len() + self.scheduler.waiting().len() == 16;
                let code = if fits { FaultCode::TooManyRequests } else { FaultCode::ContextLengthExceeded };
                assert!(fault.code == code && (full || !fits), "{fault}");
            }
            Err(Refusal::Duplicate) => panic!("{id} was never here"),
        }
        self.collect();
    }

    fn exits(&mut self) {
        for (&id, watched) in &mut self.watched {
            let since = self.step - watched.arrival.at_step;
            let over = watched.ended.is_some() || watched.discarded;
            match watched.arrival.exit {
                Some(Exit::Cancel(after)) if after == since => {
                    assert_eq!(self.scheduler.end(id, FinishReason::Cancelled), !over);
                }
                Some(Exit::Stop(after)) if after == since => {
                    assert_eq!(self.scheduler.end(id, FinishReason::Stop), !over);
                }
                Some(Exit::Discard(after)) if after == since => {
                    self.scheduler.discard(id);
                    self.scheduler.discard(id);
                    watched.discarded |= !over;
                }
                Some(_) | None => {}
            }
        }
        self.collect();
    }

    fn collect(&mut self) {
        for ended in self.scheduler.drain_finished() {
            let watched = self.watched.get_mut(&ended.finished.id).expect("who ends was admitted");
            assert!(!watched.discarded, "nothing comes of a discarded request");
            assert!(watched.ended.replace(ended).is_none(), "{} ended twice", ended.finished.id);
        }
    }

    fn run_step(&mut self) {
        let plan = self.scheduler.plan(u64::from(self.step));
        assert!(plan.token_count <= self.limits.max_num_batched_tokens, "over the token budget");
        assert!(plan.rows.len() <= self.limits.max_num_seqs as usize, "over the sequence limit");
        assert_eq!(plan.token_count, plan.rows.iter().map(|row| row.len).sum::<u32>());
        let rows = plan.rows.clone();
        assert!(self.scheduler.is_empty() || !rows.is_empty(), "requests are here and nothing is planned");
        for (index, row) in rows.iter().enumerate() {
            assert!(rows[..index].iter().all(|other| other.lane != row.lane && other.id != row.id));
        }
        let mut results = self.mock.step(&self.scheduler);
        for (row, result) in rows.iter().zip(&mut results) {
            let watched = self.watched.get_mut(&row.id).expect("who runs was admitted");
            if let Some(Exit::Fail(after)) = watched.arrival.exit
                && after <= self.step - watched.arrival.at_step
            {
                *result = RowResult::Failed(FaultCode::NonFinite);
                watched.failed = true;
            }
        }
        for event in self.scheduler.commit(&results) {
            let watched = self.watched.get_mut(&event.id).expect("who runs was admitted");
            assert_eq!(event.sequence as usize, watched.got.len(), "no token is repeated or skipped");
            watched.got.push(event.token);
            assert_eq!(event.last, watched.got.len() == watched.expected.len());
        }
        self.collect();
        self.step += 1;
    }

    fn check_end(&self) {
        assert_eq!(self.scheduler.pool().held(), 0, "blocks are left behind");
        for (id, watched) in &self.watched {
            assert_eq!(watched.got, watched.expected[..watched.got.len()], "{id}: other tokens than alone");
            let Some(ended) = watched.ended else {
                assert!(watched.discarded, "{id} never ended");
                continue;
            };
            assert_eq!(ended.finished.generated_tokens as usize, watched.got.len());
            let whole = watched.got.len() == watched.expected.len();
            match ended.finished.reason {
                FinishReason::Length => {
                    assert!(whole && watched.got.len() as u32 == watched.arrival.max_tokens)
                }
                FinishReason::Stop if whole && watched.got.last() == Some(&EOS) => {}
                FinishReason::Stop => assert!(matches!(watched.arrival.exit, Some(Exit::Stop(_)))),
                FinishReason::Cancelled => assert!(matches!(watched.arrival.exit, Some(Exit::Cancel(_)))),
                FinishReason::Failed(code) => assert!(watched.failed && code == FaultCode::NonFinite),
            }
        }
    }
}

fn simulate(limits: Limits, mut arrivals: Vec<Arrival>) -> u64 {
    let mut simulation = Simulation::new(limits);
    arrivals.sort_by_key(|arrival| arrival.at_step);
    let mut arrivals = arrivals.into_iter().enumerate().peekable();
    while arrivals.peek().is_some() || !simulation.scheduler.is_empty() {
        while let Some((slot, arrival)) = arrivals.next_if(|(_, a)| a.at_step <= simulation.step) {
            simulation.arrive(slot, arrival);
        }
        simulation.exits();
        simulation.run_step();
        for (id, watched) in &simulation.watched {
            let over = watched.ended.is_some() || watched.discarded;
            assert!(over || simulation.step <= watched.deadline, "{id} starves");
        }
    }
    simulation.check_end();
    simulation.scheduler.totals().preemptions
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_request_gets_what_it_gets_alone(
        limits in limits(),
        arrivals in proptest::collection::vec(arrival(), 1..24),
    ) {
        simulate(limits, arrivals);
    }
}

/// The random workloads above would prove little if none of them ever ran out of blocks.
#[test]
fn a_tiny_pool_preempts_and_the_tokens_stay() {
    let limits = Limits {
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        max_requests: 16,
        max_model_len: 64,
        block_size: 4,
        block_count: 10,
        eos: None,
    };
    let arrivals = (0..8)
        .map(|n| Arrival {
            at_step: n,
            prompt: vec![n + 1; 5],
            resumed: 0,
            max_tokens: 28,
            ignore_eos: false,
            exit: None,
        })
        .collect();
    let preemptions = simulate(limits, arrivals);
    assert!(preemptions > 0, "four requests of 33 tokens do not fit in 40");
}
