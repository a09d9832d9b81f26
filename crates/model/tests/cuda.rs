//! The CUDA engine on the emulated device, against the parity fixtures and the CPU engine: whole steps through the same
//! host side, kernels and graphs that a GPU would run.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::driver::{Policy, Request, run};
use crate::emulated;
use crate::emulated::{fixture, model_of_64, options, ready};
use pinion_cuda::CudaDtype;
use pinion_model::cuda::{CudaDecoder, CudaKv, CudaOptions, DecodePath, PrefillAttention, load_cuda};
use pinion_model::{
    DtypeChoice, FUTURE_TOKEN, KvSize, LoadError, Model, ModelOptions, Pipeline, Row, RowOutcome, RowShaping,
    SampleParams, Shaping, StepBatch, StepError, StepOutput, Unshaped, WindowTables, load,
};
use serde::Deserialize;
use std::path::PathBuf;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    logits_last: Option<Vec<f32>>,
}

fn golden(name: &str) -> Vec<Case> {
    let text = std::fs::read_to_string(fixture(name).join("golden.json")).unwrap();
    serde_json::from_str::<Golden>(&text).unwrap().cases
}

fn row(slot: u32, query_len: u32, context_len: u32, blocks_len: u32, sample: Option<SampleParams>) -> Row {
    Row {
        slot,
        query_start: 0,
        query_len,
        context_len,
        prompt_len: 4,
        blocks_start: 0,
        blocks_len,
        sample,
        scored: None,
    }
}

fn last_logits(model: &mut dyn Model, prompt: &[u32]) -> Vec<f32> {
    let blocks: Vec<u32> = (0..(prompt.len() as u32).div_ceil(model.info().block_size))
        .rev()
        .map(|block| block * 3 + 1)
        .collect();
    let positions: Vec<u32> = (0..prompt.len() as u32).collect();
    let len = prompt.len() as u32;
    let rows = [row(3, len, len, blocks.len() as u32, Some(SampleParams::GREEDY))];
    let batch = StepBatch {
        tokens: prompt,
        positions: &positions,
        rows: &rows,
        blocks: &blocks,
        copies: &[],
        windows: WindowTables::NONE,
        shaping: &Unshaped,
    };
    let mut logits = Vec::new();
    model.logits(&batch, &mut logits).unwrap();
    logits
}

/// Logits of the goldens, within what the dtype explains.
fn check_logits(name: &str, options: &CudaOptions, tolerance: f32) {
    let mut model = ready(name, options);
    for (index, case) in golden(name).iter().enumerate() {
        let Some(want) = &case.logits_last else { continue };
        let have = last_logits(&mut model, &case.prompt);
        let largest = want.iter().fold(0f32, |max, value| max.max(value.abs()));
        let error = have.iter().zip(want).fold(0f32, |max, (a, b)| max.max((a - b).abs())) / largest;
        assert!(error <= tolerance, "{name} case {index}: relative error {error:e} with {options:?}");
    }
}

fn requests(cases: &[Case], output_len: usize, params: SampleParams) -> Vec<Request> {
    let request = |(index, case): (usize, &Case)| Request {
        prompt: case.prompt.clone(),
        output_len: output_len.min(case.greedy.len()),
        arrival: index / 2,
        params: SampleParams { seed: index as u64, ..params },
    };
    cases.iter().enumerate().map(request).collect()
}

/// Greedy ids of the goldens, with requests that come at different steps, in chunks, with a preemption.
fn check_ids(name: &str, options: &CudaOptions, output_len: usize) {
    let cases = golden(name);
    let mut model = ready(name, options);
    let captures = model.counts().captures;
    let replays = model.counts().replays;
    let policy = Policy { chunk: 40, preempt_at: &[9] };
    let ids = run(&mut model, &requests(&cases, output_len, SampleParams::GREEDY), policy);
    for (index, case) in cases.iter().enumerate() {
        assert_eq!(ids[index], case.greedy[..output_len], "{name} case {index} with {options:?}");
    }
    assert_eq!(model.counts().captures, captures, "nothing is captured after ready");
    assert_eq!(model.counts().replays > replays, options.graphs, "decode steps replay graphs, if asked to");
}

