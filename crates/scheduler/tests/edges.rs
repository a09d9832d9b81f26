//! The corners of admission, planning and leaving, one by one.

use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::{Claim, FaultCode, RequestId, Sampling, StopIds};
use pinion_scheduler::{Limits, Refusal, Request, RowResult, Scheduler};

const EOS: u32 = 99;
const LIMITS: Limits = Limits {
    max_num_seqs: 4,
    max_num_batched_tokens: 16,
    max_requests: 8,
    max_model_len: 64,
    block_size: 4,
    block_count: 16,
    stop_ids: StopIds::one(EOS),
};

fn id(slot: u16) -> RequestId {
    RequestId { frontend: 0, slot, generation: 1 }
}

fn request(slot: u16, prompt_tokens: u32, max_tokens: Option<u32>) -> Request {
    let sampling = Sampling { max_tokens, ..Sampling::default() };
    let ids = vec![7 + u32::from(slot); prompt_tokens as usize]; // no two begin alike
    Request { id: id(slot), claim: Claim::default(), sampling, ids, prompt_tokens }
}

/// Plans and commits one step in which every sampling row draws `token`. Gives (slot, len, draws) of each row.
fn step(scheduler: &mut Scheduler, token: u32) -> Vec<(u16, u32, bool)> {
    let rows = scheduler.plan(0).map_or(Vec::new(), |plan| plan.rows.clone());
    let result = |draws| if draws { RowResult::Token(token) } else { RowResult::Computed };
    let results: Vec<RowResult> = rows.iter().map(|row| result(row.draw.is_some())).collect();
    scheduler.commit(&results);
    rows.iter().map(|row| (row.id.slot, row.len, row.draw.is_some())).collect()
}

fn reasons(scheduler: &mut Scheduler) -> Vec<(u16, FinishReason, u32)> {
    scheduler
        .drain_finished()
        .map(|e| (e.finished.id.slot, e.finished.reason, e.finished.generated_tokens))
        .collect()
}

#[test]
fn what_cannot_run_is_refused_with_the_reason() {
    let short_pool = Limits { block_count: 4, ..LIMITS };
    let over = Some(FaultCode::ContextLengthExceeded);
    for (limits, prompt, max_tokens, code) in [
        (LIMITS, 60, Some(4), None),
        (LIMITS, 60, Some(5), over),
        (LIMITS, 63, None, None),
        (LIMITS, 64, None, over),
        (LIMITS, 1, Some(u32::MAX), over),
        (short_pool, 12, Some(4), None),
        (short_pool, 12, Some(5), over),
        (short_pool, 15, None, None),
        (short_pool, 16, None, over),
        (LIMITS, 0, Some(1), Some(FaultCode::Internal)),
    ] {
        let answer = Scheduler::new(limits).admit(request(0, prompt, max_tokens), 0);
        let got = match answer {
            Ok(()) => None,
            Err(Refusal::Fault(fault)) => Some(fault.code),
            Err(Refusal::Duplicate) => panic!("nothing else is here"),
        };
        assert_eq!(got, code, "prompt {prompt}, max_tokens {max_tokens:?}, {} blocks", limits.block_count);
    }
    let mut full = Scheduler::new(LIMITS);
    for slot in 0..8 {
        assert_eq!(full.admit(request(slot, 1, Some(1)), 0), Ok(()));
    }
    let Err(Refusal::Fault(fault)) = full.admit(request(8, 1, Some(1)), 0) else {
        panic!("the queue is full")
    };
    assert_eq!(fault.code, FaultCode::TooManyRequests);
    assert_eq!(full.admit(request(3, 1, Some(1)), 0), Err(Refusal::Duplicate));
}

#[test]
fn a_request_that_is_over_on_arrival_ends_at_once() {
    for (ids, max_tokens, ignore_eos, end) in [
        (vec![7], Some(0), false, Some((FinishReason::Length, 0))),
        (vec![7, 8, 9], Some(2), false, Some((FinishReason::Length, 2))),
        (vec![7, 8, EOS], Some(5), false, Some((FinishReason::Stop, 2))),
        (vec![7, 8, EOS], Some(5), true, None),
        (vec![7, 8], Some(2), false, None),
    ] {
        let mut scheduler = Scheduler::new(LIMITS);
        let sampling = Sampling { max_tokens, ignore_eos, ..Sampling::default() };
        let request =
            Request { id: id(0), claim: Claim::default(), sampling, ids: ids.clone(), prompt_tokens: 1 };
        assert_eq!(scheduler.admit(request, 0), Ok(()));
        let got: Vec<_> = reasons(&mut scheduler).into_iter().map(|(_, reason, n)| (reason, n)).collect();
        assert_eq!(got, Vec::from_iter(end), "{ids:?} of {max_tokens:?}");
        assert_eq!(scheduler.is_empty(), end.is_some());
        scheduler.check();
    }
}

