//! The CUDA engine beside others: its logits beside the CPU engine's, its greedy tokens for other tools.

use crate::{BLOCK_SIZE, CONTEXT, Outcome, options, ready};
use pinion_cuda::Device;
use pinion_model::cuda::{CudaDtype, CudaOptions};
use pinion_model::{Model, OwnedBatch, RowOutcome, SampleParams, StepOutput};
use serde_json::json;
use std::error::Error;
use std::path::Path;

/// What `greedy` generates for each prompt.
const GREEDY_TOKENS: u32 = 32;

/// Logits of a prompt, then of decode steps over the same cache, in each dtype.
#[cfg(feature = "torch")]
pub(crate) fn parity(object: &str, folder: &str) -> Outcome {
    use crate::steps::Steady;
    use pinion_model::cuda::DecodePath;
    use pinion_model::{DtypeChoice, ModelOptions, load};
    let cpu = ModelOptions { dtype: DtypeChoice::F32, block_size: BLOCK_SIZE, ..ModelOptions::default() };
    let mut cpu = load(Path::new(folder), &cpu)?;
    let vocab = cpu.info().vocab_size;
    let is_emulated = Device::open(Path::new(object), 0)?.facts().emulated;
    let shapes = match is_emulated {
        true => [(1, 20, 20), (2, 9, 9), (2, 1, 10), (1, 1, 21)],
        false => [(1, 40, 40), (2, 70, 70), (2, 1, 71), (1, 1, 41)],
    };
    let prompts = shapes.map(|(rows, query, context)| Steady::new(rows, query, context, vocab, query));
    let mut want = vec![Vec::new(); prompts.len()];
    for (prompt, want) in prompts.iter().zip(&mut want) {
        cpu.logits(&prompt.batch(), want)?;
    }
    let dtypes = [(CudaDtype::F32, 1e-4), (CudaDtype::F16, 0.01), (CudaDtype::Bf16, 0.05)];
    for ((dtype, tolerance), decode) in
        dtypes.into_iter().flat_map(|dtype| [(dtype, DecodePath::Graph), (dtype, DecodePath::Fused)])
    {
        // What measuring algorithms finds is no subject here, and costs an emulated device a minute.
        let max_tokens = if is_emulated { 32 } else { 256 };
        let options =
            CudaOptions { decode, measured_products: !is_emulated, ..options(object, dtype, 4, max_tokens) };
        let mut model = ready(folder, &options)?;
        for (index, (prompt, want)) in prompts.iter().zip(&want).enumerate() {
            let mut have = Vec::new();
            model.logits(&prompt.batch(), &mut have)?;
            let largest = want.iter().fold(0f32, |max, value| max.max(value.abs()));
            let error = have.iter().zip(want).fold(0f32, |max, (a, b)| max.max((a - b).abs())) / largest;
            println!(
                "{}",
                json!({"parity": dtype.name(), "decode": format!("{decode:?}"), "step": index, "relative_error": error,
                    "tolerance": tolerance})
            );
            if error.is_nan() || error > tolerance {
                return Err(
                    format!("{} {decode:?} step {index}: relative error {error:e}", dtype.name()).into()
                );
            }
        }
    }
    Ok(())
}

#[cfg(not(feature = "torch"))]
pub(crate) fn parity(_: &str, _: &str) -> Outcome {
    Err("this build has no CPU engine to compare with".into())
}

/// Greedy tokens of four prompts of different lengths, alone and all at once, in each dtype. Token i of the prompt of
/// length n is (i + n) * 7919 modulo the vocabulary.
pub(crate) fn greedy(object: &str, folder: &str) -> Outcome {
    let is_emulated = Device::open(Path::new(object), 0)?.facts().emulated;
    for dtype in [CudaDtype::F32, CudaDtype::F16, CudaDtype::Bf16] {
        let max_tokens = if is_emulated { 32 } else { 512 };
        let options =
            CudaOptions { measured_products: !is_emulated, ..options(object, dtype, 4, max_tokens) };
        let mut model = ready(folder, &options)?;
        let (prompts, count) = prompts_of(Model::info(&model).vocab_size, is_emulated);
        let together = generate(&mut model, &prompts, count)?;
        for (prompt, together) in prompts.iter().zip(&together) {
            let alone = generate(&mut model, std::slice::from_ref(prompt), count)?;
            println!(
                "{}",
                json!({"dtype": dtype.name(), "prompt": prompt, "alone": alone[0], "together": together})
            );
        }
    }
    Ok(())
}

/// The prompts, and how many tokens come after each.
pub(crate) fn prompts_of(vocab: u32, is_emulated: bool) -> (Vec<Vec<u32>>, u32) {
    let lens: &[u32] = if is_emulated { &[3, 10] } else { &[1, 40, 100, 300] };
    let prompt = |&len: &u32| (0..len).map(|i| (i + len) * 7919 % vocab).collect();
    (lens.iter().map(prompt).collect(), if is_emulated { 4 } else { GREEDY_TOKENS })
}

/// `count` greedy tokens after each prompt, all of them in one batch.
pub(crate) fn generate(
    model: &mut dyn Model,
    prompts: &[Vec<u32>],
    count: u32,
) -> Result<Vec<Vec<u32>>, Box<dyn Error>> {
    let mut sequences = prompts.to_vec();
    let mut out = StepOutput::default();
    let row_blocks = CONTEXT.div_ceil(BLOCK_SIZE) * 2;
    for index in 0..count {
        let mut batch = OwnedBatch::default();
        for (lane, sequence) in sequences.iter().enumerate() {
            let first = if index == 0 { 0 } else { sequence.len() - 1 };
            let blocks: Vec<u32> = (lane as u32 * row_blocks..(lane as u32 + 1) * row_blocks).collect();
            let row = batch.push(lane as u32, first as u32, &sequence[first..], &blocks);
            row.prompt_len = prompts[lane].len() as u32;
            row.sample = Some(SampleParams { position: u64::from(index), ..SampleParams::GREEDY });
        }
        model.step(&batch.as_step(), &mut out)?;
        for (sequence, outcome) in sequences.iter_mut().zip(&out.rows) {
            let RowOutcome::Token(token) = outcome else { return Err(format!("{outcome:?}").into()) };
            sequence.push(*token);
        }
    }
    Ok(sequences.iter().zip(prompts).map(|(ids, prompt)| ids[prompt.len()..].to_vec()).collect())
}