/// Biases, penalties, logprobs: what the host samples.
#[derive(Debug)]
struct Penalised(Vec<u32>);

impl RowShaping for Penalised {
    fn shaping(&self, row: usize) -> Option<Shaping<'_>> {
        let shaping = Shaping { prompt: &self.0, repetition_penalty: 1.8, bias: &[(5, 2.5)], ..Shaping::OFF };
        (row != 1).then_some(shaping)
    }
}

/// Rows that the device samples beside rows that the host samples, as the CPU engine has them.
fn check_host_rows(options: &CudaOptions) {
    let mut cpu =
        load(&fixture("tiny-a"), &ModelOptions { dtype: DtypeChoice::F32, ..ModelOptions::default() })
            .unwrap();
    let mut model = ready("tiny-a", options);
    let tokens = [1, 2, 3, 4, 7, 8, 9, 9, 11, 12, 13, 14];
    let drawn = SampleParams { temperature: 1.2, top_k: 50, top_p: 0.97, seed: 11, ..SampleParams::GREEDY };
    let told = SampleParams { logprobs: Some(3), ..drawn };
    let rows: Vec<Row> = [Some(told), Some(drawn), None, Some(drawn)]
        .into_iter()
        .enumerate()
        .map(|(index, sample)| {
            let start = 3 * index as u32;
            Row { query_start: start, blocks_start: index as u32, ..row(index as u32 + 2, 3, 3, 1, sample) }
        })
        .collect();
    let batch = StepBatch {
        tokens: &tokens,
        positions: &[0, 1, 2].repeat(4),
        rows: &rows,
        blocks: &[3, 1, 9, 4],
        copies: &[],
        windows: WindowTables::NONE,
        shaping: &Penalised(vec![1, 2, 3]),
    };
    let (mut have, mut want) = (StepOutput::default(), StepOutput::default());
    cpu.step(&batch, &mut want).unwrap();
    Model::step(&mut model, &batch, &mut have).unwrap();
    assert_eq!(have.rows, want.rows);
    for index in 0..4 {
        assert_eq!(have.logprobs(index).len(), want.logprobs(index).len());
        for (have, want) in have.logprobs(index).iter().zip(want.logprobs(index)) {
            assert_eq!(have.token, want.token);
            assert!((have.logprob - want.logprob).abs() < 1e-3, "{have:?} {want:?}");
        }
    }
    // The next step stands on tokens that the host and the device sampled.
    let next = |index: usize, token: u32| -> (Row, u32) {
        let row =
            Row { query_start: 0, blocks_start: index as u32, ..row(index as u32 + 2, 1, 4, 1, Some(drawn)) };
        (row, token)
    };
    for index in [0, 1, 3] {
        let RowOutcome::Token(token) = want.rows[index] else { panic!("a token") };
        let mut outcomes = Vec::new();
        for token in [token, FUTURE_TOKEN] {
            let (row, token) = next(index, token);
            let rows = [row];
            let batch =
                StepBatch { tokens: &[token], positions: &[3], rows: &rows, shaping: &Unshaped, ..batch };
            let mut out = StepOutput::default();
            // The step samples into the lane's place: put the token back for the second round.
            if token == FUTURE_TOKEN {
                refeed(&mut model, index, &tokens, want.rows[index]);
            }
            Model::step(&mut model, &batch, &mut out).unwrap();
            outcomes.push(out.rows[0]);
        }
        assert_eq!(outcomes[0], outcomes[1], "row {index}");
    }
}

