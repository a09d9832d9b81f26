//! Layers that keep their window only, and the models themselves: every family with windows gives the goldens' ids with
//! window blocks as without, and the same bits of logprobs: alone, sixteen together, in chunks, over cached prefixes,
//! with preemption, drafts and steps launched ahead, in pools so small that window blocks are evicted.

#![cfg(feature = "torch")]

use crate::rig;
use crate::rig::Rig;
use crate::tiny::{Golden, folder, golden};
use pinion_engine::{Engine, Sizes, Turn};
use pinion_model::{AttentionKernel, DtypeChoice, KvSize, LinearKind, ModelInfo, ModelOptions, load};
use pinion_protocol::scores::LogprobEntry;
use pinion_protocol::status::Gauge;
use pinion_protocol::{Sampling, StopIds, WindowKv, window_blocks_of_sequence};
use pinion_scheduler::{Limits, Policy};

const BLOCK_SIZE: u32 = 4;
const FAMILIES: [&str; 6] =
    ["gemma2", "gemma3", "mistral-window", "phi3-window", "qwen2-window", "smollm3-window"];

/// How an engine is set up around a model.
#[derive(Debug, Clone, Copy)]
struct Way {
    /// Requests that run at once.
    together: u32,
    blocks: u32,
    /// Window blocks beyond those that this number of sequences reserves.
    more: u32,
    chunk: Option<u32>,
    prefix_cache: bool,
    speculation: bool,
    overlap: bool,
    attention: AttentionKernel,
    dtype: DtypeChoice,
}

const ALONE: Way = Way {
    together: 1,
    blocks: 256,
    more: 12,
    chunk: None,
    prefix_cache: true,
    speculation: false,
    overlap: false,
    attention: AttentionKernel::Vector,
    dtype: DtypeChoice::F32,
};

const TOGETHER: Way = Way { together: 16, blocks: 700, more: 20, ..ALONE };

/// What a run gave.
#[derive(Debug, Default, PartialEq)]
struct Answers {
    tokens: Vec<Vec<u32>>,
    logprobs: Vec<Vec<Vec<LogprobEntry>>>,
    /// Vocabulary of scored prompts: rank and entries.
    prompts: Vec<Vec<(Option<u32>, Vec<LogprobEntry>)>>,
}

/// What happened in it.
#[derive(Debug, Default)]
struct Counts {
    preemptions: u64,
    accepted: u64,
    hit_tokens: u64,
    windows_evicted: u64,
}

fn window_tokens(golden: &Golden) -> u32 {
    golden.config["sliding_window"].as_u64().expect("it has a window") as u32
}

fn sizes(info: &ModelInfo, way: Way) -> Sizes {
    let limits = Limits {
        max_num_seqs: way.together,
        max_num_batched_tokens: 64,
        max_model_len: info.max_context,
        block_size: info.block_size,
        block_count: info.block_count,
        stop_ids: StopIds::NONE,
        ..rig::small().limits
    };
    let policy = Policy {
        prefix_cache: way.prefix_cache,
        speculation: way.speculation,
        prefill_chunk_tokens_max: way.chunk,
        window: info.window.map(|window| WindowKv { tokens: window.tokens, blocks: window.blocks }),
        ..Policy::default()
    };
    Sizes { limits, policy, ..rig::small() }
}

