//! A step planned before the one in flight is committed: what it may stand on, what ends early, what comes too late.

use pinion_protocol::frontend_inbox::FinishReason;
use pinion_protocol::{Claim, FaultCode, Grammar, GrammarField, GrammarKind, RequestId, Sampling, StopIds};
use pinion_scheduler::{Limits, Request, RowResult, Scheduler};

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

fn request(slot: u16, prompt_tokens: u32, sampling: Sampling) -> Request {
    let ids = vec![7 + u32::from(slot); prompt_tokens as usize]; // no two begin alike
    Request { id: id(slot), claim: Claim::default(), sampling, ids, prompt_tokens }
}

fn asks(max_tokens: u32) -> Sampling {
    Sampling { max_tokens: Some(max_tokens), ..Sampling::default() }
}

fn with(requests: &[(u32, Sampling)], limits: Limits) -> Scheduler {
    let mut scheduler = Scheduler::new(limits);
    for (slot, (prompt_tokens, sampling)) in requests.iter().enumerate() {
        let taken = scheduler.admit(request(slot as u16, *prompt_tokens, sampling.clone()), 0);
        assert_eq!(taken, Ok(()));
    }
    scheduler
}

/// (slot, start, len, index of the draw, known tokens) of each row of the last plan.
fn rows(scheduler: &Scheduler) -> Vec<(u16, u32, u32, Option<u32>, usize)> {
    let plan = scheduler.current_plan();
    let known = |row| scheduler.row(row).tokens.len();
    plan.rows.iter().map(|row| (row.id.slot, row.start, row.len, row.draw, known(row))).collect()
}

fn reasons(scheduler: &mut Scheduler) -> Vec<(u16, FinishReason, u32)> {
    let ended = scheduler.drain_finished();
    ended.map(|e| (e.finished.id.slot, e.finished.reason, e.finished.generated_tokens)).collect()
}

#[test]
fn overlap_a_row_stands_on_a_token_that_is_not_drawn_yet() {
    let mut scheduler = with(&[(3, asks(9)), (20, asks(9))], LIMITS);
    scheduler.plan(0);
    assert_eq!(rows(&scheduler), [(0, 0, 3, Some(0), 3), (1, 0, 13, None, 13)]);
    assert!(scheduler.plan(0).is_some());
    assert_eq!(rows(&scheduler), [(0, 3, 1, Some(1), 0), (1, 13, 7, Some(0), 7)]);
    assert_eq!((scheduler.oldest_plan().step, scheduler.current_plan().step), (1, 2));
    let tokens = scheduler.commit(&[RowResult::Token(5), RowResult::Computed]).to_vec();
    assert_eq!((tokens.len(), tokens[0].token, tokens[0].sequence, tokens[0].row), (1, 5, 0, 0));
    assert!(scheduler.plan(0).is_some());
    assert_eq!(rows(&scheduler), [(0, 4, 1, Some(2), 0), (1, 20, 1, Some(1), 0)]);
    let tokens = scheduler.commit(&[RowResult::Token(6), RowResult::Token(8)]).to_vec();
    let got: Vec<_> = tokens.iter().map(|t| (t.id.slot, t.token, t.sequence, t.row, t.first)).collect();
    assert_eq!(got, [(0, 6, 1, 0, false), (1, 8, 0, 1, true)]);
    scheduler.check();
}

#[test]
fn overlap_lengths_are_known_ahead_and_never_overshot() {
    let mut scheduler = with(&[(3, asks(2)), (3, asks(1))], LIMITS);
    scheduler.plan(0);
    assert!(scheduler.plan(0).is_some());
    assert_eq!(rows(&scheduler), [(0, 3, 1, Some(1), 0)], "the other one ends with the step in flight");
    scheduler.commit(&[RowResult::Token(1), RowResult::Token(1)]);
    assert_eq!(reasons(&mut scheduler), [(1, FinishReason::Length, 1)]);
    assert!(scheduler.plan(0).is_none(), "nothing is left to run");
    scheduler.commit(&[RowResult::Token(1)]);
    assert_eq!(reasons(&mut scheduler), [(0, FinishReason::Length, 2)]);
    assert!(scheduler.plan(0).is_none() && scheduler.pool().held() == 0);
}

/// Nothing is changed for a plan that may not be made: also where it would have found no block.
#[test]
#[should_panic(expected = "at most one plan is outstanding")]
fn overlap_a_third_plan_is_a_fault_where_blocks_are_short_too() {
    let mut scheduler = with(&[(7, asks(9)), (7, asks(9))], Limits { block_count: 5, ..LIMITS });
    assert!(scheduler.plan(0).is_some());
    assert!(scheduler.plan(0).is_some());
    assert_eq!(
        rows(&scheduler),
        [(0, 7, 1, Some(1), 0), (1, 7, 1, Some(1), 0)],
        "both blocks of each are full"
    );
    scheduler.plan(0);
}

