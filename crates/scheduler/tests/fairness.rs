//! Priorities and fair shares: which request is admitted, which is preempted, and that none starves.

use pinion_protocol::{Claim, RequestId, Sampling, StopIds};
use pinion_scheduler::{Admission, Limits, Policy, Request, RowResult, Scheduler};
use proptest::prelude::*;
use std::collections::HashMap;

const LIMITS: Limits = Limits {
    max_num_seqs: 1,
    max_num_batched_tokens: 16,
    max_requests: 256,
    max_model_len: 1024,
    block_size: 4,
    block_count: 1000,
    stop_ids: StopIds::NONE,
};

const ADMISSIONS: [Admission; 4] =
    [Admission::Fifo, Admission::Pack, Admission::Shortest, Admission::Deadline { target_ns: 1000 }];

fn plain(admission: Admission) -> Policy {
    Policy { prefix_cache: false, admission, ..Policy::default() }
}

fn id(slot: u16) -> RequestId {
    RequestId { frontend: 0, slot, generation: 1 }
}

fn admit(scheduler: &mut Scheduler, slot: u16, claim: Claim, len: usize, max_tokens: u32) {
    let sampling = Sampling { max_tokens: Some(max_tokens), ..Sampling::default() };
    let request = Request { id: id(slot), claim, sampling, ids: vec![7; len], prompt_tokens: len as u32 };
    scheduler.admit(request, u64::from(slot)).expect("it fits");
}

fn ranked(priority: i32) -> Claim {
    Claim { priority, ..Claim::default() }
}

fn of_tenant(tenant: u64, weight: u32) -> Claim {
    Claim { tenant, weight, ..Claim::default() }
}

/// One step. Gives the slots of its rows, and how many tokens each was served.
fn step(scheduler: &mut Scheduler) -> Vec<(u16, u32)> {
    let rows = scheduler.plan(0).map_or(Vec::new(), |plan| plan.rows.clone());
    let result = |draws| if draws { RowResult::Token(1) } else { RowResult::Computed };
    let results: Vec<RowResult> = rows.iter().map(|row| result(row.draw.is_some())).collect();
    scheduler.commit(&results);
    scheduler.check();
    let _ = scheduler.drain_finished();
    let prompt = |len: u32| if len > 1 { len } else { 0 };
    rows.iter().map(|row| (row.id.slot, prompt(row.len) + u32::from(row.draw.is_some()))).collect()
}

/// The order in which the requests first ran.
fn order(scheduler: &mut Scheduler) -> Vec<u16> {
    let mut seen = Vec::new();
    while !scheduler.is_empty() {
        for (slot, _) in step(scheduler) {
            if !seen.contains(&slot) {
                seen.push(slot);
            }
        }
    }
    seen
}

#[test]
fn a_lower_priority_value_goes_first_and_the_policy_orders_its_equals() {
    // (length, priority) in order of arrival.
    let arrivals = [(9, 0), (2, 5), (5, -1), (8, -1), (2, 0), (2, -1)];
    for (admission, expected) in [
        (Admission::Fifo, [2, 3, 5, 0, 4, 1]),
        (Admission::Pack, [5, 2, 3, 4, 0, 1]),
        (Admission::Shortest, [5, 2, 3, 4, 0, 1]),
        (Admission::Deadline { target_ns: 1000 }, [2, 3, 5, 0, 4, 1]),
    ] {
        let mut scheduler = Scheduler::with_policy(LIMITS, plain(admission));
        for (slot, (len, priority)) in arrivals.into_iter().enumerate() {
            admit(&mut scheduler, slot as u16, ranked(priority), len, 1);
        }
        assert_eq!(order(&mut scheduler), expected, "{admission:?}");
    }
}

