//! Many seeds, each a run of the whole service.
//!
//! `PINION_SIM_SEED=7` replays one with its last choices, `PINION_SIM_RUNS=100000` makes that number of runs,
//! `PINION_SIM_FIRST=N` begins at another one.

use pinion_simulation::{Coverage, Failure, run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, available_parallelism};
use std::time::Instant;

/// Runs of an ordinary test.
const RUNS: u64 = 1000;
/// Failures after which a thread looks for no more.
const FAILURES_MAX: usize = 5;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a seed and a count are whole numbers"))
}

/// A panic of the product is a failure of its seed.
fn tried(seed: u64, traced: usize) -> Result<pinion_simulation::Report, Failure> {
    catch_unwind(AssertUnwindSafe(|| run(seed, traced))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let message = format!("panicked: {}", text.unwrap_or_default());
        Err(Failure { seed, message, trace: Vec::new() })
    })
}

#[test]
fn every_seed_gives_every_client_its_answer() {
    if let Some(seed) = number("PINION_SIM_SEED") {
        match tried(seed, number("PINION_SIM_TRACE").map_or(400, |count| count as usize)) {
            Ok(report) => {
                println!("seed {seed}: {} choices, all is well\n{}", report.choices, report.coverage)
            }
            Err(failure) => panic!("{failure}"),
        }
        return;
    }
    let (first, runs) = (number("PINION_SIM_FIRST").unwrap_or(0), number("PINION_SIM_RUNS").unwrap_or(RUNS));
    let (begin, seeds) = (Instant::now(), AtomicU64::new(first));
    // A run waits now and then for the thread of its model.
    let threads = available_parallelism().map_or(1, usize::from) + 1;
    let seen = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| try_seeds(&seeds, first + runs))).collect();
        workers.into_iter().map(|worker| worker.join().expect("panics are caught")).collect::<Vec<Seen>>()
    });
    let (mut coverage, mut choices, mut failures) = (Coverage::default(), 0, 0);
    for part in seen {
        coverage.merge(&part.coverage);
        choices += part.choices;
        failures += part.failures;
    }
    println!("{runs} runs from seed {first}, {choices} choices, {:.1?}\n{coverage}", begin.elapsed());
    let drafts = coverage.count("engine: accepted drafts");
    assert!(failures > 0 || runs < RUNS || drafts > 100, "{drafts} drafts were accepted");
    assert_eq!(failures, 0, "some seeds fail; PINION_SIM_SEED=N replays one");
}

/// What one thread's seeds came to.
#[derive(Default)]
struct Seen {
    coverage: Coverage,
    choices: u64,
    failures: usize,
}

/// Takes seeds below `end` until there are none, or too many have failed. A run has one thread.
fn try_seeds(seeds: &AtomicU64, end: u64) -> Seen {
    let mut seen = Seen::default();
    while seen.failures < FAILURES_MAX {
        let seed = seeds.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            break;
        }
        match tried(seed, 0) {
            Ok(report) => {
                seen.choices += report.choices;
                seen.coverage.merge(&report.coverage);
            }
            Err(failure) => {
                eprintln!("{failure}");
                seen.failures += 1;
            }
        }
    }
    seen
}

#[test]
fn a_seed_replays() {
    for seed in 0..20 {
        let digests = [(); 2].map(|()| tried(seed, 0).map(|report| report.digest).map_err(|f| f.message));
        assert_eq!(digests[0], digests[1], "seed {seed}");
    }
}
