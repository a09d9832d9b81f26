//! The time budget of steps on machines whose steps take known times: what joins decode rows, that every prompt ends,
//! and that nothing else changes.

use pinion_protocol::{Claim, RequestId, Sampling, StopIds};
use pinion_scheduler::{Limits, Policy, Request, RowResult, Scheduler, StepPlan, StepTime, StepWork};
use proptest::prelude::*;

/// Prompt tokens that join decode rows whatever the budget.
const FLOOR: u32 = 32;
const LENGTH_MAX: u32 = 4096;

/// What a machine takes, in ns: for a step, a row, a prompt token, a token of decode context, 1024 pairs.
#[derive(Debug, Clone, Copy)]
struct Machine {
    step: u64,
    row: u64,
    prompt: u64,
    context: u64,
    pairs: u64,
    /// Of the noise, which takes up to `noise` percent more or less.
    seed: u64,
    noise: u64,
}

/// Like a small model on two cores: 12 ms for a row, 0.12 ms for a prompt token.
const SMALL: Machine = Machine {
    step: 12_000_000,
    row: 100_000,
    prompt: 120_000,
    context: 300,
    pairs: 20_000,
    seed: 0,
    noise: 0,
};

/// What a plan computes. A plan without a budget does not say it.
fn work(plan: &StepPlan) -> StepWork {
    plan.rows.iter().fold(StepWork::default(), |work, row| match row.len {
        1 if row.draw.is_some() => work.and_decode(row.start + 1),
        len => work.and_chunk(row.start, len),
    })
}

impl Machine {
    fn exact_ns(&self, plan: &StepPlan) -> u64 {
        let work = work(plan);
        self.step
            + self.row * u64::from(work.rows)
            + self.prompt * u64::from(work.prompt_tokens)
            + self.context * work.decode_context
            + self.pairs * work.prompt_pairs / 1024
    }

    fn took_ns(&self, plan: &StepPlan) -> u64 {
        let exact = self.exact_ns(plan);
        let percent = 100 + pinion_random::mix(self.seed ^ plan.step) % (2 * self.noise + 1) - self.noise;
        exact / 100 * percent
    }
}

fn limits(max_num_batched_tokens: u32) -> Limits {
    Limits {
        max_num_seqs: 16,
        max_num_batched_tokens,
        max_requests: 64,
        max_model_len: LENGTH_MAX,
        block_size: 16,
        block_count: 512,
        stop_ids: StopIds::NONE,
    }
}

struct Service {
    scheduler: Scheduler,
    machine: Machine,
    /// Plans are made before the step before them is committed.
    ahead: bool,
    in_flight: Vec<StepPlan>,
    /// After this number of its tokens a text repeats itself.
    period: u32,
    admitted: u16,
    plans: Vec<StepPlan>,
    tokens: Vec<Vec<u32>>,
}

impl Service {
    fn new(limits: Limits, policy: Policy, machine: Machine) -> Service {
        let scheduler = Scheduler::with_policy(limits, policy);
        Service {
            scheduler,
            machine,
            ahead: false,
            in_flight: Vec::new(),
            period: u32::MAX,
            admitted: 0,
            plans: Vec::new(),
            tokens: Vec::new(),
        }
    }

    /// Prompts differ in every token, so that none comes from the prefix cache.
    fn admit(&mut self, prompt_tokens: u32, max_tokens: u32) -> RequestId {
        let id = RequestId { frontend: 0, slot: self.admitted, generation: 1 };
        let own = u32::from(self.admitted) * LENGTH_MAX;
        self.admitted += 1;
        self.tokens.push(Vec::new());
        let request = Request {
            id,
            claim: Claim::default(),
            sampling: Sampling { max_tokens: Some(max_tokens), ignore_eos: true, ..Sampling::default() },
            ids: (own..own + prompt_tokens).collect(),
            prompt_tokens,
        };
        self.scheduler.admit(request, 0).expect("the request fits");
        id
    }

    /// One step: plans and commits it. With `ahead` it commits the one before. False if there was nothing to do.
    fn step(&mut self) -> bool {
        let plan = self.scheduler.plan(0).cloned();
        let launched = plan.is_some();
        if let Some(plan) = plan {
            self.plans.push(plan.clone());
            self.in_flight.push(plan);
        }
        let depth = if self.ahead { 2 } else { 1 };
        if self.in_flight.is_empty() || launched && self.in_flight.len() < depth {
            return launched;
        }
        let plan = self.in_flight.remove(0);
        self.scheduler.measured(self.machine.took_ns(&plan));
        let results: Vec<RowResult> = plan
            .rows
            .iter()
            .map(|row| match row.draw {
                Some(index) => RowResult::Token(u32::from(row.id.slot) * 7 + index % self.period),
                None => RowResult::Computed,
            })
            .collect();
        for event in self.scheduler.commit(&results) {
            self.tokens[usize::from(event.id.slot)].push(event.token);
        }
        self.scheduler.drain_finished();
        true
    }

