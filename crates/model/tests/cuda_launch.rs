//! How a step's kernels are launched changes when they run and no bit of what they compute: one by one, as captured
//! graphs, or begun before the ones ahead of them have ended. On the emulated device, which begins such a kernel before
//! the one ahead of it: one that does not wait for what it needs reads what was there before.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use crate::driver::{Policy, Request, run};
use crate::emulated;
use crate::emulated::model_of_64;
use pinion_cuda::CudaDtype;
use pinion_model::cuda::{CudaDecoder, CudaOptions, DecodePath, load_cuda};
use pinion_model::{Model, OwnedBatch, Pipeline, SampleParams, WarmUp};
use std::path::Path;

/// Few sizes, as each is run before ready.
const SHAPES: WarmUp = WarmUp { max_rows: 4, max_tokens: 64 };

fn options() -> CudaOptions {
    CudaOptions { max_rows: SHAPES.max_rows, max_tokens: SHAPES.max_tokens, ..emulated::options() }
}

fn ready(folder: &Path, options: &CudaOptions) -> CudaDecoder {
    let mut model = load_cuda(folder, options).unwrap();
    Pipeline::warm_up(&mut model, &SHAPES).unwrap();
    model
}

/// Requests that come in turn, in chunks, with a preemption: steps of decode rows, of prompt chunks, of both.
fn ids(model: &mut CudaDecoder) -> Vec<Vec<u32>> {
    let request = |index: usize| Request {
        prompt: (0..[3, 50, 17, 40][index] as u32).map(|at| (at * 7 + index as u32) % 61).collect(),
        output_len: 6,
        arrival: index,
        params: SampleParams { temperature: 1.0, seed: index as u64, ..SampleParams::GREEDY },
    };
    let requests: Vec<Request> = (0..4).map(request).collect();
    run(model, &requests, Policy { chunk: 40, preempt_at: &[5] })
}

/// Logits of a prompt, of decode rows alone, and of both in one step.
fn logits(model: &mut CudaDecoder) -> Vec<u32> {
    let tokens: Vec<u32> = (0..70).map(|at| at * 11 % 61).collect();
    let tables = [[1, 5, 3, 9, 7], [20, 12, 14, 16, 18]];
    let mut bits = Vec::new();
    for chunks in [&[(0, 0..40), (1, 0..3)][..], &[(0, 40..41), (1, 3..4)], &[(0, 41..42), (1, 4..50)]] {
        let mut batch = OwnedBatch::default();
        for (lane, range) in chunks.iter().cloned() {
            batch.push(
                lane,
                range.start,
                &tokens[range.start as usize..range.end as usize],
                &tables[lane as usize],
            );
        }
        let mut values = Vec::new();
        model.logits(&batch.as_step(), &mut values).unwrap();
        bits.extend(values.iter().map(|value| value.to_bits()));
    }
    bits
}

#[test]
fn the_way_of_launching_changes_no_bit() {
    let folder = model_of_64("launches");
    // Graphs, dependent launches.
    let every_way = &[(true, false), (false, true), (true, true)][..];
    for (dtype, fused, decode, ways) in [
        (CudaDtype::F16, true, DecodePath::Graph, every_way),
        (CudaDtype::F32, false, DecodePath::Graph, &every_way[1..2]),
        (CudaDtype::Bf16, true, DecodePath::Fused, &every_way[2..]),
    ] {
        let plain = CudaOptions {
            dtype,
            fused_norms: fused,
            fused_products: fused,
            decode,
            graphs: false,
            ..options()
        };
        let mut model = ready(&folder, &plain);
        let want = (ids(&mut model), logits(&mut model));
        for &(graphs, dependent_launch) in ways {
            let options = CudaOptions { graphs, dependent_launch, ..plain.clone() };
            let mut model = ready(&folder, &options);
            let replays = model.counts().replays;
            let have = (ids(&mut model), logits(&mut model));
            assert!(have.0 == want.0, "{:?}, not {:?}, with {options:?}", have.0, want.0);
            assert!(have.1 == want.1, "other logits with {options:?}");
            assert_eq!(model.counts().replays > replays, graphs, "graphs are replayed, if asked for");
        }
    }
}

/// Graphs of steps with prompt chunks split the contexts of more single queries than there are, so the last bits may
/// differ.
#[test]
fn graphs_of_steps_with_prompt_chunks_give_the_same_tokens() {
    let folder = &model_of_64("mixed-launches");
    let plain = CudaOptions { dtype: CudaDtype::F16, ..options() };
    let mut model = ready(folder, &plain);
    let values =
        |model: &mut CudaDecoder| logits(model).into_iter().map(f32::from_bits).collect::<Vec<f32>>();
    let (ids_wanted, logits_wanted) = (ids(&mut model), values(&mut model));
    let largest = logits_wanted.iter().fold(0f32, |most, value| most.max(value.abs()));
    for dependent_launch in [false, true] {
        let options = CudaOptions { mixed_graphs: true, dependent_launch, ..plain.clone() };
        let mut model = ready(folder, &options);
        // Five padded sizes from 16 to 64 tokens, with no single query or up to four; and the three of decode steps.
        assert_eq!(model.graph_count(), 5 * 2 + 3);
        let before = model.counts();
        assert_eq!(ids(&mut model), ids_wanted);
        let have = values(&mut model);
        let after = model.counts();
        let error = have.iter().zip(&logits_wanted).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(have.len() == logits_wanted.len() && error <= 0.002 * largest, "{error:e} of {largest:e}");
        // Behind the graph of a step with rows of logits: sum, gather, norm, product, sampler.
        let (replays, launches) = (after.replays - before.replays, after.launches - before.launches);
        assert!(replays > 10 && launches <= 8 * replays, "{replays} replays, {launches} launches");
        assert_eq!(after.captures, before.captures, "nothing is captured after ready");
    }
}
