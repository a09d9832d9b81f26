//! What the prefix cache saves, and what it must not keep.

use pinion_protocol::{Claim, FaultCode, RequestId, Sampling, StopIds};
use pinion_scheduler::{Limits, Policy, Request, RowResult, Scheduler};

const LIMITS: Limits = Limits {
    max_num_seqs: 4,
    max_num_batched_tokens: 256,
    max_requests: 8,
    max_model_len: 2048,
    block_size: 16,
    block_count: 128,
    stop_ids: StopIds::NONE,
};

fn admit(scheduler: &mut Scheduler, slot: u16, ids: Vec<u32>, max_tokens: u32) {
    let sampling = Sampling { max_tokens: Some(max_tokens), ..Sampling::default() };
    let prompt_tokens = ids.len() as u32;
    let id = RequestId { frontend: 0, slot, generation: 1 };
    scheduler
        .admit(Request { id, claim: Claim::default(), sampling, ids, prompt_tokens }, 0)
        .expect("it fits");
}

/// One step in which every row that draws gets `result`. Gives (slot, start, len) of each row.
fn step(scheduler: &mut Scheduler, result: RowResult) -> Vec<(u16, u32, u32)> {
    let Some(plan) = scheduler.plan(0) else { return Vec::new() };
    assert!(plan.step < 10_000, "it does not come to an end");
    let rows = plan.rows.clone();
    let result = |draws| if draws { result } else { RowResult::Computed };
    let results: Vec<RowResult> = rows.iter().map(|row| result(row.draw.is_some())).collect();
    scheduler.commit(&results);
    rows.iter().map(|row| (row.id.slot, row.start, row.len)).collect()
}

/// Runs until nothing is left. Gives the tokens computed.
fn run(scheduler: &mut Scheduler) -> u32 {
    let mut computed = 0;
    while !scheduler.is_empty() {
        computed += step(scheduler, RowResult::Token(1)).iter().map(|(_, _, len)| len).sum::<u32>();
    }
    computed
}

fn cached_tokens(scheduler: &mut Scheduler) -> Vec<u32> {
    scheduler.drain_finished().map(|ended| ended.finished.cached_tokens).collect()
}

fn whole_blocks() -> Policy {
    Policy { prefix_partial: false, ..Policy::default() }
}

/// A prompt without a repetition.
fn prompt(len: u32) -> Vec<u32> {
    (0..len).collect()
}

#[test]
fn a_repeated_prompt_computes_only_what_is_not_covered() {
    let off = Policy { prefix_cache: false, ..Policy::default() };
    // (length of the second prompt, how much of it is the first one, tokens that are covered)
    for (len, common, covered) in [
        (1000, 1000, 992), // 62 whole blocks; the 8 tokens after them are computed
        (992, 992, 976),   // whole blocks only: the last one is computed for its logits
        (1200, 1000, 992), // longer
        (1000, 500, 496),  // parts after 500 tokens
        (1000, 15, 0),     // less than a block
        (1000, 0, 0),      // nothing in common
    ] {
        for (policy, covered) in [(whole_blocks(), covered), (off, 0)] {
            let mut scheduler = Scheduler::with_policy(LIMITS, policy);
            admit(&mut scheduler, 0, prompt(1000), 1);
            assert_eq!(run(&mut scheduler), 1000);
            let second = (0..len).map(|n| if n < common { n } else { 5000 + n }).collect();
            admit(&mut scheduler, 1, second, 1);
            assert_eq!(run(&mut scheduler), len - covered, "{len} tokens, {common} in common");
            assert_eq!(cached_tokens(&mut scheduler), [0, covered]);
            let totals = scheduler.totals();
            assert_eq!(totals.prompt_tokens, u64::from(1000 + len - covered));
            let looked_up = if policy.prefix_cache { 1000 + len } else { 0 };
            assert_eq!(totals.prefix_query_tokens, u64::from(looked_up));
            assert_eq!(totals.prefix_hit_tokens, u64::from(covered));
        }
    }
}

#[test]
fn generated_tokens_are_found_too() {
    let mut scheduler = Scheduler::with_policy(LIMITS, whole_blocks());
    admit(&mut scheduler, 0, prompt(20), 30);
    run(&mut scheduler);
    let next_turn = [prompt(20), vec![1; 30], prompt(3)].concat();
    admit(&mut scheduler, 1, next_turn, 1);
    assert_eq!(run(&mut scheduler), 53 - 48, "49 tokens were computed, 48 of them in whole blocks");
}

