//! The demo model on libtorch under deaths, with every kind of request: each answer is the one that an undisturbed run
//! gives, only what a dead frontend held is cut, and afterwards nothing is held that was not held before.
//!
//! `kinds` are the requests, `reply` reads an answer, `reference` knows what it must be, `faults` strike, `baseline`
//! weighs the service before and after. The rounds follow from a seed, which each test prints: `PINION_TEST_SEED`
//! repeats a run.

mod baseline;
mod faults;
mod kinds;
mod reference;
mod reply;
mod rounds;

use faults::FAULT_KINDS;
use pinion_testkit::demo_model;
use reference::Reference;
use rounds::{deaths_in_a_drain, deaths_in_a_start, under_load};
use std::path::PathBuf;

/// Of the short run, unless `PINION_TEST_SEED` is set.
const SEED: u64 = 20_261_122;

const ONE_OF_EACH: &[&str] = &[];
const TWO_OF_EACH: &[&str] = &["--frontends", "2", "--tokenizers", "2", "--detokenizers", "2"];
const NO_SPARE: &[&str] = &["--frontends", "2", "--no-spare-engine"];
/// 128 KV blocks for 512 positions of context, so that requests are preempted.
const SMALL_KV: &[&str] =
    &["--overlap", "--kv-cache-tokens", "2048", "--block-size", "16", "--stream-interval", "8"];

fn seed() -> u64 {
    let given = std::env::var("PINION_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or(SEED);
    println!("PINION_TEST_SEED={seed}");
    seed
}

/// The demo model; none in a checkout without its weights.
fn model() -> Option<PathBuf> {
    let folder = demo_model();
    if folder.is_none() {
        println!("skipped: deploy/demo-model has no weights");
    }
    folder
}

#[test]
fn answers_stay_the_same_under_one_half_of_the_faults() {
    let Some(model) = model() else { return };
    under_load(&model, Reference::get(&model), ONE_OF_EACH, seed(), 0..FAULT_KINDS / 2);
}

#[test]
fn answers_stay_the_same_under_the_other_half_with_two_of_each_role() {
    let Some(model) = model() else { return };
    under_load(&model, Reference::get(&model), TWO_OF_EACH, seed(), FAULT_KINDS / 2..FAULT_KINDS);
}

#[test]
fn a_death_in_a_start_ends_it_or_is_overcome() {
    let Some(model) = model() else { return };
    deaths_in_a_start(&model, Reference::get(&model), seed() + 2, 3);
}

#[test]
fn a_death_in_a_drain_leaves_each_request_one_end() {
    let Some(model) = model() else { return };
    deaths_in_a_drain(&model, Reference::get(&model), seed() + 3, 4);
}

/// The long run under load.
#[test]
#[ignore = "a quarter of an hour; `deploy/test.sh nemesis` runs it"]
fn three_hundred_rounds() {
    let Some(model) = model() else { return };
    let (seed, reference) = (seed(), Reference::get(&model));
    for (index, flags) in [ONE_OF_EACH, TWO_OF_EACH, NO_SPARE, SMALL_KV].into_iter().enumerate() {
        under_load(&model, reference, flags, seed + index as u64, 0..75);
    }
}

/// The long run of starts and drains.
#[test]
#[ignore = "five minutes; `deploy/test.sh nemesis` runs it"]
fn forty_starts_and_forty_drains() {
    let Some(model) = model() else { return };
    let (seed, reference) = (seed(), Reference::get(&model));
    deaths_in_a_start(&model, reference, seed + 4, 40);
    deaths_in_a_drain(&model, reference, seed + 5, 40);
}