    fn finish(&mut self) {
        while self.step() {
            assert!(self.plans.len() < 200_000, "a prompt does not end");
        }
        assert!(self.scheduler.is_empty());
    }
}

fn policy(step_time: StepTime) -> Policy {
    Policy { step_time, ..Policy::default() }
}

/// What must hold of every plan, whatever was learnt.
fn check(plan: &StepPlan) {
    let Some(budget_ns) = plan.budget_ns else { return };
    let prompt_tokens = plan.work.prompt_tokens;
    if prompt_tokens > FLOOR {
        let predicted_ns = plan.predicted_ns.expect("the cost of prompts is known");
        assert!(predicted_ns <= budget_ns, "{predicted_ns} ns predicted of {budget_ns}: {plan:?}");
    }
}

#[test]
fn a_long_prompt_does_not_widen_a_streams_gap_beyond_the_budget() {
    let target_ns = 30_000_000;
    let longest = |step_time, ahead| {
        let mut service = Service { ahead, ..Service::new(limits(512), policy(step_time), SMALL) };
        // Prompts before it, of different lengths, teach what they cost.
        for prompt in [40, 300, 90, 500, 200, 33] {
            service.admit(prompt, 4);
            service.finish();
        }
        let stream = service.admit(20, 400);
        (0..50).for_each(|_| assert!(service.step()));
        let before = service.plans.len();
        service.admit(3000, 1);
        service.finish();
        service.plans.iter().for_each(check);
        let mixed: Vec<&StepPlan> =
            service.plans[before..].iter().filter(|p| work(p).prompt_tokens > 0).collect();
        let streams = |plan: &&&StepPlan| plan.rows.iter().any(|row| row.id == stream && row.draw.is_some());
        assert!(mixed.iter().all(|plan| streams(&plan)), "the stream has a token in every step");
        let prompt_tokens: u32 = mixed.iter().map(|plan| work(plan).prompt_tokens).sum();
        assert_eq!(prompt_tokens, 3000);
        (mixed.iter().map(|plan| SMALL.exact_ns(plan)).max().expect("steps"), mixed.len())
    };
    for ahead in [false, true] {
        let (free_ns, free_steps) = longest(StepTime::Unbounded, ahead);
        assert!(
            free_ns > 2 * target_ns && free_steps == 6,
            "{free_ns} ns, {free_steps} steps without a budget"
        );
        let (bound_ns, _) = longest(StepTime::Target { ns: target_ns }, ahead);
        assert!(bound_ns <= target_ns / 100 * 102, "{bound_ns} ns");
        assert!(bound_ns >= target_ns / 100 * 90, "{bound_ns} ns: a prompt takes what is left");
        // A stream alone takes 12.1 ms and what its context adds.
        let (auto_ns, _) = longest(StepTime::Auto, ahead);
        assert!((23_000_000..26_000_000).contains(&auto_ns), "{auto_ns} ns");
    }
}

#[test]
fn a_prompt_without_decode_rows_takes_all() {
    let mut service = Service::new(limits(512), policy(StepTime::Target { ns: 1 }), SMALL);
    service.admit(2000, 1);
    service.finish();
    let lens: Vec<u32> = service.plans.iter().map(|plan| plan.token_count).collect();
    assert_eq!(lens, [512, 512, 512, 464]);
    assert!(service.plans.iter().all(|plan| plan.budget_ns.is_none()));
}

/// With a budget that is less than the decode rows take, and before anything is known.
#[test]
fn a_prompt_advances_by_the_floor_where_no_time_is_left() {
    let mut service = Service::new(limits(512), policy(StepTime::Target { ns: 1 }), SMALL);
    service.admit(20, 300);
    (0..20).for_each(|_| assert!(service.step()));
    let before = service.plans.len();
    service.admit(1000, 1);
    service.admit(100, 1);
    (0..32).for_each(|_| assert!(service.step()));
    let chunks: Vec<u32> = service.plans[before..].iter().map(|plan| plan.work.prompt_tokens).collect();
    assert_eq!(chunks, [FLOOR; 32]);
    assert!(service.scheduler.step_times().unwrap().deferred_tokens > 1000);
    service.finish();
}

/// Before much is known, a step has at most twice the prompt tokens of the largest one so far.
#[test]
fn a_budget_is_tried_out_in_steps() {
    let mut service = Service::new(limits(2048), policy(StepTime::Target { ns: 60_000_000_000 }), SMALL);
    service.admit(1, 300);
    (0..20).for_each(|_| assert!(service.step()));
    let before = service.plans.len();
    service.admit(3000, 1);
    (0..12).for_each(|_| assert!(service.step()));
    let chunks: Vec<u32> = service.plans[before..].iter().map(|plan| plan.work.prompt_tokens).collect();
    assert_eq!(chunks[..9], [32, 32, 32, 64, 128, 256, 512, 1024, 920], "{chunks:?}");
}