/// Runs the row's prompt again, so that its lane holds what it sampled then.
fn refeed(model: &mut CudaDecoder, index: usize, tokens: &[u32], want: RowOutcome) {
    let drawn = SampleParams { temperature: 1.2, top_k: 50, top_p: 0.97, seed: 11, ..SampleParams::GREEDY };
    let rows = [Row { blocks_start: index as u32, ..row(index as u32 + 2, 3, 3, 1, Some(drawn)) }];
    let shaping = Penalised(vec![1, 2, 3]);
    let shaping: &dyn RowShaping = if index == 1 { &Unshaped } else { &shaping };
    let batch = StepBatch {
        tokens: &tokens[3 * index..3 * index + 3],
        positions: &[0, 1, 2],
        rows: &rows,
        blocks: &[3, 1, 9, 4],
        copies: &[],
        windows: WindowTables::NONE,
        shaping,
    };
    let mut out = StepOutput::default();
    Model::step(model, &batch, &mut out).unwrap();
    assert_eq!(out.rows[0], want);
}

/// Two steps in flight: each stands on the token that the one before samples, and tokens come back in order.
fn check_overlap(options: &CudaOptions) {
    let case = &golden("tiny-b")[0];
    let mut model = ready("tiny-b", options);
    let prompt = case.prompt.len() as u32;
    let blocks: Vec<u32> = (0..16).map(|block| block * 5 + 2).collect();
    let (mut out, mut ids) = (StepOutput::default(), Vec::new());
    let sample = |position: u64| Some(SampleParams { position, ..SampleParams::GREEDY });
    for step in 0..30u32 {
        let context = prompt + step;
        let positions: Vec<u32> = if step == 0 { (0..prompt).collect() } else { vec![context - 1] };
        let tokens = if step == 0 { case.prompt.clone() } else { vec![FUTURE_TOKEN] };
        let rows = [row(7, tokens.len() as u32, context, blocks.len() as u32, sample(u64::from(step)))];
        let batch = StepBatch {
            tokens: &tokens,
            positions: &positions,
            rows: &rows,
            blocks: &blocks,
            copies: &[],
            windows: WindowTables::NONE,
            shaping: &Unshaped,
        };
        model.launch(&batch).unwrap();
        if step > 0 {
            model.retire(&mut out).unwrap();
            ids.extend(out.token(0));
        }
    }
    model.retire(&mut out).unwrap();
    ids.extend(out.token(0));
    assert_eq!(ids, case.greedy[..30]);
}

/// Decode steps in the steady state, two in flight: the host's side allocates nothing.
fn check_allocations(options: &CudaOptions) {
    let mut model = ready("tiny-a", options);
    let blocks: Vec<u32> = (0..16).collect();
    let mut out = StepOutput::with_capacity(4);
    let mut step = |model: &mut CudaDecoder, context: u32, is_first: bool| {
        let rows = [row(1, 1, context, 16, Some(SampleParams::GREEDY))];
        let (tokens, positions) = ([if is_first { 3 } else { FUTURE_TOKEN }], [context - 1]);
        let batch = StepBatch {
            tokens: &tokens,
            positions: &positions,
            rows: &rows,
            blocks: &blocks,
            copies: &[],
            windows: WindowTables::NONE,
            shaping: &Unshaped,
        };
        model.launch(&batch).unwrap();
        if !is_first {
            model.retire(&mut out).unwrap();
        }
    };
    (1..6).for_each(|context| step(&mut model, context, context == 1));
    let counted =
        allocation_counter::measure(|| (6..40).for_each(|context| step(&mut model, context, false)));
    assert_eq!(counted.count_total, 0);
}

