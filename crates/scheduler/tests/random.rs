//! Random schedules. Whatever the batching, chunking, sharing, preempting, evicting and cancelling around it, each
//! request must get the tokens that it gets alone, end exactly once and within a bounded number of steps, and leave no
//! block behind. The scheduler checks its own invariants after every step.

use crate::simulation::{Arrival, EOS, Exit, REQUESTS_MAX, Schedule, VOCABULARY, mix, simulate};
use pinion_protocol::{Claim, StopIds, WindowKv, window_blocks_of_sequence};
use pinion_scheduler::{Admission, Limits, Policy, StepTime};
use proptest::prelude::*;

fn limits() -> impl Strategy<Value = Limits> {
    (1..6u32, 1..24u32, prop_oneof![Just(1u32), Just(4), Just(16)], 1..40u32, any::<bool>()).prop_map(
        |(max_num_seqs, max_num_batched_tokens, block_size, block_count, ends)| Limits {
            max_num_seqs,
            max_num_batched_tokens,
            max_requests: REQUESTS_MAX,
            max_model_len: 64,
            block_size,
            block_count,
            stop_ids: if ends { StopIds::one(EOS) } else { StopIds::NONE },
        },
    )
}

fn admission() -> impl Strategy<Value = Admission> {
    prop_oneof![
        Just(Admission::Fifo),
        Just(Admission::Pack),
        Just(Admission::Shortest),
        (0..40u64).prop_map(|target_ns| Admission::Deadline { target_ns }),
    ]
}