#[test]
fn a_prompt_that_ends_in_the_end_token_is_no_end() {
    let mut scheduler = Scheduler::new(LIMITS);
    let prompt = Request { ids: vec![7, EOS], ..request(0, 2, Some(2)) };
    scheduler.admit(prompt, 0).unwrap();
    assert_eq!(step(&mut scheduler, 1), [(0, 2, true)]);
    assert_eq!(step(&mut scheduler, EOS), [(0, 1, true)]);
    assert_eq!(reasons(&mut scheduler), [(0, FinishReason::Stop, 2)]);
}

#[test]
fn decodes_and_chunks_of_several_prompts_share_a_step() {
    let mut scheduler = Scheduler::new(LIMITS);
    scheduler.admit(request(0, 3, Some(9)), 0).unwrap();
    scheduler.admit(request(1, 5, Some(9)), 0).unwrap();
    assert_eq!(step(&mut scheduler, 1), [(0, 3, true), (1, 5, true)]);
    scheduler.admit(request(2, 17, Some(1)), 0).unwrap();
    scheduler.admit(request(3, 2, Some(1)), 0).unwrap();
    assert_eq!(step(&mut scheduler, 1), [(0, 1, true), (1, 1, true), (2, 14, false)]);
    assert_eq!(step(&mut scheduler, 1), [(0, 1, true), (1, 1, true), (2, 3, true), (3, 2, true)]);
    assert_eq!(reasons(&mut scheduler), [(2, FinishReason::Length, 1), (3, FinishReason::Length, 1)]);
}

#[test]
fn no_request_overtakes_and_none_runs_without_a_row() {
    let mut scheduler = Scheduler::new(Limits { max_num_batched_tokens: 3, ..LIMITS });
    for slot in 0..5 {
        scheduler.admit(request(slot, 2, Some(8)), 0).unwrap();
    }
    assert_eq!(step(&mut scheduler, 1), [(0, 2, true), (1, 1, false)]);
    assert_eq!(step(&mut scheduler, 1), [(0, 1, true), (1, 1, true), (2, 1, false)]);
    for _ in 0..5 {
        assert_eq!(
            step(&mut scheduler, 1),
            [(0, 1, true), (1, 1, true), (2, 1, true)],
            "all three in each step"
        );
    }
}

#[test]
fn a_newcomer_leaves_room_for_its_own_next_token() {
    let mut scheduler = Scheduler::new(Limits { block_count: 4, ..LIMITS });
    scheduler.admit(request(0, 5, Some(3)), 0).unwrap();
    scheduler.admit(request(1, 8, Some(3)), 0).unwrap();
    assert_eq!(step(&mut scheduler, 1), [(0, 5, true)], "two free blocks do not hold 8 tokens and the next");
    step(&mut scheduler, 1);
    step(&mut scheduler, 1);
    assert_eq!(step(&mut scheduler, 1), [(1, 8, true)]);
    assert_eq!(scheduler.totals().preemptions, 0);
}

#[test]
fn discard_is_idempotent_in_every_state() {
    let mut scheduler = Scheduler::new(Limits { max_num_seqs: 1, ..LIMITS });
    scheduler.discard(id(9));
    scheduler.admit(request(0, 3, Some(1)), 0).unwrap();
    scheduler.admit(request(1, 3, Some(4)), 0).unwrap();
    scheduler.discard(id(1)); // waiting
    step(&mut scheduler, 1);
    scheduler.discard(id(0)); // ended, not yet drained
    assert_eq!(reasons(&mut scheduler), []);

    scheduler.admit(request(2, 3, Some(4)), 0).unwrap();
    let rows = scheduler.plan(0).map_or(0, |plan| plan.rows.len());
    scheduler.discard(id(2)); // planned
    scheduler.discard(id(2));
    scheduler.admit(request(2, 3, Some(4)), 0).unwrap(); // the same id, the same key, not the planned one
    assert!(scheduler.commit(&vec![RowResult::Token(1); rows]).is_empty());
    assert_eq!(step(&mut scheduler, 1), [(2, 3, true)]);
    scheduler.discard(id(2)); // running
    assert!(scheduler.is_empty() && scheduler.pool().held() == 0);
    assert!(!scheduler.end(id(2), FinishReason::Cancelled));
    assert_eq!(reasons(&mut scheduler), []);
    scheduler.check();
}

#[test]
fn a_failed_row_ends_its_own_request_only() {
    let mut scheduler = Scheduler::new(LIMITS);
    for slot in 0..3 {
        scheduler.admit(request(slot, 2, Some(2)), 0).unwrap();
    }
    scheduler.plan(0);
    let failed = RowResult::Failed(FaultCode::NonFinite);
    // The third answer does not fit its row, which asked for a token.
    let tokens = scheduler.commit(&[RowResult::Token(1), failed, RowResult::Computed]).len();
    assert_eq!(tokens, 1);
    let ends = [
        (1, FinishReason::Failed(FaultCode::NonFinite), 0),
        (2, FinishReason::Failed(FaultCode::Internal), 0),
    ];
    assert_eq!(reasons(&mut scheduler), ends);
    assert_eq!(step(&mut scheduler, 5), [(0, 1, true)]);
    assert_eq!(reasons(&mut scheduler), [(0, FinishReason::Length, 2)]);
}