#[test]
fn the_least_important_gives_its_blocks_and_of_equals_the_last() {
    let limits = Limits { max_num_seqs: 3, block_count: 6, ..LIMITS };
    for (priorities, victim) in
        [([0, 0, 0], 2), ([5, 0, 0], 0), ([0, 5, 0], 1), ([-1, 3, 3], 2), ([1, 0, -9], 0)]
    {
        let mut scheduler = Scheduler::with_policy(limits, plain(Admission::Fifo));
        for (slot, priority) in priorities.into_iter().enumerate() {
            // Two blocks each; the pool is full when all run, and each needs a third one.
            admit(&mut scheduler, slot as u16, ranked(priority), 5, 8);
        }
        while scheduler.totals().preemptions == 0 {
            step(&mut scheduler);
        }
        let waiting: Vec<u16> = scheduler.waiting().map(|id| id.slot).collect();
        assert_eq!(waiting, [victim], "{priorities:?}");
        order(&mut scheduler);
    }
}

/// A request of low importance against important ones that never stop coming.
#[test]
fn no_priority_starves_another() {
    for admission in ADMISSIONS {
        let policy = Policy { overtaken_max: 10, ..plain(admission) };
        let mut scheduler = Scheduler::with_policy(LIMITS, policy);
        let low = 5;
        for slot in 0..low {
            admit(&mut scheduler, slot, ranked(9), 30, 1);
        }
        let mut ran = Vec::new();
        for next in low..200 {
            while scheduler.waiting().filter(|id| id.slot >= low).count() == 0 {
                admit(&mut scheduler, next, ranked(-9), 2, 1);
            }
            ran.extend(step(&mut scheduler).iter().map(|row| row.0));
        }
        ran.dedup();
        let starts_of_low: Vec<usize> = (0..low)
            .map(|slot| ran.iter().position(|&seen| seen == slot).unwrap_or_else(|| panic!("{slot} starves")))
            .collect();
        // Ten others, and then every fourth start.
        let bound = |slot: usize| 10 + 4 * (slot + 1);
        assert!(
            starts_of_low.iter().enumerate().all(|(slot, &at)| at <= bound(slot)),
            "{admission:?}: {starts_of_low:?}"
        );
        assert!(starts_of_low[0] >= 10, "{admission:?}: not before they have aged: {starts_of_low:?}");
        let important = ran[..starts_of_low[4]].iter().filter(|&&slot| slot >= low).count();
        assert!(important >= 3 * 4, "{admission:?}: most starts stay with the important: {ran:?}");
    }
}

/// Two tenants, one with ten times the requests of the other: while both have requests waiting, what they are served
/// differs by no more than they can start at once.
#[test]
fn two_tenants_are_served_alike_however_many_requests_one_sends() {
    const PROMPT: usize = 12;
    const TOKENS: u32 = 8;
    for (admission, seqs, weight) in ADMISSIONS.into_iter().flat_map(|a| [(a, 1, 1), (a, 4, 1), (a, 4, 3)]) {
        let limits = Limits { max_num_seqs: seqs, ..LIMITS };
        let mut scheduler = Scheduler::with_policy(limits, plain(admission));
        for slot in 0..200 {
            admit(&mut scheduler, slot, of_tenant(1, 1), PROMPT, TOKENS);
        }
        let mut of_two = 0;
        let mut served = [0u32; 2];
        let bound = 2 * seqs * (PROMPT as u32 + TOKENS);
        for _ in 0..400 {
            // The other always has one or two waiting, never more.
            while scheduler.waiting().filter(|id| id.slot >= 200).count() < 2 && of_two < 56 {
                admit(&mut scheduler, 200 + of_two, of_tenant(2, weight), PROMPT, TOKENS);
                of_two += 1;
            }
            if scheduler.waiting().filter(|id| id.slot >= 200).count() == 0
                || scheduler.waiting().filter(|id| id.slot < 200).count() == 0
            {
                break;
            }
            for (slot, tokens) in step(&mut scheduler) {
                served[usize::from(slot >= 200)] += tokens;
            }
            let difference = served[0].abs_diff(served[1] / weight);
            assert!(
                difference <= bound,
                "{admission:?} {seqs} {weight}: {served:?} differ by more than {bound}"
            );
        }
        assert!(served[0] > 10 * PROMPT as u32 && served[1] > 10 * PROMPT as u32, "{served:?}");
    }
}