/// Steps of the simulation take up to a few thousand ns.
fn step_time() -> impl Strategy<Value = StepTime> {
    prop_oneof![
        2 => Just(StepTime::Unbounded),
        1 => Just(StepTime::Auto),
        1 => (1..4000u64).prop_map(|ns| StepTime::Target { ns }),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let some = |range: std::ops::Range<u32>| proptest::option::of(range);
    let prefill = (some(1..12), some(1..4), some(0..4), step_time());
    (any::<[bool; 4]>(), admission(), prefill, 0..8u32).prop_map(
        |([prefix_cache, prefix_partial, prefix_wait, speculation], admission, prefill, overtaken_max)| {
            let (chunk, rows, first_from, step_time) = prefill;
            Policy {
                prefix_cache,
                prefix_partial,
                prefix_wait,
                admission,
                prefill_chunk_tokens_max: chunk,
                prefill_rows_max: rows,
                prefill_first_from: first_from,
                step_time,
                overtaken_max,
                pools: false,
                speculation,
                window: None,
            }
        },
    )
}

/// One of a few long texts up to some point, then a few tokens of its own.
fn prompt() -> impl Strategy<Value = Vec<u32>> {
    let own = proptest::collection::vec(0..VOCABULARY, 0..8);
    (0..3u64, 0..36u64, own).prop_filter_map("a prompt has a token", |(text, common, own)| {
        let token = |position| mix(text, position) as u32 % VOCABULARY;
        let prompt: Vec<u32> = (0..common).map(token).chain(own).collect();
        (!prompt.is_empty()).then_some(prompt)
    })
}

/// Nine of sixteen schedules have requests that are all alike.
fn claims() -> impl Strategy<Value = (i32, u64)> {
    (prop_oneof![3 => Just(1), 1 => Just(4)], prop_oneof![3 => Just(1), 1 => Just(3)])
}

fn arrival((priorities, tenants): (i32, u64)) -> impl Strategy<Value = Arrival> {
    let claim = (0..priorities, 0..tenants, 1..4u32);
    let claim = claim.prop_map(|(priority, tenant, weight)| Claim { priority: priority - 1, tenant, weight });
    let exit = prop_oneof![
        6 => Just(None),
        1 => (0..40u32).prop_map(|after| Some(Exit::Cancel(after))),
        1 => (0..40u32).prop_map(|after| Some(Exit::Stop(after))),
        1 => (0..40u32).prop_map(|after| Some(Exit::Discard(after))),
        1 => (0..40u32).prop_map(|after| Some(Exit::Fail(after))),
    ];
    (claim, 0..60u32, prompt(), 0..4u32, 1..30u32, any::<bool>(), exit).prop_map(
        |(claim, at_step, prompt, resumed, max_tokens, ignore_eos, exit)| Arrival {
            claim,
            at_step,
            prompt,
            resumed,
            max_tokens,
            ignore_eos,
            exit,
        },
    )
}

/// A window that is shorter than most texts, and window blocks beyond those that one sequence takes.
fn window() -> impl Strategy<Value = Option<(u32, u32)>> {
    proptest::option::of((1..24u32, prop_oneof![Just(0), 1..4u32, 4..40u32]))
}

fn window_kv((tokens, more): (u32, u32), limits: &Limits) -> WindowKv {
    let least = window_blocks_of_sequence(tokens, limits.block_size).min(limits.block_count);
    WindowKv { tokens, blocks: least + more }
}

fn schedule() -> impl Strategy<Value = Schedule> {
    let clear_every = proptest::option::weighted(0.2, 5..20u32);
    let arrivals = claims().prop_flat_map(|claims| proptest::collection::vec(arrival(claims), 1..24));
    (limits(), policy(), window(), arrivals, clear_every, any::<[bool; 2]>()).prop_map(
        |(limits, policy, window, arrivals, clear_every, [ahead, repeats])| Schedule {
            policy: Policy { window: window.map(|window| window_kv(window, &limits)), ..policy },
            limits,
            arrivals,
            clear_every,
            ahead,
            repeats,
        },
    )
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(10_000))]

    #[test]
    fn every_request_ends_once_with_what_it_gets_alone(schedule in schedule()) {
        simulate(schedule);
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    /// A text has blocks for all its tokens from its start on, so none is preempted.
    #[test]
    fn each_prompt_of_a_model_that_pools_is_computed_once_and_whole(schedule in schedule()) {
        let arrivals = schedule.arrivals.iter().cloned();
        let arrivals = arrivals.map(|arrival| Arrival { max_tokens: 0, resumed: 0, ..arrival }).collect();
        let policy = Policy { pools: true, ..schedule.policy };
        let outcome = simulate(Schedule { policy, arrivals, ..schedule });
        prop_assert_eq!(outcome.totals.preemptions, 0);
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn with_and_without_the_prefix_cache_the_same_tokens_come_out(schedule in schedule()) {
        let with = |prefix_cache| {
            let policy = Policy { prefix_cache, ..schedule.policy };
            simulate(Schedule { policy, ..schedule.clone() })
        };
        let (on, off) = (with(true), with(false));
        prop_assert_eq!(off.totals.prefix_hit_tokens, 0);
        for (id, tokens) in &on.tokens {
            // A schedule's exits come at other moments of a request's life when it runs faster.
            prop_assert_eq!(off.tokens.get(id).unwrap_or(tokens), tokens);
        }
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn overlap_random_schedules_give_the_same_tokens_planned_ahead_or_not(schedule in schedule()) {
        let run = |ahead| simulate(Schedule { ahead, ..schedule.clone() });
        let (on, off) = (run(true), run(false));
        for (id, tokens) in &on.tokens {
            // A schedule's exits come at other moments of a request's life when its steps are committed later.
            prop_assert_eq!(off.tokens.get(id).unwrap_or(tokens), tokens);
        }
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn with_and_without_copies_of_block_beginnings_the_same_tokens_come_out(schedule in schedule()) {
        let with = |prefix_partial| {
            let policy = Policy { prefix_cache: true, prefix_partial, ..schedule.policy };
            simulate(Schedule { policy, ..schedule.clone() })
        };
        let (on, off) = (with(true), with(false));
        for (id, tokens) in &on.tokens {
            prop_assert_eq!(off.tokens.get(id).unwrap_or(tokens), tokens);
        }
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn with_and_without_waiting_for_twins_the_same_tokens_come_out(schedule in schedule()) {
        let with = |prefix_wait| {
            let policy = Policy { prefix_cache: true, prefix_wait, ..schedule.policy };
            simulate(Schedule { policy, ..schedule.clone() })
        };
        let (on, off) = (with(true), with(false));
        for (id, tokens) in &on.tokens {
            prop_assert_eq!(off.tokens.get(id).unwrap_or(tokens), tokens);
        }
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn with_and_without_drafts_the_same_tokens_come_out(schedule in schedule()) {
        let with = |speculation| {
            let policy = Policy { speculation, ..schedule.policy };
            simulate(Schedule { policy, repeats: true, ..schedule.clone() })
        };
        let (on, off) = (with(true), with(false));
        prop_assert_eq!((off.totals.drafts, off.totals.accepted_drafts), (0, 0));
        prop_assert!(on.totals.accepted_drafts <= on.totals.drafts);
        for (id, tokens) in &on.tokens {
            // A schedule's exits come at other moments of a request's life when a step gives more of its tokens.
            prop_assert_eq!(off.tokens.get(id).unwrap_or(tokens), tokens);
        }
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn with_and_without_window_blocks_the_same_tokens_come_out(schedule in schedule(), window in (1..24u32, 0..8u32)) {
        let with = |window| {
            let policy = Policy { window, ..schedule.policy };
            simulate(Schedule { policy, ..schedule.clone() })
        };
        let (on, off) = (with(Some(window_kv(window, &schedule.limits))), with(None));
        prop_assert_eq!(off.windows_evicted, 0);
        for (id, tokens) in &on.tokens {
            // A schedule's exits come at other moments of a request's life when it starts later.
            prop_assert_eq!(off.tokens.get(id).unwrap_or(tokens), tokens);
        }
    }
}

/// The random schedules would prove little if none of them ever ran out of blocks or found a prefix.
#[test]
fn a_tiny_pool_preempts_evicts_and_shares_and_the_tokens_stay() {
    let limits = Limits {
        max_num_seqs: 4,
        max_num_batched_tokens: 16,
        max_requests: REQUESTS_MAX,
        max_model_len: 64,
        block_size: 4,
        block_count: 10,
        stop_ids: StopIds::NONE,
    };
    let arrival = |n: u32| {
        let prompt = [vec![5; 9], vec![n % 3 + 1; 4]].concat();
        let max_tokens = 18;
        Arrival {
            claim: Claim::default(),
            at_step: 4 * n,
            prompt,
            resumed: 0,
            max_tokens,
            ignore_eos: false,
            exit: None,
        }
    };
    let policies =
        [Admission::Fifo, Admission::Pack, Admission::Shortest, Admission::Deadline { target_ns: 9 }];
    let ways = [(false, false), (true, false), (false, true), (true, true)];
    // Four sequences at most have window blocks for themselves, and three more are left for cached prefixes.
    let window = WindowKv { tokens: 8, blocks: 4 * window_blocks_of_sequence(8, 4) + 3 };
    let windows = [None, Some(window)];
    let ways = policies.into_iter().flat_map(|policy| ways.map(|way| (policy, way)));
    for ((admission, (ahead, speculation)), window) in
        ways.flat_map(|way| windows.map(|window| (way, window)))
    {
        let policy = Policy { admission, speculation, window, ..Policy::default() };
        let arrivals = (0..12).map(arrival).collect();
        let schedule = Schedule { limits, policy, arrivals, clear_every: None, ahead, repeats: speculation };
        let outcome = simulate(schedule);
        let totals = outcome.totals;
        let refused = totals.drafts - totals.accepted_drafts;
        assert_eq!((totals.accepted_drafts > 0, refused > 0), (speculation, speculation), "{totals:?}");
        assert!(totals.preemptions > 0 && outcome.evicted > 0, "{admission:?}: {totals:?}");
        assert!(totals.prefix_hit_tokens >= 8 * 10, "{admission:?}: {totals:?}");
        assert_eq!(outcome.tokens.len(), 12);
        let told = outcome.told;
        assert!(told.stored > 12 && told.removed > 0 && told.left > 0, "{admission:?}: {told:?}");
        // With drafts there are fewer steps in which the reader may ask again.
        let again = told.repeated > 0 && (speculation || told.cleared > told.repeated);
        assert!(again, "{admission:?}: {told:?}");
    }
}
