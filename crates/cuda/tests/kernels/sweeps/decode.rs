//! The sweep of the fused decode step: random models, rows, contexts, grids and depths of prefetch.
//!
//! Tolerance: that of one kernel for each of the products and norms that a value passes through, up to 8 in f32 and 6
//! in the shorter types, whose roundings the twin makes at the same places.

use super::{Bench, DTYPES, Scale, check_near, tolerance};
use pinion_cuda::{
    BiasedWeight, CudaActivation, CudaDtype, DECODE_PHASES, DecodeBuffers, DecodeLayer, DecodeModel,
    DecodePlan, DecodeShape, DecodeSplit, DecodeStep, DecodeTables, Device, FUTURE_TOKEN, NO_LANE, Span,
    Stamp, twin,
};
use pinion_random::Random;

/// A random GPT-2 with a paged cache, on the device and in the twin.
struct Case {
    shape: DecodeShape,
    model: DecodeModel,
    layers: Vec<twin::Layer>,
    tables: twin::Tables,
    caches: Vec<twin::Cache>,
    spans: Vec<Span>,
    blocks: Vec<Vec<u32>>,
}

/// Values around `around`, small enough that nothing saturates.
fn values(
    bench: &Bench,
    dtype: CudaDtype,
    random: &mut Random,
    count: usize,
    around: f32,
    width: f32,
) -> (Span, Vec<f32>) {
    let values: Vec<f32> = (0..count).map(|_| super::round(dtype, around + width * random.value())).collect();
    (bench.put(dtype, &values), values)
}

/// Every dtype in turn; of each some models whose rows are wider than the lanes of a norm ask for at once.
fn shape_of(seed: u64, random: &mut Random, context_max: usize) -> DecodeShape {
    let head_dim = random.pick(&[16, 32, 64, 128]);
    let heads = match head_dim {
        _ if matches!(seed % 12, 1 | 5 | 9) => 1152 / head_dim,
        16 => 2 * (1 + random.below(3)),
        32 => 1 + random.below(4),
        _ => 1 + random.below(2),
    };
    DecodeShape {
        hidden: (heads * head_dim) as u32,
        // Up to more steps of a tile than a block has warps, and up to more tiles than it sums in one round.
        inner: 32 * (1 + random.below(20) as u32),
        heads: heads as u32,
        vocab: 1 + random.below(300) as u32,
        positions: context_max as u32,
        block_size: random.pick(&[1, 4, 16, 32]),
        activation: random.pick(&[CudaActivation::GeluTanh, CudaActivation::GeluErf]),
        epsilon: 1e-5,
        dtype: DTYPES[seed as usize % 3],
    }
}

