//! Steps as the engine's loop sees them, and what stands before them: weights on the device.

use crate::{BATCHES, BLOCK_SIZE, CONTEXT, Outcome, options, ready};
use pinion_cuda::Device;
use pinion_model::cuda::{CudaDecoder, CudaDtype, CudaOptions, DecodePath, PrefillAttention, load_cuda};
use pinion_model::{
    MaskState, Model, Pipeline, Row, RowShaping, SampleParams, Shaping, StepBatch, StepOutput, TokenMask,
    Unshaped, WindowTables,
};
use serde_json::json;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Context and steps of each shape on an emulated device, where times mean nothing.
const EMULATED_CONTEXT: u32 = 40;
const EMULATED_REPEATS: u32 = 2;
/// Different tokens in the output of a row that is penalised.
const OUTPUT: u32 = 256;

/// From the folder to weights on the device, nothing captured.
pub(crate) fn load_only(object: &str, folder: &str) -> Outcome {
    let options = options(object, CudaDtype::F16, 1, 16);
    let began = Instant::now();
    let model = load_cuda(Path::new(folder), &options)?;
    let weight_bytes = Model::info(&model).weight_bytes;
    println!(
        "{}",
        json!({"load_s": began.elapsed().as_secs_f64(), "threads": options.load_threads, "weight_bytes": weight_bytes})
    );
    Ok(())
}

/// `rows` rows of `query` tokens each at the end of a context of `context`, block tables of their own.
pub(crate) struct Steady {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    rows: Vec<Row>,
    blocks: Vec<u32>,
}

impl Steady {
    pub(crate) fn new(row_count: u32, query_len: u32, context_len: u32, vocab: u32, seed: u32) -> Steady {
        let row_blocks = context_len.div_ceil(BLOCK_SIZE);
        let row = |index: u32| Row {
            slot: index,
            query_start: index * query_len,
            query_len,
            context_len,
            prompt_len: context_len,
            blocks_start: index * row_blocks,
            blocks_len: row_blocks,
            sample: Some(SampleParams::GREEDY),
            scored: None,
        };
        Steady {
            tokens: (0..row_count * query_len).map(|index| (index + seed) * 7919 % vocab).collect(),
            positions: (0..row_count).flat_map(|_| context_len - query_len..context_len).collect(),
            rows: (0..row_count).map(row).collect(),
            blocks: (0..row_count * row_blocks).collect(),
        }
    }

    pub(crate) fn batch(&self) -> StepBatch<'_> {
        StepBatch {
            tokens: &self.tokens,
            positions: &self.positions,
            rows: &self.rows,
            blocks: &self.blocks,
            copies: &[],
            windows: WindowTables::NONE,
            shaping: &Unshaped,
        }
    }
}

/// What every row of `steps` does to its logits.
#[derive(Debug)]
struct Asked {
    output: Vec<u32>,
    is_penalised: bool,
    mask: Option<Arc<dyn TokenMask>>,
}

impl RowShaping for Asked {
    fn shaping(&self, _row: usize) -> Option<Shaping<'_>> {
        (self.is_penalised || self.mask.is_some()).then_some(Shaping {
            output: &self.output,
            repetition_penalty: if self.is_penalised { 1.2 } else { 1.0 },
            mask: self.mask.as_ref(),
            ..Shaping::OFF
        })
    }
}

/// Allows every token of a vocabulary.
#[derive(Debug)]
struct All(u32);

impl TokenMask for All {
    fn read(&self, _index: u64, bits: &mut Vec<u32>) -> MaskState {
        bits.clear();
        bits.resize(self.0.div_ceil(u32::BITS) as usize, u32::MAX);
        MaskState::Ready
    }
}

