//! Each policy by what it does first, and that none of them lets a request starve.

use pinion_protocol::{Claim, RequestId, Sampling, StopIds};
use pinion_scheduler::{Admission, Limits, Policy, Request, RowResult, Scheduler, StepTime};

const LIMITS: Limits = Limits {
    max_num_seqs: 8,
    max_num_batched_tokens: 16,
    max_requests: 128,
    max_model_len: 1024,
    block_size: 4,
    block_count: 1000,
    stop_ids: StopIds::NONE,
};

/// Nothing begins alike.
const PLAIN: Policy = Policy {
    prefix_cache: false,
    prefix_partial: false,
    prefix_wait: false,
    admission: Admission::Fifo,
    prefill_chunk_tokens_max: None,
    prefill_rows_max: None,
    prefill_first_from: None,
    step_time: StepTime::Unbounded,
    overtaken_max: u32::MAX,
    pools: false,
    speculation: false,
    window: None,
};

fn admit(scheduler: &mut Scheduler, slot: u16, len: usize, max_tokens: u32, now_ns: u64) {
    let sampling = Sampling { max_tokens: Some(max_tokens), ..Sampling::default() };
    let id = RequestId { frontend: 0, slot, generation: 1 };
    let request =
        Request { id, claim: Claim::default(), sampling, ids: vec![7; len], prompt_tokens: len as u32 };
    scheduler.admit(request, now_ns).expect("it fits");
}

/// One step. Gives (slot, len) of each row.
fn step(scheduler: &mut Scheduler) -> Vec<(u16, u32)> {
    let rows = scheduler.plan(0).map_or(Vec::new(), |plan| plan.rows.clone());
    let result = |draws| if draws { RowResult::Token(1) } else { RowResult::Computed };
    let results: Vec<RowResult> = rows.iter().map(|row| result(row.draw.is_some())).collect();
    scheduler.commit(&results);
    scheduler.check();
    rows.iter().map(|row| (row.id.slot, row.len)).collect()
}

#[test]
fn who_goes_next() {
    // One at a time, by (length, arrival).
    let arrivals = [(9, 0), (2, 10), (5, 20), (300, 25), (2, 30)];
    for (admission, order) in [
        (Admission::Fifo, [0, 1, 2, 3, 4]),
        (Admission::Pack, [1, 4, 2, 0, 3]),
        (Admission::Shortest, [1, 4, 2, 0, 3]),
        (Admission::Deadline { target_ns: 0 }, [0, 1, 2, 3, 4]),
        (Admission::Deadline { target_ns: 1000 }, [0, 1, 2, 4, 3]),
    ] {
        let limits = Limits { max_num_seqs: 1, ..LIMITS };
        let mut scheduler = Scheduler::with_policy(limits, Policy { admission, ..PLAIN });
        for (slot, (len, now_ns)) in arrivals.into_iter().enumerate() {
            admit(&mut scheduler, slot as u16, len, 1, now_ns);
        }
        let mut seen = Vec::new();
        while !scheduler.is_empty() {
            seen.extend(step(&mut scheduler).iter().map(|row| row.0));
            seen.dedup();
        }
        assert_eq!(seen, order, "{admission:?}");
    }
}

#[test]
fn pack_looks_ahead_so_far_and_no_further() {
    let limits = Limits { max_num_seqs: 1, ..LIMITS };
    for (admission, first) in [(Admission::Pack, 63), (Admission::Shortest, 64)] {
        let mut scheduler = Scheduler::with_policy(limits, Policy { admission, ..PLAIN });
        for slot in 0..65 {
            admit(&mut scheduler, slot, 70 - usize::from(slot), 1, 0);
        }
        assert_eq!(step(&mut scheduler)[0].0, first, "{admission:?}");
    }
}