impl Case {
    fn new(bench: &Bench, seed: u64, random: &mut Random, lanes: usize, context_max: usize) -> Case {
        let shape = shape_of(seed, random, context_max);
        let (dtype, block_size) = (shape.dtype, shape.block_size as usize);
        let [hidden, inner, heads, vocab] =
            [shape.hidden, shape.inner, shape.heads, shape.vocab].map(|axis| axis as usize);
        let head_dim = hidden / heads;
        let stride = context_max.div_ceil(block_size);
        let mut order: Vec<u32> = (0..(lanes * stride + 2) as u32).collect();
        (1..order.len()).rev().for_each(|i| order.swap(i, random.below(i + 1)));
        let blocks: Vec<Vec<u32>> = order.chunks(stride).take(lanes).map(<[u32]>::to_vec).collect();
        let cache_len = order.len() * heads * 2 * block_size * head_dim;
        let (mut layers, mut caches, mut spans, mut device_layers) = (vec![], vec![], vec![], vec![]);
        for layer in 0..if hidden > 1000 { 1 } else { 1 + random.below(3) } {
            let scale = 1.0 / (head_dim as f32).sqrt() / (1 + layer) as f32;
            let mut host: [(Vec<f32>, Vec<f32>); 6] = Default::default();
            let axes = [
                (hidden, 0),
                (3 * hidden, hidden),
                (hidden, hidden),
                (hidden, 0),
                (inner, hidden),
                (hidden, inner),
            ];
            let pairs = std::array::from_fn::<BiasedWeight, 6, _>(|i| {
                let (outputs, inputs) = axes[i];
                let (weight, weight_values) = match inputs {
                    0 => values(bench, dtype, random, outputs, 1.0, 0.5),
                    _ => values(bench, dtype, random, outputs * inputs, 0.0, 1.7 / (inputs as f32).sqrt()),
                };
                let (bias, bias_values) = values(bench, dtype, random, outputs, 0.0, 0.3);
                host[i] = (weight_values, bias_values);
                BiasedWeight { weight, bias }
            });
            let (cache, cache_values) = bench.random(dtype, random, cache_len);
            let [norm, qkv, projection, norm_mlp, up, down] = pairs;
            device_layers.push(DecodeLayer { norm, qkv, projection, norm_mlp, up, down, cache, scale });
            layers.push(twin::Layer { weights: host, scale });
            caches.push(twin::Cache { values: cache_values, kv_heads: heads, block_size, head_dim });
            spans.push(cache);
        }
        let (tokens, token_values) = values(bench, dtype, random, vocab * hidden, 0.0, 1.0);
        let (positions, position_values) = values(bench, dtype, random, context_max * hidden, 0.0, 0.5);
        let (scale, scale_values) = values(bench, dtype, random, hidden, 1.0, 0.5);
        let (shift, shift_values) = values(bench, dtype, random, hidden, 0.0, 0.3);
        let (head, head_values) =
            values(bench, dtype, random, vocab * hidden, 0.0, 1.7 / (hidden as f32).sqrt());
        let norm_final = BiasedWeight { weight: scale, bias: shift };
        let device_tables = DecodeTables { tokens, positions, norm_final, head };
        let tables = twin::Tables {
            tokens: token_values,
            positions: position_values,
            norm_final: (scale_values, shift_values),
            head: head_values,
        };
        let model = DecodeModel::new(&bench.stream, shape, device_tables, &device_layers).expect("a model");
        Case { shape, model, layers, tables, caches, spans, blocks }
    }

    /// The twin's logits of each row; zeros for padding, whose logits are not read.
    fn expected(&mut self, tokens: &[u32], lanes: &[u32], positions: &[u32]) -> Vec<Vec<f32>> {
        let (dtype, vocab) = (self.shape.dtype, self.shape.vocab as usize);
        let how = (self.shape.activation, self.shape.epsilon);
        let mut logits = Vec::new();
        for ((&token, &lane), &position) in tokens.iter().zip(lanes).zip(positions) {
            if lane == NO_LANE {
                logits.push(vec![0.0; vocab]);
                continue;
            }
            let (table, at) = (&self.blocks[lane as usize], (token, position as usize));
            let round = |value| super::round(dtype, value);
            logits.push(twin::decode_step(
                &self.layers,
                &self.tables,
                &mut self.caches,
                table,
                at,
                how,
                round,
            ));
        }
        logits
    }
}

/// What one launch reads, and room for what it writes.
struct Launch {
    step: DecodeStep,
    rows: usize,
}

impl Launch {
    fn new(
        bench: &Bench,
        case: &Case,
        [tokens, lanes, positions, lane_tokens]: [&[u32]; 4],
        splits: u32,
    ) -> Launch {
        let (shape, rows) = (&case.shape, tokens.len());
        let row = |width: u32, size: usize| bench.room(rows * width as usize * size);
        let size = shape.dtype.size();
        let buffers = DecodeBuffers {
            residual: row(shape.hidden, size),
            qkv: row(3 * shape.hidden, size),
            attended: row(shape.hidden, size),
            inner: row(shape.inner, size),
            logits: row(shape.vocab, 4),
        };
        let parts = rows * shape.heads as usize;
        let head_dim = (shape.hidden / shape.heads) as usize;
        let split = DecodeSplit {
            splits,
            partials: bench.room(parts * splits as usize * (head_dim + 2) * 4),
            counters: bench.words(&vec![0; parts]),
        };
        let step = DecodeStep {
            tokens: bench.words(tokens),
            lanes: bench.words(lanes),
            positions: bench.words(positions),
            tables: bench.words(&case.blocks.concat()),
            table_stride: case.blocks[0].len() as u32,
            lane_tokens: bench.words(lane_tokens),
            buffers,
            split: (splits > 1).then_some(split),
            stamps: None,
        };
        Launch { step, rows }
    }