/// What contradicts itself is told at retire, and the next step is as good as any.
fn check_bad_batches() {
    let mut model = ready("tiny-a", &options());
    let good = row(0, 1, 1, 1, Some(SampleParams::GREEDY));
    let bad = [
        (Row { slot: 16, ..good }, 5, "lane"),
        (Row { context_len: 2, ..good }, 5, "positions"),
        (Row { blocks_len: 0, ..good }, 5, "cover"),
        (good, 257, "vocabulary"),
    ];
    let mut out = StepOutput::default();
    for (row, token, says) in bad {
        let rows = [row];
        let batch = StepBatch {
            tokens: &[token],
            positions: &[0],
            rows: &rows,
            blocks: &[1],
            copies: &[],
            windows: WindowTables::NONE,
            shaping: &Unshaped,
        };
        model.launch(&batch).unwrap();
        match model.retire(&mut out) {
            Err(StepError::BadBatch { reason, .. }) => assert!(reason.contains(says), "{reason}"),
            other => panic!("{says}: {other:?}"),
        }
    }
    let rows = [good];
    let batch = StepBatch {
        tokens: &[5],
        positions: &[0],
        rows: &rows,
        blocks: &[1],
        copies: &[],
        windows: WindowTables::NONE,
        shaping: &Unshaped,
    };
    Model::step(&mut model, &batch, &mut out).unwrap();
    assert!(out.token(0).is_some());
}