#[test]
fn other_limits_of_prompts_stay_the_upper_limit() {
    let roomy = StepTime::Target { ns: 60_000_000_000 };
    let chunked = Policy { prefill_chunk_tokens_max: Some(48), prefill_rows_max: Some(2), ..policy(roomy) };
    let mut service = Service::new(limits(512), chunked, SMALL);
    service.admit(20, 200);
    (0..3).for_each(|_| assert!(service.step()));
    (0..4).for_each(|_| _ = service.admit(1000, 1));
    service.finish();
    let most = service.plans.iter().map(|plan| plan.work.prompt_tokens).max();
    assert_eq!(most, Some(96), "two rows of 48");
    assert!(service.plans.iter().flat_map(|plan| &plan.rows).all(|row| row.len <= 48));
}

/// The first stream after a start has drafts within the budget, though what prompt tokens cost is not known yet.
#[test]
fn drafts_need_to_know_what_decode_rows_cost_and_no_more() {
    let roomy_ns = 60_000_000;
    for (step_time, most) in [
        (StepTime::Unbounded, 7),
        (StepTime::Target { ns: roomy_ns }, 7),
        (StepTime::Auto, 7),
        (StepTime::Target { ns: 1 }, 0),
    ] {
        let policy = Policy { speculation: true, ..policy(step_time) };
        let mut service = Service { period: 5, ..Service::new(limits(512), policy, SMALL) };
        service.admit(20, 200);
        service.finish();
        let drafts = |plan: &StepPlan| plan.rows.iter().filter(|row| row.draft > 0).count();
        assert_eq!(service.plans.iter().map(drafts).max(), Some(most), "{step_time:?}");
        // Beside prompt tokens whose cost is not known nothing is added to the floor.
        service.admit(20, 200);
        (0..20).for_each(|_| assert!(service.step()));
        let before = service.plans.len();
        service.admit(100, 1);
        (0..3).for_each(|_| assert!(service.step()));
        let mixed = &service.plans[before..][..2];
        let bounded = step_time != StepTime::Unbounded;
        assert!(mixed.iter().all(|plan| (drafts(plan) == 0) == bounded), "{step_time:?}: {mixed:?}");
    }
}

#[test]
fn without_a_budget_nothing_is_learnt() {
    let mut service = Service::new(limits(512), Policy::default(), SMALL);
    service.admit(20, 50);
    service.admit(2000, 1);
    service.finish();
    assert_eq!(service.scheduler.step_times(), None);
    assert!(service.plans.iter().all(|plan| plan.predicted_ns.is_none() && plan.budget_ns.is_none()));
}

fn machine() -> impl Strategy<Value = Machine> {
    let cost = |max: u64| prop_oneof![1 => Just(0), 4 => 0..max];
    (1..20_000_000u64, cost(2_000_000), cost(500_000), cost(5_000), cost(100_000), any::<u64>(), 0..40u64)
        .prop_map(|(step, row, prompt, context, pairs, seed, noise)| Machine {
            step,
            row,
            prompt,
            context,
            pairs,
            seed,
            noise,
        })
}

fn time() -> impl Strategy<Value = StepTime> {
    prop_oneof![Just(StepTime::Auto), (1..100_000_000u64).prop_map(|ns| StepTime::Target { ns })]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// On any machine, with noise: a chunk's predicted time is within the budget or the chunk is the floor; every
    /// prompt ends within the steps that the floor allows; and the tokens are those of a scheduler without a budget.
    #[test]
    fn chunks_fit_the_budget_or_are_the_floor_and_every_prompt_ends(
        machine in machine(),
        time in time(),
        step_tokens in 16..600u32,
        arrivals in proptest::collection::vec((0..20u32, 1..400u32, 1..30u32), 1..14),
        ahead in any::<bool>(),
    ) {
        let run = |step_time| {
            let mut service = Service { ahead, ..Service::new(limits(step_tokens), policy(step_time), machine) };
            for &(wait, prompt, output) in &arrivals {
                (0..wait).for_each(|_| _ = service.step());
                service.admit(prompt, output);
            }
            service.finish();
            service
        };
        let (with, without) = (run(time), run(StepTime::Unbounded));
        with.plans.iter().for_each(check);
        // A step has the floor of prompt tokens, or it ends a prompt, or it only decodes.
        let least = FLOOR.min(step_tokens / 16).max(1);
        let steps: u32 = arrivals.iter().map(|&(wait, prompt, output)| wait + prompt.div_ceil(least) + output + 2).sum();
        let twice = if ahead { 2 } else { 1 };
        prop_assert!(with.plans.len() as u32 <= steps * twice, "{} steps of {steps}", with.plans.len());
        prop_assert_eq!(&with.tokens, &without.tokens);
        for (tokens, &(_, _, output)) in with.tokens.iter().zip(&arrivals) {
            prop_assert_eq!(tokens.len(), output as usize);
        }
        // The same again, to the bit.
        let again = run(time);
        prop_assert_eq!(again.scheduler.step_times(), with.scheduler.step_times());
        let rows = |service: &Service| service.plans.iter().map(|plan| plan.rows.clone()).collect::<Vec<_>>();
        prop_assert_eq!(rows(&again), rows(&with));
    }
}