#[test]
fn one_tenant_is_served_in_the_same_order_as_none() {
    for admission in ADMISSIONS {
        let orders: Vec<Vec<u16>> = [of_tenant(0, 1), of_tenant(77, 1), of_tenant(77, 9)]
            .into_iter()
            .map(|claim| {
                let limits = Limits { max_num_seqs: 3, block_count: 40, ..LIMITS };
                let mut scheduler = Scheduler::with_policy(limits, plain(admission));
                for slot in 0..60u16 {
                    admit(
                        &mut scheduler,
                        slot,
                        claim,
                        1 + usize::from(slot * 7 % 31),
                        1 + u32::from(slot % 5),
                    );
                }
                order(&mut scheduler)
            })
            .collect();
        assert_eq!(orders[0].len(), 60);
        assert!(orders.iter().all(|order| *order == orders[0]), "{admission:?}");
    }
}

/// Within a tenant its own priorities hold; they are nothing to the others.
#[test]
fn a_tenant_gains_nothing_by_calling_its_requests_important() {
    let mut scheduler = Scheduler::with_policy(LIMITS, plain(Admission::Fifo));
    for slot in 0..40u16 {
        let (tenant, priority) = if slot < 20 { (1, -100 - i32::from(slot)) } else { (2, 0) };
        admit(&mut scheduler, slot, Claim { tenant, priority, weight: 1 }, 4, 1);
    }
    let order = order(&mut scheduler);
    let mut of_tenant: HashMap<bool, usize> = HashMap::new();
    for slot in &order[..20] {
        *of_tenant.entry(*slot < 20).or_default() += 1;
    }
    assert_eq!(of_tenant[&true].abs_diff(of_tenant[&false]), 0, "{order:?}");
    let own: Vec<u16> = order.iter().copied().filter(|slot| *slot < 20).collect();
    assert_eq!(own, (0..20).rev().collect::<Vec<_>>(), "its own order is by priority");
}

/// What the requests of a tenant are like.
#[derive(Debug, Clone)]
struct Style {
    weight: u32,
    prompt: std::ops::Range<u32>,
    output: std::ops::Range<u32>,
    /// Requests that come at once, and every how many steps on average.
    burst: usize,
    every: u32,
}

/// Requests of a tenant that wait at a time.
const QUEUE_MAX: usize = 40;

fn style() -> impl Strategy<Value = Style> {
    let output = prop_oneof![1..4u32, 2..20u32, 60..120u32];
    (1..5u32, 1..13u32, output, 1..60usize, 1..60u32).prop_map(|(weight, prompt, output, burst, every)| {
        Style { weight, prompt: 1..prompt + 1, output: 1..output + 1, burst, every }
    })
}