/// What cannot be served is refused with a reason.
fn check_refusals() {
    assert!(emulated::emulated().facts().emulated);
    let refuses = |name: &str, options: CudaOptions| load_cuda(&fixture(name), &options).unwrap_err();
    for (name, options, says) in [
        (
            "tiny-c",
            CudaOptions { decode: DecodePath::Fused, ..options() },
            "does not fit the fused decode step",
        ),
        ("tiny-a", CudaOptions { max_tokens: 4, ..options() }, "16 rows and 4 tokens"),
        (
            "tiny-a",
            CudaOptions { object: PathBuf::from("/nonexistent/x.so"), ..options() },
            "/nonexistent/x.so",
        ),
        ("tiny-a", CudaOptions { device: 3, ..options() }, "device 3"),
    ] {
        let error = refuses(name, options);
        assert!(error.to_string().contains(says), "{error}");
        assert!(matches!(error, LoadError::Options { .. } | LoadError::Backend { .. }), "{error:?}");
    }
    // What the kernels do not take of config.json: the folder is refused, by the key, before the device is opened.
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("llama-on-cuda");
    std::fs::create_dir_all(&folder).unwrap();
    let nowhere = CudaOptions { object: PathBuf::from("/nonexistent/x.so"), ..options() };
    for (keys, says) in [
        (r#""hidden_size":64,"head_dim":264"#, "head_dim 264 is not supported by the CUDA object"),
        (r#""hidden_size":64,"head_dim":18"#, "head_dim 18 is not supported by the CUDA object"),
        (r#""hidden_size":66,"head_dim":16"#, "hidden_size 66 is not supported by the CUDA object"),
    ] {
        let config = format!(
            r#"{{"model_type":"llama",{keys},"intermediate_size":64,"num_hidden_layers":1,
            "num_attention_heads":4,"vocab_size":61,"max_position_embeddings":64}}"#
        );
        std::fs::write(folder.join("config.json"), config).unwrap();
        let error = load_cuda(&folder, &nowhere).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert!(matches!(error, LoadError::Config { .. }), "{error:?}");
    }
    let share = CudaOptions { kv: CudaKv::FreeShare(0.01), ..options() };
    let model = load_cuda(&fixture("tiny-a"), &share).unwrap();
    assert!(Model::info(&model).block_count > 16, "{:?}", Model::info(&model));
}

/// Chunks of several sequences in one step: the tensor-core kernel, the plain one and the CPU agree.
fn check_tiles() {
    let folder = model_of_64("heads-of-64");
    let tokens: Vec<u32> = (0..150).map(|index| index * 7 % 61).collect();
    let (blocks, lens) = ([9, 3, 5, 1, 8, 2, 7, 4, 30, 31, 32, 33], [100u32, 17, 1, 32]);
    let (mut rows, mut positions, mut start) = (Vec::new(), Vec::new(), 0);
    for (index, len) in lens.into_iter().enumerate() {
        let (blocks_start, blocks_len) = [(0, 7), (7, 2), (9, 1), (10, 2)][index];
        let first = row(index as u32, len, len, blocks_len, Some(SampleParams::GREEDY));
        rows.push(Row { query_start: start, blocks_start, ..first });
        positions.extend(0..len);
        start += len;
    }
    let batch = StepBatch {
        tokens: &tokens,
        positions: &positions,
        rows: &rows,
        blocks: &blocks,
        copies: &[],
        windows: WindowTables::NONE,
        shaping: &Unshaped,
    };
    // Then the first sequence goes on beside the rest of the third's prompt: its context is split, as in a decode step.
    let next: Vec<u32> = (0..21).map(|index| index * 5 % 61).collect();
    let next_positions: Vec<u32> = [100].into_iter().chain(1..21).collect();
    let decode = row(0, 1, 101, 7, Some(SampleParams::GREEDY));
    let prompt = row(2, 20, 21, 2, Some(SampleParams::GREEDY));
    let next_blocks = [9, 3, 5, 1, 8, 2, 7, 30, 31];
    let mixed = StepBatch {
        tokens: &next,
        positions: &next_positions,
        rows: &[decode, Row { query_start: 1, blocks_start: 7, ..prompt }],
        blocks: &next_blocks,
        copies: &[],
        windows: WindowTables::NONE,
        shaping: &Unshaped,
    };
    let logits = |model: &mut dyn Model| {
        [&batch, &mixed].map(|batch| {
            let mut logits = Vec::new();
            model.logits(batch, &mut logits).unwrap();
            logits
        })
    };
    let cpu = ModelOptions { dtype: DtypeChoice::F32, ..ModelOptions::default() };
    let want = logits(&mut *load(&folder, &cpu).unwrap()).concat();
    let largest = want.iter().fold(0f32, |max, value| max.max(value.abs()));
    for (prefill, dtype) in [
        (PrefillAttention::Auto, CudaDtype::F16),
        (PrefillAttention::Plain, CudaDtype::F16),
        (PrefillAttention::Auto, CudaDtype::Bf16),
    ] {
        let mut model = load_cuda(&folder, &CudaOptions { prefill, dtype, ..options() }).unwrap();
        let have = logits(&mut model).concat();
        assert_eq!(have.len(), want.len());
        let error = have.iter().zip(&want).fold(0f32, |max, (a, b)| max.max((a - b).abs())) / largest;
        let tolerance = if dtype == CudaDtype::F16 { 0.01 } else { 0.05 };
        assert!(error <= tolerance, "{prefill:?} {dtype:?}: relative error {error:e}");
    }
}

fn fused() -> CudaOptions {
    CudaOptions { decode: DecodePath::Fused, ..options() }
}

#[test]
fn the_goldens_come_out_with_every_switch() {
    let every_switch = [
        options(),
        fused(),
        CudaOptions { graphs: false, block_size: 4, kv: CudaKv::Size(KvSize::Blocks(1024)), ..fused() },
        CudaOptions { graphs: false, measured_products: true, ..options() },
        CudaOptions {
            fused_products: false,
            block_size: 4,
            kv: CudaKv::Size(KvSize::Blocks(1024)),
            ..options()
        },
        CudaOptions { fused_norms: false, ..options() },
    ];
    for (index, options) in every_switch.iter().enumerate() {
        for name in &["tiny-b", "tiny-a"][..if index < 2 { 2 } else { 1 }] {
            if options.decode == DecodePath::Graph {
                check_logits(name, options, 1e-4);
            }
            check_ids(name, options, [20, 12, 7][index.min(2)]);
        }
    }
}

#[test]
fn other_shapes_types_and_steps_agree_with_the_cpu_engine() {
    // Heads of 20, which the general attention kernel takes.
    check_logits("tiny-c", &options(), 1e-4);
    check_ids("tiny-c", &options(), 7);
    check_logits("tiny-a", &CudaOptions { dtype: CudaDtype::F16, ..options() }, 0.01);
    check_logits("tiny-a", &CudaOptions { dtype: CudaDtype::Bf16, ..options() }, 0.05);
    check_tiles();
    for options in [&options(), &fused()] {
        check_host_rows(options);
        check_overlap(options);
        check_allocations(options);
    }
    check_bad_batches();
    check_refusals();
}
