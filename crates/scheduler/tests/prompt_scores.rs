//! Logprobs of prompts: each token of a prompt is reported once and in order, whatever chunking, sharing and preempting
//! goes on; a request that only wants them ends without a token.

use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::{Claim, FaultCode, RequestId, Sampling, StopIds};
use pinion_scheduler::{Limits, Policy, Refusal, Request, RowResult, Scheduler};
use std::collections::HashMap;

fn limits(block_count: u32, max_num_batched_tokens: u32) -> Limits {
    Limits {
        max_num_seqs: 4,
        max_num_batched_tokens,
        max_requests: 64,
        max_model_len: 64,
        block_size: 4,
        block_count,
        stop_ids: StopIds::NONE,
    }
}

fn request(slot: u16, prompt: Vec<u32>, resumed: u32, asks: bool, max_tokens: u32) -> Request {
    let sampling =
        Sampling { max_tokens: Some(max_tokens), prompt_logprobs: asks.then_some(1), ..Sampling::default() };
    let prompt_tokens = prompt.len() as u32;
    let ids = prompt.into_iter().chain(0..resumed).collect();
    Request {
        id: RequestId { frontend: 0, slot, generation: 1 },
        claim: Claim::default(),
        sampling,
        ids,
        prompt_tokens,
    }
}

/// What came of a run: the prompt tokens that were reported for each request, in order, and why it ended.
#[derive(Default)]
struct Told {
    reported: HashMap<RequestId, Vec<u32>>,
    ended: HashMap<RequestId, (FinishReason, u32, u32)>,
    scores_in_a_step: u32,
    preemptions: u64,
}

fn run(scheduler: &mut Scheduler) -> Told {
    let mut told = Told::default();
    for step in 0..10_000 {
        if scheduler.is_empty() {
            break;
        }
        let plan = scheduler.plan(step).expect("requests are here, so a step is planned");
        let scored: u32 = plan.rows.iter().map(|row| row.report_len).sum();
        assert_eq!(plan.score_count, scored);
        told.scores_in_a_step = told.scores_in_a_step.max(scored);
        let rows = plan.rows.clone();
        for row in &rows {
            told.reported.entry(row.id).or_default().extend(row.report());
            // A token is reported by the row that has the one before it.
            let report = row.report();
            assert!(report.is_empty() || report.start == 0 || report.start > row.start);
            assert!(report.end <= row.start + row.len + 1);
        }
        let result = |draw: Option<u32>| draw.map_or(RowResult::Computed, |_| RowResult::Token(1));
        let results: Vec<_> = rows.iter().map(|row| result(row.draw)).collect();
        scheduler.commit(&results);
        for ended in scheduler.drain_finished() {
            let finished = ended.finished;
            let end = (finished.reason, finished.generated_tokens, finished.cached_tokens);
            assert!(told.ended.insert(finished.id, end).is_none(), "ended twice");
        }
    }
    assert!(scheduler.is_empty(), "it goes round in circles");
    assert_eq!(scheduler.pool().held(), 0);
    told.preemptions = scheduler.totals().preemptions;
    told
}

#[test]
fn every_prompt_token_is_reported_once_and_in_order() {
    let mut preemptions = 0;
    for seed in 0..400u32 {
        let draw = |what: u32, below: u32| {
            let mixed = (seed * 31 + what).wrapping_mul(2_654_435_761);
            (mixed >> 8) % below
        };
        let policy = Policy {
            prefix_cache: seed % 2 == 0,
            prefill_chunk_tokens_max: (seed % 3 > 0).then(|| 1 + draw(1, 9)),
            ..Policy::default()
        };
        let mut scheduler = Scheduler::with_policy(limits(10 + draw(2, 8), 4 + draw(3, 30)), policy);
        scheduler.limit_scores(if seed % 5 == 0 { 0 } else { draw(4, 12) });
        let mut requests = Vec::new();
        for slot in 0..12u16 {
            let what = 10 * u32::from(slot);
            // Prompts begin alike, so that the cache has something to offer.
            let prompt: Vec<u32> = (0..1 + draw(what + 5, 24)).collect();
            let asks = draw(what + 6, 3) > 0;
            let max_tokens = if asks { draw(what + 7, 14) } else { 1 + draw(what + 7, 14) };
            requests.push(request(slot, prompt, 0, asks, max_tokens));
            scheduler.admit(requests[usize::from(slot)].clone(), 0).unwrap();
        }
        let told = run(&mut scheduler);
        preemptions += told.preemptions;
        for request in &requests {
            let asks = request.sampling.prompt_logprobs.is_some();
            let expected: Vec<u32> = if asks { (0..request.prompt_tokens).collect() } else { Vec::new() };
            assert_eq!(told.reported[&request.id], expected, "seed {seed}: {request:?}");
            let (reason, generated, cached) = told.ended[&request.id];
            assert_eq!((reason, Some(generated)), (FinishReason::Length, request.sampling.max_tokens));
            assert!(!asks || cached == 0, "seed {seed}: a scored prompt comes from the cache");
        }
    }
    assert!(preemptions > 100, "{preemptions} preemptions: nothing was put to the test");
}

#[test]
fn a_prompt_as_long_as_the_pool_is_scored_alone() {
    let mut scheduler = Scheduler::new(limits(16, 8));
    let whole = request(0, (0..64).collect(), 0, true, 0);
    scheduler.admit(whole.clone(), 0).unwrap();
    let told = run(&mut scheduler);
    assert_eq!(told.reported[&whole.id], (0..64).collect::<Vec<u32>>());
    assert_eq!(told.ended[&whole.id], (FinishReason::Length, 0, 0));
    let longer = request(1, (0..65).collect(), 0, true, 0);
    let Err(Refusal::Fault(fault)) = scheduler.admit(longer, 0) else { panic!("it cannot fit") };
    assert_eq!(fault.code, FaultCode::ContextLengthExceeded);
}

#[test]
fn nothing_to_score_and_nothing_to_generate_ends_at_once() {
    let mut scheduler = Scheduler::new(limits(16, 8));
    let idle = request(0, vec![1, 2, 3], 0, false, 0);
    scheduler.admit(idle.clone(), 0).unwrap();
    assert!(scheduler.is_empty());
    let ended: Vec<_> = scheduler.drain_finished().collect();
    assert_eq!((ended[0].finished.reason, ended[0].finished.prompt_tokens), (FinishReason::Length, 3));
}

#[test]
fn a_resumed_request_has_told_of_its_prompt() {
    let mut scheduler = Scheduler::new(limits(16, 8));
    let resumed = request(0, vec![1, 2, 3], 2, true, 5);
    scheduler.admit(resumed.clone(), 0).unwrap();
    let told = run(&mut scheduler);
    assert_eq!(told.reported[&resumed.id], []);
    assert_eq!(told.ended[&resumed.id].1, 5);
}

#[test]
fn a_step_has_no_more_scores_than_allowed_but_for_one_of_each_row() {
    for most in [1000, 16, 6, 0] {
        let mut scheduler = Scheduler::new(limits(64, 60));
        scheduler.limit_scores(most);
        for slot in 0..4 {
            scheduler.admit(request(slot, (0..10).collect(), 0, true, 1), 0).unwrap();
        }
        let told = run(&mut scheduler);
        // A row has one token at least, and one that begins the prompt tells of that beside.
        assert!(told.scores_in_a_step <= most + 2 * 4, "{most}: {}", told.scores_in_a_step);
        assert!(most < 1000 || told.scores_in_a_step == 40, "{}", told.scores_in_a_step);
        assert!(told.reported.values().all(|reported| reported.len() == 10));
    }
}
