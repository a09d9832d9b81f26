//! The CUDA object's attention, append and sampler within the forward of libtorch's operators: the emulated object over
//! tensors on the CPU, against the goldens of every family and against the operators alone. On a GPU the same code runs
//! the same functions of the real object, on libtorch's stream.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::cuda_sweeps::logprobs;
use crate::cuda_sweeps::logprobs::assert_same;
use crate::driver::{Policy, Request, run};
use crate::emulated::{fixture, model_of_64, object};
use crate::tiny;
use crate::tiny::{folder, golden, names, relative_error};
use pinion_cuda::Device;
use pinion_model::operators::{
    OperatorDevice, OperatorDtype, OperatorKernels, OperatorKv, OperatorOptions, OperatorPrefill,
    load_operators,
};
use pinion_model::{
    BlockCopy, KvSize, LoadError, LoadEvent, MaskState, Model, OwnedBatch, Row, RowOutcome, RowShaping,
    SampleParams, Sampler, Shaping, StepBatch, StepOutput, TokenMask, WindowTables,
};
use pinion_random::Random;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Relative to the largest logit.
const LOGIT_TOLERANCE: f32 = 1e-4;
/// Models at once, in one test.
const THREADS_MAX: usize = 4;

fn alone(dtype: OperatorDtype) -> OperatorOptions {
    OperatorOptions {
        device: OperatorDevice::Cpu,
        dtype,
        threads: 1,
        block_size: 16,
        kv: OperatorKv::Size(KvSize::Blocks(256)),
        max_model_len: None,
        max_rows: 16,
        max_tokens: 512,
        prefill: OperatorPrefill::Auto,
        kernels: None,
    }
}

fn kernels() -> OperatorKernels {
    OperatorKernels {
        object: object(),
        may_do_without: false,
        shaped_on_device: true,
        scored_on_device: true,
        masked_on_device: true,
    }
}

fn with_kernels(dtype: OperatorDtype) -> OperatorOptions {
    OperatorOptions { kernels: Some(kernels()), ..alone(dtype) }
}

fn loaded(folder: &Path, options: &OperatorOptions) -> Result<Box<dyn Model>, LoadError> {
    load_operators(folder, options, &mut |_| {})
}

/// Logits after `prompt`, whose first `cached` tokens are computed in a step of their own.
fn last_logits(model: &mut dyn Model, prompt: &[u32], cached: usize) -> Vec<f32> {
    let blocks: Vec<u32> = (0..10).rev().map(|block| block * 3 + 1).collect();
    let mut logits = Vec::new();
    for (start, end) in [(0, cached), (cached, prompt.len())] {
        let mut batch = OwnedBatch::default();
        if start < end {
            batch.push(0, start as u32, &prompt[start..end], &blocks);
            model.logits(&batch.as_step(), &mut logits).unwrap();
        }
    }
    logits
}

/// Checks on some of the CPUs: an emulated device is its thread's own.
fn for_each(names: &[String], check: impl Fn(&str) + Sync) {
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            check(name);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX) {
            scope.spawn(work);
        }
    });
}