#[test]
fn running_requests_share_and_at_idle_nothing_is_held() {
    let mut scheduler = Scheduler::with_policy(LIMITS, whole_blocks());
    admit(&mut scheduler, 0, prompt(100), 9);
    step(&mut scheduler, RowResult::Token(1));
    let held = scheduler.pool().held();
    admit(&mut scheduler, 1, prompt(100), 9);
    assert_eq!(step(&mut scheduler, RowResult::Token(1)), [(0, 100, 1), (1, 96, 4)]);
    assert_eq!(scheduler.pool().held(), held + 1, "six blocks are shared, the seventh is its own");
    run(&mut scheduler);
    let pool = scheduler.pool();
    assert_eq!((pool.held(), pool.cached(), pool.free()), (0, 6, 122), "100 and 8 tokens: six whole blocks");
}

/// Two that start in the same step and do not wait for each other compute the same. Each keeps what it computed: its KV
/// does not change while it runs.
#[test]
fn requests_of_the_same_prompt_keep_their_own_blocks_and_leave_one_of_each() {
    let policy = Policy { prefix_wait: false, ..whole_blocks() };
    let mut scheduler = Scheduler::with_policy(LIMITS, policy);
    admit(&mut scheduler, 0, prompt(64), 2);
    admit(&mut scheduler, 1, prompt(64), 18);
    let mut blocks = Vec::new();
    for _ in 0..2 {
        let rows = scheduler.plan(0).expect("a plan").rows.clone();
        blocks.push(rows.iter().map(|row| scheduler.row(row).blocks[..4].to_vec()).collect::<Vec<_>>());
        scheduler.commit(&[RowResult::Token(1), RowResult::Token(1)]);
    }
    assert_eq!(blocks[0], blocks[1]);
    run(&mut scheduler);
    let pool = scheduler.pool();
    assert_eq!(
        (pool.held(), pool.cached()),
        (0, 5),
        "the prompt once, and the block that the second one generated"
    );
}

#[test]
fn a_preempted_request_finds_its_blocks_again() {
    let mut scheduler = Scheduler::with_policy(Limits { block_count: 9, ..LIMITS }, whole_blocks());
    admit(&mut scheduler, 0, prompt(33), 60);
    admit(&mut scheduler, 1, vec![7; 48], 60);
    let mut rows = Vec::new();
    while scheduler.totals().preemptions == 0 {
        rows = step(&mut scheduler, RowResult::Token(1));
    }
    assert_eq!(rows.len(), 1, "the second one has given way: {rows:?}");
    while rows.len() == 1 && rows[0].0 == 0 {
        rows = step(&mut scheduler, RowResult::Token(1));
    }
    assert_eq!(rows, [(1, 48, 32)], "of 80 tokens; the fourth block went to the other one");
    run(&mut scheduler);
    assert_eq!(cached_tokens(&mut scheduler), [0, 0], "what a request finds of its own is no hit");
}

#[test]
fn a_request_that_failed_leaves_nothing_to_be_found() {
    let failed = RowResult::Failed(FaultCode::NonFinite);
    let mut scheduler = Scheduler::with_policy(LIMITS, whole_blocks());
    admit(&mut scheduler, 0, prompt(600), 9);
    for _ in 0..3 {
        step(&mut scheduler, failed); // two chunks, then the first draw
    }
    assert!(scheduler.is_empty() && scheduler.pool().cached() == 0);

    // The blocks that it shared are not found any more either, whichever request computed them.
    admit(&mut scheduler, 1, prompt(600), 1);
    assert_eq!(run(&mut scheduler), 600);
    admit(&mut scheduler, 2, prompt(600), 9);
    assert_eq!(step(&mut scheduler, failed), [(2, 592, 8)]);
    admit(&mut scheduler, 3, prompt(600), 1);
    assert_eq!(run(&mut scheduler), 600);
    scheduler.check();
}