/// A long prompt against short ones that never stop coming.
fn starts_before_the_long_one(admission: Admission, overtaken_max: u32) -> Option<u32> {
    let limits = Limits { max_num_seqs: 1, ..LIMITS };
    let mut scheduler = Scheduler::with_policy(limits, Policy { admission, overtaken_max, ..PLAIN });
    admit(&mut scheduler, 0, 800, 1, 0);
    for n in 1..500 {
        admit(&mut scheduler, 1 + n % 100, 3, 1, 10 * u64::from(n));
        if step(&mut scheduler)[0].0 == 0 {
            return Some(u32::from(n) - 1);
        }
    }
    None
}

#[test]
fn a_long_prompt_is_overtaken_only_so_often() {
    let deadline = Admission::Deadline { target_ns: 256 };
    for (admission, overtaken_max, starts) in [
        (Admission::Fifo, u32::MAX, Some(0)),
        (Admission::Pack, 20, Some(20)),
        (Admission::Pack, u32::MAX, None), // the bound is what ends it
        (Admission::Shortest, 20, Some(20)),
        (Admission::Shortest, u32::MAX, Some(50)), // by its age: 800 tokens, 16 for each start
        (deadline, 20, Some(20)),
        (deadline, u32::MAX, Some(54)), // 800 tokens have 800 ns, three have 256: so many arrive 10 ns apart before
    ] {
        assert_eq!(starts_before_the_long_one(admission, overtaken_max), starts, "{admission:?}");
    }
}

#[test]
fn prompts_are_cut_into_chunks_and_only_some_at_a_time() {
    let policy = Policy { prefill_chunk_tokens_max: Some(5), prefill_rows_max: Some(2), ..PLAIN };
    let mut scheduler = Scheduler::with_policy(LIMITS, policy);
    for slot in 0..3 {
        admit(&mut scheduler, slot, 8, 3, 0);
    }
    assert_eq!(step(&mut scheduler), [(0, 5), (1, 5)]);
    assert_eq!(step(&mut scheduler), [(0, 3), (1, 3)]);
    assert_eq!(step(&mut scheduler), [(0, 1), (1, 1), (2, 5)]);
    assert_eq!(step(&mut scheduler), [(0, 1), (1, 1), (2, 3)]);
}

#[test]
fn prompts_come_before_decodes_from_the_threshold_on_but_not_for_ever() {
    let policy = Policy { prefill_first_from: Some(2), ..PLAIN };
    let mut scheduler = Scheduler::with_policy(LIMITS, policy);
    admit(&mut scheduler, 0, 2, 50, 0);
    step(&mut scheduler);
    admit(&mut scheduler, 1, 40, 1, 0);
    assert_eq!(step(&mut scheduler), [(0, 1), (1, 15)], "one prompt is below the threshold");
    admit(&mut scheduler, 2, 100, 1, 0);
    assert_eq!(step(&mut scheduler), [(1, 16)]);
    assert_eq!(step(&mut scheduler), [(1, 9), (2, 7)]);
    admit(&mut scheduler, 3, 100, 1, 0);
    assert_eq!(step(&mut scheduler), [(2, 16)]);
    assert_eq!(step(&mut scheduler), [(2, 16)]);
    assert_eq!(step(&mut scheduler), [(0, 1), (2, 15)], "after four steps the decode has its turn");
    assert_eq!(step(&mut scheduler), [(2, 16)]);
}

#[test]
fn no_request_overtakes_a_preempted_one() {
    let policy = Policy { admission: Admission::Shortest, ..PLAIN };
    let limits = Limits { block_count: 6, max_num_seqs: 3, ..LIMITS };
    let mut scheduler = Scheduler::with_policy(limits, policy);
    admit(&mut scheduler, 0, 4, 16, 0);
    admit(&mut scheduler, 1, 5, 10, 0);
    while scheduler.totals().preemptions == 0 {
        step(&mut scheduler);
    }
    admit(&mut scheduler, 2, 1, 1, 0); // shorter, and it would fit at once
    assert_eq!(scheduler.pool().available(), 3);
    let order: Vec<u16> = std::iter::from_fn(|| (!scheduler.is_empty()).then(|| step(&mut scheduler)))
        .flat_map(|rows| rows.into_iter().map(|row| row.0))
        .filter(|&slot| slot != 0)
        .collect();
    assert!(order.starts_with(&[1, 2]), "{order:?}");
}
