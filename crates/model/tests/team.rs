//! A model on threads of our own. A process has one team, so this module has one test, and is run by itself.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::driver::{Policy, Request, run};
use pinion_model::{
    DtypeChoice, KvSize, LinearKind, ModelOptions, Quantization, SampleParams, TeamPlan, load,
};
use std::path::PathBuf;
use std::time::Duration;

/// Ids of a few prompts of the tiny GPT-2 with 40 tokens each.
fn ids(options: &ModelOptions) -> Vec<Vec<u32>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-b");
    let mut model = load(&folder, options).unwrap();
    let prompt = |length: u32| (0..length).map(|at| (at * 37 + length) % model.info().vocab_size).collect();
    let requests: Vec<Request> = [3, 17, 40, 64]
        .map(|length| Request {
            prompt: prompt(length),
            output_len: 40,
            arrival: length as usize / 8,
            params: SampleParams::GREEDY,
        })
        .into();
    run(&mut *model, &requests, Policy { chunk: usize::MAX, preempt_at: &[] })
}

/// Names of this process's threads that helpers of a team have.
fn helpers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|name| name.starts_with("kernels-")).count()
}

#[test]
fn a_team_changes_no_token_and_comes_with_our_products_alone() {
    let plain = |linear, quantization| ModelOptions {
        dtype: DtypeChoice::F32,
        kv: KvSize::Blocks(256),
        linear,
        quantization,
        ..ModelOptions::default()
    };
    let with_team = |options: &ModelOptions| ModelOptions {
        threads: 3,
        team: Some(TeamPlan { spin: Duration::from_micros(100), cpus: Vec::new() }),
        ..options.clone()
    };
    let dense = plain(LinearKind::OneDnn, Quantization::None);
    let want = ids(&dense);
    assert_eq!(ids(&with_team(&dense)), want);
    assert_eq!(helpers(), 0, "two pools would spin on the same cores");
    for quantization in [Quantization::None, Quantization::Int8] {
        let options = plain(LinearKind::Packed, quantization);
        let alone = ids(&options);
        assert_eq!(ids(&with_team(&options)), alone, "{quantization:?}");
        assert_eq!(helpers(), 2);
    }
}
