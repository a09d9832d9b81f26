//! Drafts and the models themselves: in fp32 every family gives the goldens' ids with drafts as without, alone and
//! beside others, over cached prefixes and preemptions; with packed products also the same bits of logprobs, in fp32
//! and in bf16, and with quantised ones.

#![cfg(feature = "torch")]

use crate::rig;
use crate::rig::Rig;
use crate::tiny;
use crate::tiny::{Golden, folder, golden, names};
use pinion_engine::{Engine, Sizes, Turn};
use pinion_model::{DtypeChoice, Inline, KvSize, LinearKind, ModelOptions, Quantization, load};
use pinion_protocol::scores::LogprobEntry;
use pinion_protocol::status::Gauge;
use pinion_protocol::{Sampling, StopIds};
use pinion_random::Random;
use pinion_scheduler::{Limits, Policy};
use std::path::Path;

/// How an engine is set up around a model.
#[derive(Debug, Clone, Copy)]
struct Way {
    dtype: DtypeChoice,
    linear: LinearKind,
    quantization: Quantization,
    int8_kv: bool,
    /// Requests that run at once.
    together: u32,
    blocks: u32,
    prefix_cache: bool,
}

const ALONE: Way = Way {
    dtype: DtypeChoice::F32,
    linear: LinearKind::Packed,
    quantization: Quantization::None,
    int8_kv: false,
    together: 1,
    blocks: 64,
    prefix_cache: true,
};

/// A model and what is asked of it.
#[derive(Debug, Clone)]
struct Asked<'a> {
    name: &'a str,
    folder: &'a Path,
    served: u32,
    /// Prompts, and the tokens that each generates.
    prompts: Vec<(Vec<u32>, u32)>,
}

impl<'a> Asked<'a> {
    fn of_golden(name: &'a str, golden: &Golden, folder: &'a Path) -> Asked<'a> {
        let prompt = |case: &tiny::Case| (case.prompt.clone(), case.greedy.len() as u32);
        Asked { name, folder, served: golden.served, prompts: golden.cases.iter().map(prompt).collect() }
    }
}

/// What a run gave.
#[derive(Debug, Default)]
struct Outcome {
    tokens: Vec<Vec<u32>>,
    logprobs: Vec<Vec<Vec<LogprobEntry>>>,
    /// Type of the packed weights.
    packed: Option<&'static str>,
    drafts: u64,
    accepted: u64,
    preemptions: u64,
}

/// Serves the prompts, each with this sampling.
fn serve(asked: &Asked<'_>, way: Way, speculation: bool, sampling: &Sampling) -> Outcome {
    let options = ModelOptions {
        dtype: way.dtype,
        linear: way.linear,
        quantization: way.quantization,
        int8_kv: way.int8_kv,
        kv: KvSize::Blocks(way.blocks),
        max_model_len: Some(asked.served),
        ..ModelOptions::default()
    };
    let model = load(asked.folder, &options).unwrap_or_else(|error| panic!("{}: {error}", asked.name));
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
    for (n, (prompt, max_tokens)) in asked.prompts.iter().enumerate() {
        let id = rig.open(n as u16 % 2, n as u16 / 2);
        let max_tokens = Some(*max_tokens);
        rig.admit(id, prompt, prompt.len(), Sampling { max_tokens, ..sampling.clone() });
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
    Outcome { tokens, logprobs, packed: info.packed, drafts, accepted, preemptions }
}

#[test]
fn greedy_ids_of_every_family_equal_the_goldens_with_drafts() {
    let (mut accepted, mut refused, mut preemptions) = (0, 0, 0);
    for name in names() {
        let golden = golden(&name);
        let folder = folder(&name, &golden);
        let asked = Asked::of_golden(&name, &golden, &folder.0);
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
            let found = serve(&asked, way, true, &greedy);
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
/// bit: packed and quantised products do not depend on the rows beside a row. Gives how many drafts were refused.
fn check_bits(asked: &Asked<'_>, ways: &[(Way, f32)], packed: Option<&str>) -> u64 {
    let (mut accepted, mut refused) = (0, 0);
    for &(way, temperature) in ways {
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
        let [with, without] = [true, false].map(|speculation| serve(asked, way, speculation, &sampling));
        let name = asked.name;
        assert!(packed.is_none() || with.packed == packed, "{name} {way:?}: weights of {:?}", with.packed);
        assert_eq!(with.tokens, without.tokens, "{name} {way:?} {temperature}");
        assert_eq!(with.logprobs, without.logprobs, "{name} {way:?} {temperature}");
        accepted += with.accepted;
        refused += with.drafts - with.accepted;
    }
    assert!(accepted > 100, "{}: {accepted} drafts were accepted", asked.name);
    refused
}

/// GPT-2, which no golden has: layer norms, GELU, positions that are learnt.
fn gpt2() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/demo-model"))
}

fn check_gpt2(ways: &[(Way, f32)], packed: Option<&str>) -> u64 {
    let mut random = Random::new(20_261_123);
    let mut prompt = |len: usize| ((0..len).map(|_| random.below(2048) as u32).collect(), 64);
    let prompts = [33, 100, 1, 7, 2, 16].map(&mut prompt).to_vec();
    check_bits(&Asked { name: "gpt2", folder: gpt2(), served: 256, prompts }, ways, packed)
}

/// The same for every golden's model and GPT-2.
fn check_all_bits(ways: &[(Way, f32)], packed: Option<&str>) {
    let mut refused = check_gpt2(ways, packed);
    for name in names() {
        let golden = golden(&name);
        let folder = folder(&name, &golden);
        refused += check_bits(&Asked::of_golden(&name, &golden, &folder.0), ways, packed);
    }
    assert!(refused > 500, "{refused} drafts were refused");
}

#[test]
fn logprobs_of_every_family_have_the_same_bits_with_drafts() {
    let ways = [(ALONE, 0.0), (ALONE, 0.5), (Way { together: 3, blocks: 20, ..ALONE }, 0.0)];
    check_all_bits(&ways, None);
}

/// Activations in bf16 as well: products sum pairs. A CPU without instructions for bf16 has no such models.
#[test]
fn in_bf16_logprobs_of_every_family_have_the_same_bits_with_drafts() {
    let options = ModelOptions { kv: KvSize::Blocks(1), ..ModelOptions::default() };
    if load(gpt2(), &options).expect("the demo model").info().dtype != "bf16" {
        return;
    }
    let alone = Way { dtype: DtypeChoice::Bf16, ..ALONE };
    check_all_bits(&[(alone, 0.5), (Way { together: 3, blocks: 20, ..alone }, 0.0)], Some("bf16"));
}

#[test]
fn quantised_products_and_kv_give_the_same_bits_with_drafts() {
    let forms = [(Quantization::Int8, false), (Quantization::Int4, false), (Quantization::None, true)];
    let ways =
        forms.map(|(quantization, int8_kv)| (Way { quantization, int8_kv, together: 2, ..ALONE }, 0.0));
    check_gpt2(&ways, None);
    for name in ["gemma2", "qwen3"] {
        let golden = golden(name);
        let folder = folder(name, &golden);
        check_bits(&Asked::of_golden(name, &golden, &folder.0), &ways, None);
    }
}
