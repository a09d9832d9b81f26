//! Many seeds, each a run of the whole service.
//!
//! `PINION_SIM_SEED=7` replays one with its last choices, `PINION_SIM_RUNS=100000` makes that number of runs,
//! `PINION_SIM_FIRST=N` begins at another one.

use pinion_simulation::{Coverage, Failure, run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Runs of an ordinary test.
const RUNS: u64 = 1000;
/// Failures after which no more are looked for.
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
        match tried(seed, 400) {
            Ok(report) => {
                println!("seed {seed}: {} choices, all is well\n{}", report.choices, report.coverage)
            }
            Err(failure) => panic!("{failure}"),
        }
        return;
    }
    let (first, runs) = (number("PINION_SIM_FIRST").unwrap_or(0), number("PINION_SIM_RUNS").unwrap_or(RUNS));
    let (begin, mut coverage, mut choices, mut failures) =
        (Instant::now(), Coverage::default(), 0, Vec::new());
    for seed in first..first + runs {
        match tried(seed, 0) {
            Ok(report) => {
                choices += report.choices;
                coverage.merge(&report.coverage);
            }
            Err(failure) => {
                eprintln!("{failure}");
                failures.push(failure);
                if failures.len() == FAILURES_MAX {
                    break;
                }
            }
        }
    }
    println!("{runs} runs from seed {first}, {choices} choices, {:.1?}\n{coverage}", begin.elapsed());
    assert!(failures.is_empty(), "{} seeds fail; PINION_SIM_SEED=N replays one", failures.len());
}

#[test]
fn a_seed_replays() {
    for seed in 0..20 {
        let digests = [(); 2].map(|()| tried(seed, 0).map(|report| report.digest).map_err(|f| f.message));
        assert_eq!(digests[0], digests[1], "seed {seed}");
    }
}