/// While the next request of a tenant waits, others start no more often than their weights allow, whatever they do: the
/// bound of the head of `tenants.rs`. It knows how large requests are, and not how many.
fn check_starts(styles: &[Style], seqs: u32, seed: u64) {
    let limits = Limits { max_num_seqs: seqs, max_requests: 1024, ..LIMITS };
    let mut scheduler = Scheduler::with_policy(limits, plain(Admission::Fifo));
    let mut random = pinion_random::Random::new(seed);
    let mut below = move |n: u32| random.below(n as usize) as u32;
    let most = |style: &Style, prompt: u32| {
        f64::from(prompt + seqs * (style.output.end - 1)) / f64::from(style.weight)
    };
    let apart = styles.iter().map(|style| most(style, style.prompt.end - 1)).fold(0.0, f64::max);
    let bound = |of: usize| -> f64 {
        let others = styles.iter().enumerate().filter(|(index, _)| *index != of);
        let slack = apart + most(&styles[of], 0);
        // A share is cut off to a whole number of units.
        others.map(|(_, other)| 2.0 + slack * f64::from(other.weight) / f64::from(other.prompt.start)).sum()
    };
    let (mut of_slot, mut seen) = (Vec::new(), vec![0u32; styles.len()]);
    for _ in 0..600 {
        for (tenant, style) in styles.iter().enumerate() {
            let comes = below(style.every) == 0;
            for _ in 0..if comes { style.burst } else { 0 } {
                let theirs = |id: RequestId| of_slot[usize::from(id.slot)] == tenant;
                let waiting = scheduler.waiting().filter(|&id| theirs(id)).count();
                if waiting >= QUEUE_MAX {
                    break;
                }
                if waiting == 0 {
                    seen[tenant] = 0;
                }
                let prompt = style.prompt.start + below(style.prompt.len() as u32);
                let output = style.output.start + below(style.output.len() as u32);
                let slot = of_slot.len() as u16;
                of_slot.push(tenant);
                let claim = of_tenant(tenant as u64, style.weight);
                admit(&mut scheduler, slot, claim, prompt as usize, output);
            }
        }
        let rows = scheduler.plan(0).map_or(Vec::new(), |plan| plan.rows.clone());
        for row in rows.iter().filter(|row| row.first) {
            let starts = of_slot[usize::from(row.id.slot)];
            for (tenant, seen) in seen.iter_mut().enumerate() {
                *seen = if tenant == starts { 0 } else { *seen + 1 };
                let waits = scheduler.waiting().any(|id| of_slot[usize::from(id.slot)] == tenant);
                assert!(
                    !waits || f64::from(*seen) <= bound(tenant),
                    "tenant {tenant} has seen {seen} starts of others, not {}: seed {seed}, {seqs} at once, {styles:?}",
                    bound(tenant)
                );
            }
        }
        let result = |draws| if draws { RowResult::Token(1) } else { RowResult::Computed };
        scheduler.commit(&rows.iter().map(|row| result(row.draw.is_some())).collect::<Vec<_>>());
        let _ = scheduler.drain_finished();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_tenant_s_next_request_sees_a_bounded_number_of_starts_of_others(
        (styles, seqs, seed) in (proptest::collection::vec(style(), 2..5), 1..5u32, any::<u64>())
    ) {
        check_starts(&styles, seqs, seed);
    }
}

/// A tenant has one long text written while another is served much, and then sends many small requests.
#[test]
fn who_has_little_under_way_saves_up_no_claim() {
    let long = Style { weight: 1, prompt: 1..2, output: 1..2, burst: 40, every: 1 };
    let busy = Style { weight: 1, prompt: 12..13, output: 1..2, burst: 5, every: 1 };
    let limits = Limits { max_num_seqs: 4, max_requests: 1024, ..LIMITS };
    let mut scheduler = Scheduler::with_policy(limits, plain(Admission::Fifo));
    admit(&mut scheduler, 0, of_tenant(1, 1), 1, 200);
    let mut next = 1;
    for _ in 0..150 {
        while scheduler.waiting().len() < 4 {
            admit(&mut scheduler, next, of_tenant(2, 1), 12, 1);
            next += 1;
        }
        step(&mut scheduler);
    }
    let waiting: Vec<u16> = scheduler.waiting().map(|id| id.slot).collect();
    assert!(!waiting.is_empty() && scheduler.running().any(|id| id.slot == 0));
    let of_the_busy = next;
    (0..200).for_each(|slot| admit(&mut scheduler, of_the_busy + slot, of_tenant(1, 1), 1, 1));
    let mut between = 0;
    for _ in 0..200 {
        let rows = step(&mut scheduler);
        if rows.iter().any(|(slot, _)| waiting.contains(slot)) {
            break;
        }
        between += rows.iter().filter(|(slot, _)| *slot >= of_the_busy).count();
    }
    assert!(between <= 30, "{between} starts of a tenant that has 12 tokens less, at most, than the other");
    check_starts(&[long, busy], 4, 1);
}