/// Logits, and 64 greedy ids of requests that come at different steps, with prompt chunks among decode rows and two
/// preemptions. The object's counter of launches tells that it was its kernels that ran.
#[test]
fn logits_and_greedy_ids_of_every_family_equal_the_goldens() {
    assert!(names().len() >= 20);
    let is_first = |name: &str| name.split('-').next().unwrap() == name;
    for_each(&names(), |name| {
        let golden = golden(name);
        let (folder, device) = (folder(name, &golden), Device::open(&object(), 0).unwrap());
        let options =
            OperatorOptions { max_model_len: Some(golden.served), ..with_kernels(OperatorDtype::F32) };
        let mut model = loaded(&folder.0, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let before = device.counts().launches;
        for (index, case) in golden.cases.iter().enumerate() {
            let Some(want) = &case.logits_last else { continue };
            for cached in [0, case.prompt.len() - 1] {
                let error = relative_error(&last_logits(&mut *model, &case.prompt, cached), want);
                assert!(
                    error <= LOGIT_TOLERANCE,
                    "{name} case {index}, {cached} cached: relative error {error:e}"
                );
            }
        }
        assert!(device.counts().launches > before, "{name}: no kernel of the object ran");
        let most = if is_first(name) { 16 } else { 4 };
        let cases = &golden.cases[..most.min(golden.cases.len())];
        let request = |(index, case): (usize, &tiny::Case)| Request {
            prompt: case.prompt.clone(),
            output_len: case.greedy.len(),
            arrival: index * 3 % 17,
            params: SampleParams::GREEDY,
        };
        let requests: Vec<Request> = cases.iter().enumerate().map(request).collect();
        assert!(requests.iter().all(|request| request.output_len == 64));
        let ids = run(&mut *model, &requests, Policy { chunk: 24, preempt_at: &[9, 20] });
        for (index, case) in cases.iter().enumerate() {
            assert_eq!(ids[index], case.greedy, "{name} case {index}");
        }
    });
}

/// Heads of 64 in half precision: prompt chunks are tiles on tensor cores, beside single tokens.
#[test]
fn tiles_of_prompts_give_what_operators_give() {
    let folder = model_of_64("operators_of_64");
    let prompt: Vec<u32> = (0..150).map(|at| at * 7 % 61).collect();
    for (dtype, tolerance) in
        [(OperatorDtype::F32, 1e-5), (OperatorDtype::F16, 1e-2), (OperatorDtype::Bf16, 8e-2)]
    {
        let mut operators = loaded(&folder, &alone(dtype)).unwrap();
        for prefill in [OperatorPrefill::Auto, OperatorPrefill::Plain] {
            let mut model = loaded(&folder, &OperatorOptions { prefill, ..with_kernels(dtype) }).unwrap();
            for cached in [0, 1, 70, 140, 149] {
                let want = last_logits(&mut *operators, &prompt[..], cached);
                let have = last_logits(&mut *model, &prompt[..], cached);
                let error = relative_error(&have, &want);
                assert!(
                    error <= tolerance,
                    "{dtype:?} {prefill:?} {cached} cached: relative error {error:e}"
                );
            }
            // A tile and a single token in one step.
            let mut logits = [Vec::new(), Vec::new()];
            for (model, logits) in [&mut model, &mut operators].into_iter().zip(&mut logits) {
                last_logits(&mut **model, &prompt[..40], 0);
                let mut batch = OwnedBatch::default();
                batch.push(5, 39, &prompt[39..40], &[28, 25, 22]);
                batch.push(9, 0, &prompt[..90], &[40, 41, 42, 43, 44, 45]);
                model.logits(&batch.as_step(), logits).unwrap();
            }
            let error = relative_error(&logits[0], &logits[1]);
            assert!(error <= tolerance, "{dtype:?} {prefill:?} mixed: relative error {error:e}");
        }
    }
}

/// A step copies a block, and its row goes on in the copy.
#[test]
fn a_copied_block_is_attended_to() {
    let folder = model_of_64("operators_copies");
    let prompt: Vec<u32> = (0..30).map(|at| at * 5 % 61).collect();
    let mut model = loaded(&folder, &with_kernels(OperatorDtype::F32)).unwrap();
    let want = last_logits(&mut *model, &prompt, 20);
    let (mut batch, mut logits) = (OwnedBatch::default(), Vec::new());
    batch.push(0, 0, &prompt[..20], &[30, 31]);
    model.logits(&batch.as_step(), &mut logits).unwrap();
    let mut batch = OwnedBatch::default();
    batch.push(0, 20, &prompt[20..], &[30, 77]);
    let copies = [BlockCopy { from: 31, to: 77, tokens: 4 }];
    let mut step = batch.as_step();
    step.copies = &copies;
    model.logits(&step, &mut logits).unwrap();
    assert!(relative_error(&logits, &want) <= 1e-6);
}

/// What the kernels do not take is refused, or left to the operators with an event that says why.
#[test]
fn what_the_kernels_do_not_take_is_said() {
    let of_12 = golden("phi3-window");
    let (of_12, of_64) = (folder("operators-of-12", &of_12), model_of_64("operators_refused"));
    let no_object = OperatorKernels { object: PathBuf::from("/no/object.so"), ..kernels() };
    let cases = [
        (&*of_12.0, OperatorDtype::Bf16, kernels(), "is not supported by the CUDA object (a multiple of 8"),
        (&*of_64, OperatorDtype::F32, no_object, "there is no /no/object.so"),
    ];
    for (folder, dtype, kernels, says) in cases {
        let options = |may_do_without| OperatorOptions {
            kernels: Some(OperatorKernels { may_do_without, ..kernels.clone() }),
            ..alone(dtype)
        };
        let error = loaded(folder, &options(false)).err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
        let mut heard = Vec::new();
        let mut watch = |event: LoadEvent<'_>| {
            if let LoadEvent::WithoutKernels(reason) = event {
                heard.push(reason.to_owned());
            }
        };
        let mut model = load_operators(folder, &options(true), &mut watch).unwrap();
        assert!(heard.len() == 1 && heard[0].contains(says), "{heard:?}");
        assert!(last_logits(&mut *model, &[3, 4, 5], 0).iter().all(|logit| logit.is_finite()));
    }
    let sdpa = OperatorOptions { prefill: OperatorPrefill::Sdpa, ..with_kernels(OperatorDtype::F32) };
    let error = loaded(&of_64, &sdpa).err().unwrap();
    assert!(error.to_string().contains("use --torch-kernels off"), "{error}");
}

