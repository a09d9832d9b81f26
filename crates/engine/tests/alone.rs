//! The engine without a service: what is counted of a work is exact.

use crate::rig;
use crate::rig::hashed::config;
use crate::rig::{Random, small};
use pinion_config::{AloneOutcome, AlonePhase, AloneReport, AloneRequest, AloneWork};
use pinion_engine::{Sizes, run_alone};
use pinion_scheduler::Limits;

/// No token of the fake model ends a text by itself then.
const LONG: u32 = 40;

fn work(streams: Option<u32>, requests: Vec<AloneRequest>) -> AloneWork {
    AloneWork {
        config: config(),
        temperature: 0.0,
        top_p: 1.0,
        top_k: None,
        ignore_eos: true,
        warm_up: AlonePhase::default(),
        measured: AlonePhase { streams, requests },
    }
}

fn requests(lengths: &[(u32, u32)]) -> Vec<AloneRequest> {
    let mut random = Random::new(3);
    let request = |&(input, output_tokens): &(u32, u32)| AloneRequest {
        at_ns: 0,
        ids: random.prompt(input),
        output_tokens,
    };
    lengths.iter().map(request).collect()
}

fn sizes() -> Sizes {
    let limits = Limits { max_requests: 256, block_count: 400, ..small().limits };
    Sizes { limits, ..small() }
}

fn run(work: &AloneWork, overlap: bool) -> Result<AloneReport, String> {
    run_alone(work, &mut rig::engine(sizes(), overlap))
}

/// Each has its tokens, one after the other, between its taking and its end.
fn check_whole(outcomes: &[AloneOutcome], requests: &[AloneRequest]) {
    assert_eq!(outcomes.len(), requests.len());
    for (outcome, request) in outcomes.iter().zip(requests) {
        assert_eq!(outcome.error, None);
        assert_eq!(outcome.generated_tokens, request.output_tokens);
        assert_eq!(outcome.token_ns.len(), request.output_tokens as usize);
        assert!(outcome.token_ns.is_sorted(), "{outcome:?}");
        assert!(outcome.taken_ns >= request.at_ns || request.at_ns == 0, "{outcome:?}");
        let (first, last) = (outcome.token_ns[0], outcome.token_ns[outcome.token_ns.len() - 1]);
        assert!(outcome.taken_ns <= first && last <= outcome.end_ns, "{outcome:?}");
    }
}

/// The most requests that were in the engine at a time. An end and what follows it may have the same nanosecond.
fn together_max(outcomes: &[AloneOutcome]) -> usize {
    let beside = |at_ns: u64| outcomes.iter().filter(|o| o.taken_ns <= at_ns && at_ns < o.end_ns).count();
    outcomes.iter().map(|outcome| beside(outcome.taken_ns)).max().unwrap_or(0)
}

#[test]
fn one_request_at_a_time_takes_a_step_for_each_token() {
    let lengths = [(5, 4), (9, 1), (3, LONG), (12, 7)];
    let work = work(Some(1), requests(&lengths));
    let report = run(&work, false).expect("the fake model works");
    check_whole(&report.requests, &work.measured.requests);
    let steps: u32 = lengths.iter().map(|(_, output)| output).sum();
    assert_eq!((report.steps, report.rows), (u64::from(steps), u64::from(steps)));
    let computed: u32 = lengths.iter().map(|(input, output)| input + output - 1).sum();
    assert_eq!((report.computed_tokens, report.preemptions), (u64::from(computed), 0));
    assert_eq!(together_max(&report.requests), 1);
}

#[test]
fn all_at_once_share_steps_and_streams_bound_them() {
    let lengths: Vec<(u32, u32)> = (0..24).map(|n| (1 + n % 9, 3 + n % 11)).collect();
    for overlap in [false, true] {
        let all = work(None, requests(&lengths));
        let report = run(&all, overlap).expect("the fake model works");
        check_whole(&report.requests, &all.measured.requests);
        let tokens: u64 = lengths.iter().map(|(_, output)| u64::from(*output)).sum();
        assert!(
            report.steps < tokens / 2 && report.rows >= tokens,
            "{} steps, {tokens} tokens",
            report.steps
        );
        let streamed = work(Some(3), all.measured.requests.clone());
        let report = run(&streamed, overlap).expect("the fake model works");
        check_whole(&report.requests, &streamed.measured.requests);
        assert_eq!(together_max(&report.requests), 3);
    }
}

#[test]
fn a_request_is_taken_at_its_time_and_a_warm_up_is_not_counted() {
    let mut work = work(None, requests(&[(4, 5), (4, 5), (4, 5)]));
    for (index, request) in work.measured.requests.iter_mut().enumerate() {
        request.at_ns = index as u64 * 3_000_000;
    }
    work.warm_up = AlonePhase { streams: None, requests: requests(&[(30, 9), (2, 2)]) };
    let report = run(&work, false).expect("the fake model works");
    check_whole(&report.requests, &work.measured.requests);
    // Each has left before the next one comes, if the machine does not stand still for milliseconds.
    assert!((5..=15).contains(&report.steps), "{}", report.steps);
}

#[test]
fn what_cannot_run_is_said() {
    let too_long = sizes().limits.max_model_len + 1;
    let mixed = work(None, requests(&[(4, 5), (too_long, 5)]));
    let report = run(&mixed, false).expect("the other one is served");
    check_whole(&report.requests[..1], &mixed.measured.requests[..1]);
    let error = report.requests[1].error.as_deref().expect("it is refused");
    assert!(!error.is_empty() && report.requests[1].token_ns.is_empty(), "{error}");

    let cold = AloneWork { warm_up: mixed.measured.clone(), ..work(None, requests(&[(4, 5)])) };
    assert!(run(&cold, false).expect_err("the warm-up fails").starts_with("the warm-up failed: "));

    let mut many = work(None, requests(&[(1, 1); 5]));
    many.config.max_inflight = 4;
    assert_eq!(run(&many, false), Err("5 requests are more than the 4 that the engine takes".to_owned()));
}