/// Times steps as the engine's loop sees them: two in flight, wall clock over many.
pub(crate) fn steps(object: &str, folder: &str, switches: &[&str]) -> Outcome {
    let has = |name: &str| switches.contains(&name);
    let dtype = match switches {
        _ if switches.contains(&"bf16") => CudaDtype::Bf16,
        _ if switches.contains(&"f32") => CudaDtype::F32,
        _ => CudaDtype::F16,
    };
    let is_emulated = Device::open(Path::new(object), 0)?.facts().emulated;
    let (batches, repeats) =
        if is_emulated { (&BATCHES[..2], EMULATED_REPEATS) } else { (&BATCHES[..], 200) };
    let max_rows = batches[batches.len() - 1];
    let prefill =
        if switches.contains(&"plain-prefill") { PrefillAttention::Plain } else { PrefillAttention::Auto };
    let options = CudaOptions {
        graphs: !switches.contains(&"no-graphs"),
        mixed_graphs: has("mixed-graphs"),
        dependent_launch: has("dependent"),
        fused_norms: !has("no-fused-norms"),
        fused_products: !has("no-fused-products"),
        prefill,
        decode: if switches.contains(&"fused") { DecodePath::Fused } else { DecodePath::Graph },
        // It costs an emulated device more than the steps do: there the step without switches has it for all.
        measured_products: !has("first-algorithm") && (!is_emulated || switches.is_empty()),
        shaped_on_device: !has("host-sampler"),
        scored_on_device: !has("host-sampler"),
        masked_on_device: !has("host-sampler"),
        ..options(object, dtype, max_rows, if is_emulated { 32 } else { 2048 })
    };
    let began = Instant::now();
    let mut model = ready(folder, &options)?;
    let info = Model::info(&model).clone();
    println!(
        "{}",
        json!({"load_and_capture_s": began.elapsed().as_secs_f64(), "weight_bytes": info.weight_bytes})
    );
    let context = if is_emulated { EMULATED_CONTEXT } else { CONTEXT }.min(info.max_context);
    let all = Arc::new(All(info.vocab_size)) as Arc<dyn TokenMask>;
    let asked = Asked {
        output: (0..OUTPUT.min(info.vocab_size)).collect(),
        is_penalised: has("penalised"),
        mask: has("masked").then_some(all),
    };
    let mut shapes: Vec<(u32, u32)> = batches.iter().map(|&rows| (rows, 1)).collect();
    shapes.extend(if is_emulated { vec![(1, 16)] } else { vec![(1, 256), (4, 256), (8, 256)] });
    for (rows, query) in shapes {
        let mut steady = Steady::new(rows, query, context.max(query), info.vocab_size, 0);
        steady.rows.iter_mut().for_each(|row| row.sample = Some(drawing(switches)));
        let ms = time(&mut model, &steady, &asked, if query == 1 { repeats } else { repeats.min(40) })?;
        // Weights once, and keys and values of every row.
        let bytes = info.weight_bytes + u64::from(rows * context.div_ceil(BLOCK_SIZE)) * info.kv_block_bytes;
        println!(
            "{}",
            json!({"rows": rows, "query": query, "context": context, "switches": switches, "dtype": dtype.name(),
                "step_ms": ms, "least_bytes": bytes, "TB_s": bytes as f64 / ms / 1e9})
        );
    }
    Ok(())
}

/// How the rows of `steps` draw.
fn drawing(switches: &[&str]) -> SampleParams {
    let logprobs = switches.contains(&"logprobs").then_some(5);
    match switches {
        _ if switches.contains(&"sampled") => {
            SampleParams { temperature: 1.0, top_k: 0, top_p: 1.0, logprobs, ..SampleParams::GREEDY }
        }
        _ if switches.contains(&"nucleus") => {
            SampleParams { temperature: 0.8, top_k: 50, top_p: 0.95, logprobs, ..SampleParams::GREEDY }
        }
        _ => SampleParams { logprobs, ..SampleParams::GREEDY },
    }
}

fn time(
    model: &mut CudaDecoder,
    steady: &Steady,
    asked: &Asked,
    repeats: u32,
) -> Result<f64, Box<dyn Error>> {
    let mut out = StepOutput::default();
    let batch = StepBatch { shaping: asked, ..steady.batch() };
    let mut round = |count: u32| -> Result<f64, Box<dyn Error>> {
        let began = Instant::now();
        model.launch(&batch)?;
        for _ in 1..count {
            model.launch(&batch)?;
            model.retire(&mut out)?;
        }
        model.retire(&mut out)?;
        Ok(began.elapsed().as_secs_f64() * 1e3 / f64::from(count))
    };
    if repeats == EMULATED_REPEATS {
        return round(repeats);
    }
    round(repeats.min(10))?;
    let mut rounds = [round(repeats)?, round(repeats)?, round(repeats)?];
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[1])
}