#[test]
fn a_cleared_cache_finds_nothing_and_disturbs_no_request() {
    let mut scheduler = Scheduler::with_policy(LIMITS, whole_blocks());
    admit(&mut scheduler, 0, prompt(64), 1);
    run(&mut scheduler);
    admit(&mut scheduler, 1, prompt(40), 50);
    step(&mut scheduler, RowResult::Token(1));
    scheduler.clear_prefix_cache();
    let pool = scheduler.pool();
    assert_eq!((pool.held(), pool.cached(), pool.free()), (3, 0, 125));
    admit(&mut scheduler, 2, prompt(40), 1);
    assert_eq!(step(&mut scheduler, RowResult::Token(1)), [(1, 40, 1), (2, 0, 40)]);
    run(&mut scheduler);
    scheduler.check();
    assert_eq!(scheduler.pool().held(), 0);
}

#[test]
fn where_requests_part_within_a_block_the_later_one_copies_its_beginning() {
    // (length of the second prompt, how much of it is the first one, tokens that are covered)
    for (len, common, covered) in [
        (1000, 1000, 999), // all but the one that is computed for its logits
        (992, 992, 991),
        (1200, 1000, 1000),
        (1000, 500, 500),
        (1000, 15, 15),
        (1000, 0, 0),
        (2, 1, 1),
        (1, 1, 0),
    ] {
        let mut scheduler = Scheduler::new(LIMITS);
        admit(&mut scheduler, 0, prompt(1000), 1);
        assert_eq!(run(&mut scheduler), 1000);
        let second = (0..len).map(|n| if n < common { n } else { 5000 + n }).collect();
        admit(&mut scheduler, 1, second, 1);
        let plan = scheduler.plan(0).expect("a plan");
        let (copies, row) = (plan.copies.clone(), plan.rows[0]);
        assert_eq!(row.start, covered, "{len} tokens, {common} in common");
        assert_eq!(copies.iter().map(|copy| copy.tokens).sum::<u32>(), covered % 16);
        let blocks = scheduler.row(&row).blocks;
        assert!(copies.iter().all(|copy| copy.to == blocks[covered as usize / 16] && copy.from != copy.to));
        scheduler.end(row.id, pinion_protocol::frontend_inbox::FinishReason::Cancelled);
        scheduler.commit(&[RowResult::Computed]);
        scheduler.check();
        assert_eq!(scheduler.pool().held(), 0);
    }
}

/// What `n` choices of one prompt compute, one after the other and all at once.
#[test]
fn choices_of_a_short_prompt_compute_it_once_if_it_is_there() {
    for (policy, in_turn) in [(Policy::default(), 30 + 3), (whole_blocks(), 30 + 3 * 14)] {
        let mut scheduler = Scheduler::with_policy(LIMITS, policy);
        let mut computed = 0;
        for slot in 0..4 {
            admit(&mut scheduler, slot, prompt(30), 9);
            let rows = step(&mut scheduler, RowResult::Token(1));
            computed += rows.iter().filter(|row| row.0 == slot).map(|row| row.2).sum::<u32>();
        }
        assert_eq!(computed, in_turn, "each after the first token of the one before");
        run(&mut scheduler);
        assert_eq!(scheduler.totals().prompt_tokens, u64::from(in_turn));

        for (prefix_wait, together) in [(true, in_turn), (false, 4 * 30)] {
            let mut scheduler = Scheduler::with_policy(LIMITS, Policy { prefix_wait, ..policy });
            (0..4).for_each(|slot| admit(&mut scheduler, slot, prompt(30), 9));
            run(&mut scheduler);
            assert_eq!(scheduler.totals().prompt_tokens, u64::from(together), "wait {prefix_wait}");
        }
    }
}