    fn run(&self, bench: &Bench, case: &Case, plan: &DecodePlan) -> Vec<f32> {
        bench.stream.decode_step(&case.model, plan, &self.step).expect("a launch");
        let logits = bench.get(CudaDtype::F32, self.step.buffers.logits);
        assert_eq!(logits.len(), self.rows * case.shape.vocab as usize);
        logits
    }
}

/// The next token of several sequences, with padding and future tokens, on grids and with prefetches of any size.
pub(crate) fn fused_decode(device: &Device, scale: Scale) {
    let bench = Bench::new(device);
    for seed in 0..scale.cases {
        let mut random = Random::new(6000 + seed);
        let real = 1 + random.below(6);
        let mut case = Case::new(&bench, seed, &mut random, real, scale.context_max);
        let mut lanes: Vec<u32> = (0..real as u32).collect();
        (0..random.below(3)).for_each(|_| lanes.insert(random.below(lanes.len() + 1), NO_LANE));
        let positions: Vec<u32> = lanes.iter().map(|_| random.below(scale.context_max) as u32).collect();
        let vocab = case.shape.vocab as usize;
        let known: Vec<u32> = lanes.iter().map(|_| random.below(vocab) as u32).collect();
        let mut lane_tokens = vec![0; real];
        let tokens: Vec<u32> = (0..lanes.len())
            .map(|row| {
                if lanes[row] == NO_LANE || random.below(2) == 0 {
                    return known[row];
                }
                lane_tokens[lanes[row] as usize] = known[row];
                FUTURE_TOKEN
            })
            .collect();
        let splits = random.pick(&[1u32, 2, 3, 7]);
        let launch =
            |case: &Case| Launch::new(&bench, case, [&tokens, &lanes, &positions, &lane_tokens], splits);
        let full = case.model.plan(&bench.stream, lanes.len() as u32).expect("a plan");
        let have = launch(&case).run(&bench, &case, &full);
        let want = case.expected(&known, &lanes, &positions);
        let dtype = case.shape.dtype;
        let near = if dtype == CudaDtype::F32 { 8.0 } else { 6.0 } * tolerance(dtype);
        for (row, want) in want.iter().enumerate().filter(|(row, _)| lanes[*row] != NO_LANE) {
            check_near("fused decode", seed, &have[row * vocab..(row + 1) * vocab], want, near);
        }
        for (cache, span) in case.caches.iter().zip(&case.spans) {
            check_near("fused append", seed, &bench.get(dtype, *span), &cache.values, near);
        }
        // Neither the grid nor the depth of the prefetch nor the order of threads shows in a single bit.
        for _ in 0..2 {
            let blocks =
                if device.facts().emulated { 1 + random.below(4) as u32 } else { 1 + full.blocks / 2 };
            let group_slots = 1 + random.below(full.group_slots as usize) as u32;
            let plan = DecodePlan { blocks, group_slots, ..full };
            let mut launch = launch(&case);
            let stamps = bench.raw(&vec![0; case.model.stamp_bytes(&plan)]);
            launch.step.stamps = Some(stamps);
            let again = launch.run(&bench, &case, &plan);
            check_stamps(&bench, stamps, plan.blocks as usize, seed);
            let same = have.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "fused decode, seed {seed}: {plan:?} gives other logits");
        }
    }
}