/// Vocabulary of the fixture.
const VOCAB: usize = 257;
const ROWS: usize = 6;

/// What one request of a step does to its logits, and how it samples.
#[derive(Debug)]
struct Wish {
    prompt: Vec<u32>,
    output: Vec<u32>,
    penalties: [f32; 3],
    bias: Vec<(u32, f32)>,
    banned: Vec<u32>,
    mask: Option<Arc<dyn TokenMask>>,
    is_shaped: bool,
    sample: Option<SampleParams>,
}

/// Has nothing to give.
#[derive(Debug)]
struct Without(MaskState);

impl TokenMask for Without {
    fn read(&self, _: u64, _: &mut Vec<u32>) -> MaskState {
        self.0
    }
}

fn ids(random: &mut Random, most: usize) -> Vec<u32> {
    (0..random.below(most + 1)).map(|_| random.below(VOCAB) as u32).collect()
}

impl Wish {
    fn random(random: &mut Random) -> Wish {
        let mask: Option<Arc<dyn TokenMask>> = match random.below(6) {
            0 | 1 => Some(Arc::new(logprobs::mask(random, VOCAB))),
            2 => Some(Arc::new(Without(random.pick(&[
                MaskState::Complete,
                MaskState::Late,
                MaskState::Failed,
            ])))),
            _ => None,
        };
        let mut bias: Vec<(u32, f32)> =
            ids(random, 20).into_iter().map(|id| (id, random.pick(&[-50.0, 0.5, 4.0]))).collect();
        // Now and then an id has two biases, and the row is the host's.
        if random.below(4) > 0 {
            bias.sort_by_key(|(id, _)| *id);
            bias.dedup_by_key(|(id, _)| *id);
        }
        let sample = SampleParams {
            temperature: random.pick(&[0.0, 0.7, 1.4]),
            top_k: random.pick(&[0, 7, 60]),
            top_p: random.pick(&[1.0, 0.85]),
            min_p: random.pick(&[0.0, 0.05]),
            logprobs: random.below(24).checked_sub(4).map(|best| best as u32),
            seed: random.between(0, 9999),
            position: random.between(0, 99),
        };
        Wish {
            prompt: [vec![5], ids(random, 9)].concat(),
            output: ids(random, 5),
            penalties: [random.pick(&[1.0, 1.4]), random.pick(&[0.0, 0.6]), random.pick(&[0.0, -0.8])],
            bias,
            banned: ids(random, 90),
            is_shaped: mask.is_some() || random.below(3) > 0,
            mask,
            sample: (random.below(8) > 0).then_some(sample),
        }
    }
}