/// Choices of a long prompt that are here at once, planned ahead or not: it is computed once, in as few steps as one of
/// them takes, and then all draw together.
#[test]
fn choices_that_come_together_wait_for_the_first_and_compute_the_prompt_once() {
    for (policy, computed) in [(Policy::default(), 1000 + 3), (whole_blocks(), 1000 + 3 * 8)] {
        for ahead in [false, true] {
            let mut scheduler = Scheduler::with_policy(LIMITS, policy);
            (0..4).for_each(|slot| admit(&mut scheduler, slot, prompt(1000), 5));
            let mut steps: Vec<Vec<u16>> = Vec::new();
            let mut in_flight: Vec<Vec<RowResult>> = Vec::new();
            while !scheduler.is_empty() || !in_flight.is_empty() {
                let launched = scheduler.plan(0).map(|plan| plan.rows.clone());
                if let Some(rows) = &launched {
                    steps.push(rows.iter().map(|row| row.id.slot).collect());
                    let result = |draws| if draws { RowResult::Token(1) } else { RowResult::Computed };
                    in_flight.push(rows.iter().map(|row| result(row.draw.is_some())).collect());
                }
                if launched.is_none() || !ahead || in_flight.len() == 2 {
                    let results = if in_flight.is_empty() { Vec::new() } else { in_flight.remove(0) };
                    scheduler.commit(&results);
                }
                scheduler.check();
            }
            assert_eq!(scheduler.totals().prompt_tokens, computed, "ahead {ahead}");
            // 256 tokens a step. Ahead, the step behind the last chunk is planned before its token is there.
            let alone = if ahead { 5 } else { 4 };
            assert!(steps[..alone].iter().all(|rows| rows == &[0]), "{steps:?}");
            assert_eq!(steps[alone], [0, 1, 2, 3], "{steps:?}");
            assert!(scheduler.drain_finished().all(|ended| ended.finished.generated_tokens == 5));
        }
    }
}

/// (second prompt's length, how much of it is the first's; whether it waits)
#[test]
fn only_who_saves_half_of_what_he_lacks_and_a_block_waits() {
    for (len, common, policy, waits) in [
        (40, 40, Policy::default(), true),
        (40, 20, Policy::default(), true),
        (41, 20, Policy::default(), false),
        (41, 31, whole_blocks(), false), // one whole block, and 21 are half
        (41, 32, whole_blocks(), true),
        (16, 16, Policy::default(), false), // 15 of 16 are less than a block
        (17, 17, Policy::default(), true),
        (40, 40, Policy { prefix_wait: false, ..Policy::default() }, false),
        (40, 40, Policy { prefix_cache: false, ..Policy::default() }, false),
    ] {
        let mut scheduler = Scheduler::with_policy(LIMITS, policy);
        admit(&mut scheduler, 0, prompt(60), 9);
        let second = (0..len).map(|n| if n < common { n } else { 5000 + n }).collect();
        admit(&mut scheduler, 1, second, 9);
        let rows = step(&mut scheduler, RowResult::Token(1));
        assert_eq!(rows.len(), if waits { 1 } else { 2 }, "{len} tokens, {common} in common: {rows:?}");
        assert_eq!(step(&mut scheduler, RowResult::Token(1)).len(), 2);
        run(&mut scheduler);
    }
}

/// A request that others wait for may leave, fail or find no token yet: then none waits for it.
#[test]
fn no_request_waits_for_one_that_is_gone_or_stuck() {
    for (name, rows_after) in [("gone", 1), ("failed", 1), ("stuck", 2)] {
        let mut scheduler = Scheduler::new(LIMITS);
        (0..2).for_each(|slot| admit(&mut scheduler, slot, prompt(40), 9));
        let result = match name {
            "failed" => RowResult::Failed(FaultCode::NonFinite),
            "stuck" => RowResult::Again,
            _ => RowResult::Token(1),
        };
        let plan = scheduler.plan(0).expect("a plan");
        let first = plan.rows[0].id;
        assert_eq!(plan.rows.len(), 1, "{name}");
        if name == "gone" {
            scheduler.discard(first);
        }
        scheduler.commit(&[result]);
        assert_eq!(step(&mut scheduler, RowResult::Token(1)).len(), rows_after, "{name}");
        run(&mut scheduler);
        scheduler.check();
    }
}

#[test]
fn what_was_copied_from_is_forgotten_with_the_request_that_failed() {
    let mut scheduler = Scheduler::new(LIMITS);
    admit(&mut scheduler, 0, prompt(30), 1);
    assert_eq!(run(&mut scheduler), 30);
    admit(&mut scheduler, 1, prompt(30), 9);
    assert_eq!(step(&mut scheduler, RowResult::Failed(FaultCode::NonFinite)), [(1, 29, 1)]);
    admit(&mut scheduler, 2, prompt(30), 1);
    assert_eq!(run(&mut scheduler), 30, "neither the whole block nor the copied one is found");
    scheduler.check();
}
