//! A tiny continuous-batching loop for tests: paged blocks from a scattered free list, chunked prefill mixed with
//! decode.

use pinion_model::{Model, OwnedBatch, RowOutcome, SampleParams, StepOutput};
use std::collections::VecDeque;

/// One request of a test.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) prompt: Vec<u32>,
    pub(crate) output_len: usize,
    /// Step at which it may start.
    pub(crate) arrival: usize,
    /// Position is filled in per token.
    pub(crate) params: SampleParams,
}

#[derive(Debug)]
struct Running {
    request: usize,
    slot: u32,
    /// Prompt, then what was generated.
    ids: Vec<u32>,
    /// Tokens whose KV is in the cache.
    cached: usize,
    blocks: Vec<u32>,
}

/// Most prompt tokens of one sequence in one step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    pub(crate) chunk: usize,
    /// Evicts the youngest running request at these steps: its blocks go back and it starts over with its ids so far.
    pub(crate) preempt_at: &'static [usize],
}

/// Runs all requests to their end; gives each one's generated ids.
pub(crate) fn run(model: &mut dyn Model, requests: &[Request], policy: Policy) -> Vec<Vec<u32>> {
    let info = model.info().clone();
    // Odd ids first, from the back: tables are never in order.
    let mut free: Vec<u32> = (0..info.block_count).filter(|b| b % 2 == 0).collect();
    free.extend((0..info.block_count).filter(|b| b % 2 == 1));
    let mut free_slots: Vec<u32> = (0..requests.len() as u32).rev().collect();
    let mut waiting: VecDeque<(usize, Vec<u32>)> = VecDeque::new();
    let mut running: Vec<Running> = Vec::new();
    let mut done = vec![Vec::new(); requests.len()];
    let mut out = StepOutput::default();
    for step in 0.. {
        for (index, request) in requests.iter().enumerate().filter(|(_, request)| request.arrival == step) {
            waiting.push_back((index, request.prompt.clone()));
        }
        if policy.preempt_at.contains(&step)
            && let Some(victim) = running.pop()
        {
            free.extend(victim.blocks);
            free_slots.push(victim.slot);
            waiting.push_back((victim.request, victim.ids));
        }
        while let Some((request, ids)) = waiting.pop_front() {
            let slot = free_slots.pop().expect("a slot for every request");
            running.push(Running { request, slot, ids, cached: 0, blocks: Vec::new() });
        }
        let all_arrived = requests.iter().all(|request| request.arrival <= step);
        if running.is_empty() && all_arrived {
            return done;
        }
        run_step(model, requests, policy, &mut running, &mut free, &mut out);
        running.retain_mut(|sequence| {
            let request = &requests[sequence.request];
            let generated = sequence.ids.len() - request.prompt.len();
            if generated < request.output_len {
                return true;
            }
            done[sequence.request] = sequence.ids.split_off(request.prompt.len());
            free.append(&mut sequence.blocks);
            free_slots.push(sequence.slot);
            false
        });
    }
    unreachable!("the loop ends when all requests are done")
}

fn run_step(
    model: &mut dyn Model,
    requests: &[Request],
    policy: Policy,
    running: &mut [Running],
    free: &mut Vec<u32>,
    out: &mut StepOutput,
) {
    let block_size = model.info().block_size as usize;
    let mut batch = OwnedBatch::default();
    for sequence in running.iter_mut() {
        let request = &requests[sequence.request];
        let todo = sequence.ids.len() - sequence.cached;
        let query = todo.min(policy.chunk);
        let context = sequence.cached + query;
        while sequence.blocks.len() * block_size < context {
            sequence.blocks.push(free.pop().expect("the test pool is large enough"));
        }
        let position = (sequence.ids.len() - request.prompt.len()) as u64;
        let tokens = &sequence.ids[sequence.cached..context];
        let row = batch.push(sequence.slot, sequence.cached as u32, tokens, &sequence.blocks);
        row.prompt_len = request.prompt.len() as u32;
        row.sample = (query == todo).then_some(SampleParams { position, ..request.params });
        sequence.cached = context;
    }
    model.step(&batch.as_step(), out).expect("a step of a well-formed batch");
    assert_eq!(out.rows.len(), running.len());
    for (sequence, outcome) in running.iter_mut().zip(&out.rows) {
        match outcome {
            RowOutcome::Token(token) => sequence.ids.push(*token),
            RowOutcome::None => assert!(sequence.cached < sequence.ids.len(), "a sampling row got no token"),
            RowOutcome::NonFinite => panic!("non-finite logits"),
            RowOutcome::Complete | RowOutcome::Late | RowOutcome::Unmasked => {
                panic!("nothing is masked here")
            }
        }
    }
}