/// Each block's stamps are there, but for what attention does not note, and in their order.
fn check_stamps(bench: &Bench, stamps: Span, blocks: usize, seed: u64) {
    let mut bytes = vec![0; stamps.bytes()];
    bench.stream.download(&mut bytes, stamps).expect("a copy");
    let clocks: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|b| b.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)))
        .collect();
    for block in 0..blocks {
        let of_block: Vec<u64> = clocks.iter().skip(block).step_by(blocks).copied().collect();
        for (phase, stamps) in of_block.chunks_exact(4).enumerate() {
            let is_attention = phase % DECODE_PHASES.len() == 1;
            assert_eq!(
                stamps[Stamp::Brought as usize] == 0,
                is_attention,
                "seed {seed}, phase {phase}: {stamps:?}"
            );
        }
        let noted: Vec<u64> = of_block.into_iter().filter(|&clock| clock != 0).collect();
        assert!(noted.is_sorted(), "seed {seed}, block {block}: {noted:?}");
    }
}

/// A layer all of whose operands are the same.
fn layer_of(pair: BiasedWeight, cache: Span) -> DecodeLayer {
    DecodeLayer {
        norm: pair,
        qkv: pair,
        projection: pair,
        norm_mlp: pair,
        up: pair,
        down: pair,
        cache,
        scale: 1.0,
    }
}

/// What the kernel does not take is told at the plan, or at the launch before anything runs.
pub(crate) fn refused_decode_steps(device: &Device) {
    let bench = Bench::new(device);
    let all = bench.room(4 << 20);
    let pair = BiasedWeight { weight: all, bias: all };
    let layer = layer_of(pair, all);
    let tables = DecodeTables { tokens: all, positions: all, norm_final: pair, head: all };
    let good = DecodeShape {
        hidden: 32,
        inner: 32,
        heads: 2,
        vocab: 3,
        positions: 5,
        block_size: 4,
        activation: CudaActivation::GeluTanh,
        epsilon: 1e-5,
        dtype: CudaDtype::F32,
    };
    let model =
        |shape, head| DecodeModel::new(&bench.stream, shape, DecodeTables { head, ..tables }, &[layer; 1]);
    let short = model(good, all.part(0, 100)).expect_err("a refusal");
    assert!(short.message.contains("the head is shorter"), "{short}");
    let outside = "outside the kernel's contract";
    for (shape, rows, says) in [
        (good, 0, outside),
        (good, 9, outside),
        (DecodeShape { hidden: 48, heads: 3, ..good }, 1, outside),
        (DecodeShape { heads: 3, ..good }, 1, outside),
        (DecodeShape { inner: 48, dtype: CudaDtype::F16, ..good }, 1, outside),
        (DecodeShape { inner: 1 << 14, ..good }, 8, "shared memory"),
    ] {
        let error = model(shape, all).expect("a model").plan(&bench.stream, rows).expect_err("a refusal");
        assert!(error.message.contains(says), "{error} does not say {says:?}");
    }
    let model = model(good, all).expect("a model");
    let plan = model.plan(&bench.stream, 2).expect("a plan");
    let buffers = DecodeBuffers { residual: all, qkv: all, attended: all, inner: all, logits: all };
    let step = DecodeStep {
        tokens: all,
        lanes: all,
        positions: all,
        tables: all,
        table_stride: 2,
        lane_tokens: all,
        buffers,
        split: None,
        stamps: None,
    };
    let narrow = DecodeStep { buffers: DecodeBuffers { qkv: all.part(0, 760), ..buffers }, ..step };
    let many = DecodeSplit { splits: 65, partials: all, counters: all };
    for (plan, step, says) in [
        (DecodePlan { blocks: 0, ..plan }, step, outside),
        (DecodePlan { blocks: 1025, ..plan }, step, outside),
        (DecodePlan { group_slots: 0, ..plan }, step, outside),
        (DecodePlan { group_slots: 7, ..plan }, step, outside),
        (DecodePlan { rows: 9, ..plan }, step, "9 rows are not 1 to 8"),
        (plan, narrow, "qkv is shorter"),
        (plan, DecodeStep { split: Some(many), ..step }, outside),
    ] {
        let error = bench.stream.decode_step(&model, &plan, &step).expect_err("a refusal");
        assert!(error.message.contains(says), "{error} does not say {says:?}");
    }
}