/// Every way in which a request can end while its next row is in flight.
#[test]
fn overlap_a_late_stop_discards_the_extra_token_and_its_kv() {
    type End = fn(&mut Scheduler) -> RowResult;
    let ends: [(End, Option<FinishReason>, u32); 5] = [
        (|_| RowResult::Token(EOS), Some(FinishReason::Stop), 1),
        (|_| RowResult::Token(50), Some(FinishReason::Stop), 1),
        (|_| RowResult::Failed(FaultCode::NonFinite), Some(FinishReason::Failed(FaultCode::NonFinite)), 0),
        (
            |scheduler| {
                assert!(scheduler.end(id(0), FinishReason::Cancelled));
                RowResult::Token(1)
            },
            Some(FinishReason::Cancelled),
            0,
        ),
        (
            |scheduler| {
                scheduler.discard(id(0));
                RowResult::Token(1)
            },
            None,
            0,
        ),
    ];
    for (end, reason, generated) in ends {
        // The extra row is the first in a new block.
        let sampling = Sampling { stop_token_ids: vec![50], ..asks(9) };
        let mut scheduler = with(&[(4, sampling), (3, asks(9))], LIMITS);
        scheduler.plan(0);
        assert!(scheduler.plan(0).is_some());
        assert_eq!(scheduler.pool().held(), 3);
        let result = end(&mut scheduler);
        scheduler.commit(&[result, RowResult::Token(1)]);
        let ended: Vec<_> = reason.iter().map(|&reason| (0, reason, generated)).collect();
        assert_eq!(reasons(&mut scheduler), ended);
        assert_eq!(scheduler.pool().held(), 1, "{reason:?}: its blocks are back while its row is in flight");

        // A newcomer takes its key, its lane and its blocks; the stale row is not taken for one of its own.
        assert_eq!(scheduler.admit(request(0, 5, asks(2)), 0), Ok(()));
        assert!(scheduler.plan(0).is_some());
        let events = scheduler.commit(&[RowResult::Token(77), RowResult::Token(2)]).to_vec();
        let got: Vec<_> = events.iter().map(|event| (event.id.slot, event.token)).collect();
        assert_eq!(got, [(1, 2)], "{reason:?}");
        let generated: u64 = scheduler.totals().generated_tokens;
        let events = scheduler.commit(&[RowResult::Token(3), RowResult::Token(4)]).len();
        assert_eq!((events, scheduler.totals().generated_tokens - generated), (2, 2));
        scheduler.discard(id(0));
        scheduler.discard(id(1));
        assert_eq!(scheduler.pool().held(), 0, "{reason:?}");
        scheduler.check();
    }
}

/// A sequence with a row in flight is never preempted: the step in flight comes first.
#[test]
fn overlap_short_of_blocks_the_step_in_flight_is_committed_first() {
    let mut scheduler = with(&[(7, asks(9)), (7, asks(9))], Limits { block_count: 4, ..LIMITS });
    scheduler.plan(0);
    scheduler.commit(&[RowResult::Token(1), RowResult::Token(1)]);
    scheduler.plan(0);
    assert!(scheduler.plan(0).is_none(), "each needs a third block and there is none");
    scheduler.check();
    scheduler.commit(&[RowResult::Token(1), RowResult::Token(1)]);
    assert_eq!(scheduler.totals().preemptions, 0);
    assert_eq!(scheduler.plan(0).map(|plan| plan.preempted_count), Some(1));
    assert_eq!(rows(&scheduler), [(0, 8, 1, Some(2), 1)]);
    assert!(scheduler.plan(0).is_some());
    scheduler.check();
}

/// (what a request asks for, whether its next row needs the token in flight)
#[test]
fn overlap_what_needs_the_last_token_waits_for_it() {
    let plain = asks(9);
    let grammar = Grammar { kind: GrammarKind::Regex, field: GrammarField::GuidedRegex, text: "a*".into() };
    let table = [
        (plain.clone(), false),
        (Sampling { repetition_penalty: 1.5, ..plain.clone() }, false),
        (Sampling { frequency_penalty: 0.5, ..plain.clone() }, false),
        (Sampling { presence_penalty: -0.5, ..plain.clone() }, false),
        (Sampling { logit_bias: vec![(1, 2.0)], ..plain.clone() }, false),
        (Sampling { min_tokens: 4, stop_token_ids: vec![5], ..plain.clone() }, false),
        (Sampling { temperature: 0.5, seed: 3, logprobs: Some(2), ..plain.clone() }, false),
        (Sampling { grammar: Some(grammar), ..plain }, true),
    ];
    for (sampling, waits) in table {
        let mut scheduler = with(&[(3, asks(9)), (3, sampling.clone())], LIMITS);
        scheduler.plan(0);
        assert_eq!(scheduler.plan(0).is_none(), waits, "{sampling:?}");
        let mut last = with(&[(3, Sampling { max_tokens: Some(1), min_tokens: 0, ..sampling })], LIMITS);
        last.plan(0);
        assert_eq!(last.admit(request(1, 3, asks(9)), 0), Ok(()));
        assert!(last.plan(0).is_some(), "nothing comes after its last token, so nothing waits");
    }
}
