//! The fused decode step in the engine, on the emulated device: fewer launches, the same logits. That it gives the
//! goldens' ids beside everything else that the engine does is in `cuda.rs`. One test: the counts are the process's.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::emulated;
use pinion_cuda::CudaDtype;
use pinion_model::cuda::{CudaDecoder, CudaKv, CudaOptions, DecodePath, load_cuda};
use pinion_model::{
    KvSize, Model, Pipeline, Row, SampleParams, StepBatch, StepOutput, Unshaped, WarmUp, WindowTables,
};

fn ready(decode: DecodePath, dtype: CudaDtype) -> CudaDecoder {
    let options = CudaOptions {
        dtype,
        block_size: 4,
        kv: CudaKv::Size(KvSize::Blocks(64)),
        max_rows: 12,
        max_tokens: 16,
        graphs: false,
        decode,
        ..emulated::options()
    };
    let mut model = load_cuda(&emulated::fixture("tiny-a"), &options).unwrap();
    Pipeline::warm_up(&mut model, &WarmUp { max_rows: 12, max_tokens: 16 }).unwrap();
    model
}

/// A fused decode step is two launches, kernel and sampler, where the layers take seven each; above eight rows it is as
/// without. Logits of the two agree in every dtype, over a cache that both wrote.
#[test]
fn a_fused_step_is_two_launches_with_the_logits_of_the_others() {
    let launches = |decode: DecodePath, rows: u32, dtype: CudaDtype| {
        let mut model = ready(decode, dtype);
        let table: Vec<u32> = (0..rows * 2).collect();
        let row_of = |index: u32, context: u32| Row {
            slot: index,
            query_start: index,
            query_len: 1,
            context_len: context,
            prompt_len: 1,
            blocks_start: 2 * index,
            blocks_len: 2,
            sample: Some(SampleParams::GREEDY),
            scored: None,
        };
        let (mut counts, mut logits) = (Vec::new(), Vec::new());
        for context in 1..6 {
            let rows_now: Vec<Row> = (0..rows).map(|index| row_of(index, context)).collect();
            let batch = StepBatch {
                tokens: &(0..rows).map(|index| (index * 31 + context * 7) % 257).collect::<Vec<_>>(),
                positions: &vec![context - 1; rows as usize],
                rows: &rows_now,
                blocks: &table,
                copies: &[],
                windows: WindowTables::NONE,
                shaping: &Unshaped,
            };
            let before = model.counts().launches;
            Model::step(&mut model, &batch, &mut StepOutput::default()).unwrap();
            counts.push(model.counts().launches - before);
            model.logits(&batch, &mut logits).unwrap();
        }
        (*counts.last().unwrap(), logits)
    };
    for (rows, dtype, tolerance) in [
        (1, CudaDtype::F32, 1e-4),
        (3, CudaDtype::F16, 0.01),
        (8, CudaDtype::Bf16, 0.05),
        (9, CudaDtype::F32, 0.0),
    ] {
        let (graph, want) = launches(DecodePath::Graph, rows, dtype);
        let (fused, have) = launches(DecodePath::Fused, rows, dtype);
        let expected = if rows <= 8 { 2 } else { graph };
        assert!(graph >= 18 && fused == expected, "{rows} rows: {graph} launches, fused {fused}");
        let largest = want.iter().fold(0f32, |max, value| max.max(value.abs()));
        let error = have.iter().zip(&want).fold(0f32, |max, (a, b)| max.max((a - b).abs())) / largest;
        assert!(
            have.len() == want.len() && error <= tolerance,
            "{rows} rows, {dtype:?}: relative error {error:e}"
        );
    }
}
