//! Drafts and the models themselves: in fp32 every family gives the goldens' ids with drafts as without, alone and
//! beside others, over cached prefixes and preemptions; with packed products also the same bits of logprobs.

#![cfg(feature = "torch")]

mod rig;
#[path = "../../model/tests/tiny/mod.rs"]
mod tiny;

use pinion_engine::{Engine, Sizes, Turn};
use pinion_model::{DtypeChoice, Inline, KvSize, LinearKind, ModelOptions, load};
use pinion_protocol::scores::LogprobEntry;
use pinion_protocol::status::Gauge;
use pinion_protocol::{Sampling, StopIds};
use pinion_scheduler::{Limits, Policy};
use rig::Rig;
use tiny::{Golden, folder, golden, names};

/// How an engine is set up around a model.
#[derive(Debug, Clone, Copy)]
struct Way {
    linear: LinearKind,
    /// Requests that run at once.
    together: u32,
    blocks: u32,
    prefix_cache: bool,
}

const ALONE: Way = Way { linear: LinearKind::Packed, together: 1, blocks: 64, prefix_cache: true };

/// What a run gave.
#[derive(Debug, Default)]
struct Outcome {
    tokens: Vec<Vec<u32>>,
    logprobs: Vec<Vec<Vec<LogprobEntry>>>,
    drafts: u64,
    accepted: u64,
    preemptions: u64,
}

/// Serves the goldens' prompts, each with this sampling.
fn serve(name: &str, golden: &Golden, way: Way, speculation: bool, sampling: &Sampling) -> Outcome {
    let options = ModelOptions {
        dtype: DtypeChoice::F32,
        linear: way.linear,
        kv: KvSize::Blocks(way.blocks),
        max_model_len: Some(golden.served),
        ..ModelOptions::default()
    };
    let folder = folder(name, golden);
    let model = load(&folder.0, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
    let info = model.info().clone();
    let limits = Limits {
        max_num_seqs: way.together,
        max_num_batched_tokens: 64,
        max_model_len: info.max_context,
        block_size: info.block_size,
        block_count: info.block_count,
        stop_ids: StopIds::NONE,
        ..rig::small().limits
    };
    let policy = Policy { prefix_cache: way.prefix_cache, speculation, ..Policy::default() };
    let sizes = Sizes { limits, policy, ..rig::small() };
    let (mut engine, mut rig) = (Engine::new(Box::new(Inline::new(model)), sizes), Rig::new());
    let mut ids = Vec::new();
    for (n, case) in golden.cases.iter().enumerate() {
        let id = rig.open(n as u16 % 2, n as u16 / 2);
        let max_tokens = Some(case.greedy.len() as u32);
        rig.admit(id, &case.prompt, case.prompt.len(), Sampling { max_tokens, ..sampling.clone() });
        ids.push(id);
        for _ in 0..3 {
            engine.turn(&mut rig).expect("the model works");
            rig.read();
        }
    }
    while engine.turn(&mut rig).expect("the model works") != Turn::Idle {
        rig.read();
    }
    rig.read();
    let stories = ids.into_iter().map(|id| rig.ended(id).0);
    let (tokens, logprobs) = stories.map(|story| (story.tokens, story.logprobs)).unzip();
    let [drafts, accepted, preemptions] =
        [Gauge::Drafts, Gauge::AcceptedDrafts, Gauge::Preemptions].map(|gauge| rig.gauge(gauge));
    Outcome { tokens, logprobs, drafts, accepted, preemptions }
}

#[test]
fn greedy_ids_of_every_family_equal_the_goldens_with_drafts() {
    let (mut accepted, mut refused, mut preemptions) = (0, 0, 0);
    for name in names() {
        let golden = golden(&name);
        for way in [
            ALONE,
            Way { linear: LinearKind::Plain, ..ALONE },
            Way { linear: LinearKind::OneDnn, ..ALONE },
            Way { together: 4, ..ALONE },
            Way { together: 4, prefix_cache: false, ..ALONE },
            Way { together: 4, blocks: 20, ..ALONE },
            Way { together: 4, blocks: 20, linear: LinearKind::Plain, ..ALONE },
        ] {
            let greedy = Sampling { temperature: 0.0, ignore_eos: true, ..Sampling::default() };
            let found = serve(&name, &golden, way, true, &greedy);
            for (index, case) in golden.cases.iter().enumerate() {
                assert_eq!(found.tokens[index], case.greedy, "{name} case {index}, {way:?}");
            }
            accepted += found.accepted;
            refused += found.drafts - found.accepted;
            preemptions += found.preemptions;
        }
    }
    assert!(accepted > 5000 && refused > 500 && preemptions > 100, "{accepted} {refused} {preemptions}");
}

/// Texts of few different tokens repeat themselves in every family. All that is reported of them is compared to the
/// bit: packed products do not depend on the rows beside a row.
#[test]
fn logprobs_of_every_family_have_the_same_bits_with_drafts() {
    let mut refused = 0;
    for name in names() {
        let (golden, mut accepted) = (golden(&name), 0);
        for (way, temperature) in
            [(ALONE, 0.0), (ALONE, 0.5), (Way { together: 3, blocks: 20, ..ALONE }, 0.0)]
        {
            let logit_bias = [10, 20, 30].map(|token| (token, 100.0)).to_vec();
            let sampling = Sampling {
                temperature,
                seed: 11,
                logit_bias,
                logprobs: Some(3),
                repetition_penalty: 1.01,
                ignore_eos: true,
                ..Sampling::default()
            };
            let [with, without] =
                [true, false].map(|speculation| serve(&name, &golden, way, speculation, &sampling));
            assert_eq!(with.tokens, without.tokens, "{name} {way:?} {temperature}");
            assert_eq!(with.logprobs, without.logprobs, "{name} {way:?} {temperature}");
            accepted += with.accepted;
            refused += with.drafts - with.accepted;
        }
        assert!(accepted > 100, "{name}: {accepted} drafts were accepted");
    }
    assert!(refused > 500, "{refused} drafts were refused");
}