/// Serves the goldens' prompts, and each of them again with half of another one behind it.
fn serve(name: &str, golden: &Golden, way: Way, windowed: bool, sampling: &Sampling) -> (Answers, Counts) {
    let tokens = window_tokens(golden);
    let window_blocks = way.together.min(5) * window_blocks_of_sequence(tokens, BLOCK_SIZE) + way.more;
    let options = ModelOptions {
        dtype: way.dtype,
        linear: LinearKind::Packed,
        attention: way.attention,
        block_size: BLOCK_SIZE,
        kv: KvSize::Blocks(way.blocks),
        window_blocks: windowed.then_some(window_blocks),
        max_model_len: Some(golden.served),
        ..ModelOptions::default()
    };
    let folder = folder(name, golden);
    let model = load(&folder.0, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
    let info = model.info().clone();
    assert_eq!(
        info.window.map(|window| (window.tokens, window.blocks)),
        windowed.then_some((tokens, window_blocks))
    );
    let sizes = sizes(&info, way);
    let (mut engine, mut rig) = (Engine::new(rig::pipeline(model, way.overlap), sizes), Rig::new());
    let mut ids = Vec::new();
    let count = golden.cases.len() as u16;
    for (n, case) in (0..2 * count).zip(golden.cases.iter().cycle()) {
        let id = rig.open(n % 2, n / 2);
        let (mut prompt, mut max_tokens) = (case.prompt.clone(), case.greedy.len() as u32);
        if n >= count {
            prompt.extend(&golden.cases[1].prompt[..50]);
            max_tokens = 20;
        }
        rig.admit(id, &prompt, prompt.len(), Sampling { max_tokens: Some(max_tokens), ..sampling.clone() });
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
    let mut answers = Answers::default();
    for id in ids {
        let story = rig.ended(id).0;
        answers.tokens.push(story.tokens);
        answers.logprobs.push(story.logprobs);
        answers.prompts.push(story.prompt);
    }
    let counts = Counts {
        preemptions: rig.gauge(Gauge::Preemptions),
        accepted: rig.gauge(Gauge::AcceptedDrafts),
        hit_tokens: rig.gauge(Gauge::PrefixHitTokens),
        windows_evicted: rig.gauge(Gauge::WindowBlocksEvicted),
    };
    (answers, counts)
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ignore_eos: true, logprobs: Some(3), ..Sampling::default() }
}

/// Runs all families both ways; the answers must be equal. Gives what happened with window blocks.
fn check(way: Way, sampling: &Sampling) -> Counts {
    let mut all = Counts::default();
    for name in FAMILIES {
        let golden = golden(name);
        let (with, counts) = serve(name, &golden, way, true, sampling);
        let (without, _) = serve(name, &golden, way, false, sampling);
        for (index, case) in golden.cases.iter().enumerate().filter(|_| way.dtype == DtypeChoice::F32) {
            assert_eq!(with.tokens[index], case.greedy, "{name} case {index}, {way:?}");
        }
        assert_eq!(with.tokens, without.tokens, "{name} {way:?}");
        assert!(
            with == without,
            "{name} {way:?}: the tokens are equal, and the bits of their logprobs are not"
        );
        all.preemptions += counts.preemptions;
        all.accepted += counts.accepted;
        all.hit_tokens += counts.hit_tokens;
        all.windows_evicted += counts.windows_evicted;
    }
    println!("{way:?}: {all:?}");
    all
}

#[test]
fn alone_and_together_every_bit_is_the_same() {
    for way in [ALONE, Way { chunk: Some(7), ..ALONE }, TOGETHER, Way { overlap: true, ..TOGETHER }] {
        let counts = check(way, &greedy());
        assert!(counts.windows_evicted > 100, "{counts:?}");
    }
    let counts = check(Way { chunk: Some(5), prefix_cache: false, ..TOGETHER }, &greedy());
    assert_eq!(counts.hit_tokens, 0);
}

#[test]
fn over_cached_prefixes_every_bit_is_the_same() {
    for way in [
        Way { more: 500, ..ALONE },
        Way { more: 500, chunk: Some(9), ..ALONE },
        Way { more: 450, ..TOGETHER },
    ] {
        let counts = check(Way { blocks: 900, ..way }, &greedy());
        assert!(counts.hit_tokens > 500 && counts.windows_evicted > 100, "{counts:?}");
    }
}

#[test]
fn after_preemptions_every_bit_is_the_same() {
    for overlap in [false, true] {
        let counts = check(Way { blocks: 120, overlap, ..TOGETHER }, &greedy());
        assert!(counts.preemptions > 20 && counts.windows_evicted > 100, "{counts:?}");
    }
}

#[test]
fn with_drafts_every_bit_is_the_same() {
    for way in [ALONE, Way { together: 3, ..ALONE }, Way { together: 3, blocks: 100, more: 2, ..ALONE }] {
        let counts = check(Way { speculation: true, ..way }, &greedy());
        assert!(counts.accepted > 100 && counts.windows_evicted > 100, "{counts:?}");
    }
}

#[test]
fn scored_prompts_and_plain_attention_are_the_same() {
    check(Way { together: 4, ..ALONE }, &Sampling { prompt_logprobs: Some(2), ..greedy() });
    check(Way { attention: AttentionKernel::Twin, together: 4, ..ALONE }, &greedy());
}