#[derive(Debug)]
struct Wishes(Vec<Wish>);

impl RowShaping for Wishes {
    fn shaping(&self, row: usize) -> Option<Shaping<'_>> {
        let wish = &self.0[row];
        let [repetition_penalty, frequency_penalty, presence_penalty] = wish.penalties;
        wish.is_shaped.then_some(Shaping {
            prompt: &wish.prompt,
            output: &wish.output,
            repetition_penalty,
            frequency_penalty,
            presence_penalty,
            bias: &wish.bias,
            banned_ids: &wish.banned,
            banned_ends: &[],
            mask: wish.mask.as_ref(),
        })
    }
}

/// Runs `check` over the whole sequences of all wishes in one step, in lanes that are not theirs in order.
fn with_step(wishes: &Wishes, check: impl FnOnce(&StepBatch<'_>)) {
    let (mut tokens, mut positions, mut rows) = (Vec::new(), Vec::new(), Vec::new());
    for (index, wish) in wishes.0.iter().enumerate() {
        let ids = [&wish.prompt[..], &wish.output].concat();
        rows.push(Row {
            slot: ((index * 5 + 2) % ROWS) as u32,
            query_start: tokens.len() as u32,
            query_len: ids.len() as u32,
            context_len: ids.len() as u32,
            prompt_len: wish.prompt.len() as u32,
            blocks_start: index as u32,
            blocks_len: 1,
            sample: wish.sample,
            scored: None,
        });
        positions.extend(0..ids.len() as u32);
        tokens.extend(ids);
    }
    let (tokens, positions) = (&tokens, &positions);
    let blocks = [8, 3, 5, 1, 7, 12];
    check(&StepBatch {
        tokens,
        positions,
        rows: &rows,
        blocks: &blocks,
        copies: &[],
        windows: WindowTables::NONE,
        shaping: wishes,
    });
}

/// The sampler kernel against the host's sampler over the same logits: tokens, what becomes of rows whose mask has
/// nothing to give, and logprobs. Each of the three switches sends its rows to the host, to the same end.
#[test]
fn the_object_draws_what_the_host_draws() {
    let off = |shaped_on_device, scored_on_device, masked_on_device| OperatorKernels {
        shaped_on_device,
        scored_on_device,
        masked_on_device,
        ..kernels()
    };
    let mut host = Sampler::new(VOCAB);
    let (mut drawn, mut ended, mut scored) = (0, 0, 0);
    for kernels in [kernels(), off(false, true, true), off(true, false, true), off(true, true, false)] {
        let what = format!("{kernels:?}");
        let options = OperatorOptions { kernels: Some(kernels), ..alone(OperatorDtype::F32) };
        let mut model = loaded(&fixture("tiny-a"), &options).unwrap();
        for seed in 0..25 {
            let mut random = Random::new(seed);
            let wishes = Wishes((0..ROWS).map(|_| Wish::random(&mut random)).collect());
            with_step(&wishes, |batch| {
                let (mut logits, mut have, mut want) =
                    (Vec::new(), StepOutput::default(), StepOutput::default());
                model.logits(batch, &mut logits).unwrap();
                let mut logits = logits.chunks_exact_mut(VOCAB);
                for (index, row) in batch.rows.iter().enumerate() {
                    match &row.sample {
                        None => want.push(RowOutcome::None),
                        Some(params) => {
                            let own = logits.next().unwrap();
                            host.draw_row(own, params, batch.shaping.shaping(index), &mut want);
                        }
                    }
                }
                model.step(batch, &mut have).unwrap();
                assert_eq!(have.rows, want.rows, "seed {seed}, {what}");
                for row in 0..ROWS {
                    assert_same(have.logprobs(row), want.logprobs(row), &format!("seed {seed}, row {row}"));
                    scored += have.logprobs(row).len();
                    drawn += usize::from(have.token(row).is_some());
                    ended += usize::from(have.token(row).is_none());
                }
            });
        }
    }
    assert!(drawn > 300 && ended > 60 && scored > 1500, "{drawn} drawn, {ended} not, {scored} scores");
}
