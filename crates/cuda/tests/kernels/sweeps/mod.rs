//! Sweeps of random shapes for each kernel on any device. Each case prints its seed when it fails.
//!
//! Tolerances: the twins sum in f64. f32 results may differ by 2e-5 of the largest magnitude, bf16 by 2^-7, f16 by
//! 2^-9: two roundings of the result. Prefill attention also rounds its softmax weights to the dtype. Appends and
//! copies are bit for bit.

use half::{bf16, f16};
use pinion_cuda::{
    BiasActivation, CopyBlocks, CudaActivation, CudaDtype, Device, Embed, FUTURE_TOKEN, Gather, NO_LANE,
    Norm, NormKind, Product, ProductMethod, Span, Stream, UpdateTables, twin,
};
use pinion_random::Random;

mod attention;
mod decode;
mod layers;
mod streams;

pub(crate) use attention::{decode_attention, general_attention, prefill_attention};
pub(crate) use decode::fused_decode;
#[allow(unused_imports, reason = "the refusals are of the emulated device only")]
pub(crate) use decode::refused_decode_steps;
pub(crate) use layers::{gates_and_rotations, rms_norms_and_scales};
pub(crate) use streams::borrowed_stream;

/// How much to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Random cases of each sweep.
    pub(crate) cases: u64,
    /// Longest context.
    pub(crate) context_max: usize,
}

const DTYPES: [CudaDtype; 3] = [CudaDtype::F32, CudaDtype::Bf16, CudaDtype::F16];

fn round(dtype: CudaDtype, value: f32) -> f32 {
    match dtype {
        CudaDtype::F32 => value,
        CudaDtype::Bf16 => bf16::from_f32(value).to_f32(),
        CudaDtype::F16 => f16::from_f32(value).to_f32(),
    }
}

fn tolerance(dtype: CudaDtype) -> f32 {
    match dtype {
        CudaDtype::F32 => 2e-5,
        CudaDtype::Bf16 => 1.0 / 128.0,
        CudaDtype::F16 => 1.0 / 512.0,
    }
}

/// A device and a stream on it, with typed copies.
pub(crate) struct Bench {
    pub(crate) device: Device,
    pub(crate) stream: Stream,
}

impl Bench {
    pub(crate) fn new(device: &Device) -> Bench {
        Bench { device: device.clone(), stream: device.stream().expect("a stream") }
    }

    fn bytes(dtype: CudaDtype, values: &[f32]) -> Vec<u8> {
        match dtype {
            CudaDtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            CudaDtype::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            CudaDtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        }
    }

    pub(crate) fn raw(&self, bytes: &[u8]) -> Span {
        let span = self.device.alloc(bytes.len()).expect("memory");
        self.stream.upload(span, bytes).expect("a copy");
        span
    }

    pub(crate) fn put(&self, dtype: CudaDtype, values: &[f32]) -> Span {
        self.raw(&Self::bytes(dtype, values))
    }

    pub(crate) fn words(&self, values: &[u32]) -> Span {
        self.raw(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
    }

    pub(crate) fn room(&self, bytes: usize) -> Span {
        self.raw(&vec![0xff; bytes])
    }

    pub(crate) fn get(&self, dtype: CudaDtype, span: Span) -> Vec<f32> {
        let mut bytes = vec![0; span.bytes()];
        self.stream.download(&mut bytes, span).expect("a copy");
        let two = |b: &[u8]| [b[0], b[1]];
        match dtype {
            CudaDtype::F32 => bytes.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
            CudaDtype::Bf16 => bytes.chunks(2).map(|b| bf16::from_le_bytes(two(b)).to_f32()).collect(),
            CudaDtype::F16 => bytes.chunks(2).map(|b| f16::from_le_bytes(two(b)).to_f32()).collect(),
        }
    }

    fn random(&self, dtype: CudaDtype, random: &mut Random, count: usize) -> (Span, Vec<f32>) {
        let values: Vec<f32> = (0..count).map(|_| round(dtype, random.value())).collect();
        (self.put(dtype, &values), values)
    }
}

/// Within `tolerance` of the largest expected magnitude (at least 1).
fn check_near(what: &str, seed: u64, have: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(have.len(), want.len(), "{what}, seed {seed}");
    let largest = want.iter().fold(1.0f32, |most, value| most.max(value.abs()));
    for (index, (have, want)) in have.iter().zip(want).enumerate() {
        let near = (have - want).abs() <= tolerance * largest;
        assert!(near, "{what}, seed {seed}: element {index} is {have}, expected {want}");
    }
}

/// Residual sum and norm, with every combination of operands.
pub(crate) fn norms(device: &Device, scale: Scale) {
    let bench = Bench::new(device);
    for seed in 0..2 * scale.cases {
        let mut random = Random::new(seed);
        let dtype = random.pick(&DTYPES);
        // Longer rows than registers hold, in every dtype.
        let longest = random.pick(&[300, 600]);
        let (rows, width) = (1 + random.below(5), 8 * (1 + random.below(longest)));
        let (x, x_values) = bench.random(dtype, &mut random, rows * width);
        let (delta, delta_values) = bench.random(dtype, &mut random, rows * width);
        let (shift, shift_values) = bench.random(dtype, &mut random, width);
        let (weight, weight_values) = bench.random(dtype, &mut random, width);
        let (bias, bias_values) = bench.random(dtype, &mut random, width);
        let out = bench.room(rows * width * dtype.size());
        let (has_delta, has_shift, is_rms) = (seed & 1 == 0, seed & 2 == 0, seed & 4 == 0);
        let (has_bias, epsilon) = (!is_rms, 1e-5);
        let args = Norm {
            x,
            delta: has_delta.then_some(delta),
            delta_bias: has_shift.then_some(shift),
            weight,
            bias: has_bias.then_some(bias),
            out: Some(out),
            rows: rows as u32,
            width: width as u32,
            epsilon,
            dtype,
            kind: if is_rms { NormKind::Rms } else { NormKind::Layer },
        };
        bench.stream.norm(&args).expect("a launch");
        let (sums, normed) = twin::norm(
            &x_values,
            has_delta.then_some(&delta_values[..]),
            has_shift.then_some(&shift_values[..]),
            &weight_values,
            has_bias.then_some(&bias_values[..]),
            epsilon,
            is_rms,
            |value| round(dtype, value),
        );
        check_near("residual", seed, &bench.get(dtype, x), &sums, tolerance(dtype));
        check_near("norm", seed, &bench.get(dtype, out), &normed, tolerance(dtype));
    }
}

/// Bias and activation.
pub(crate) fn activations(device: &Device, scale: Scale) {
    let bench = Bench::new(device);
    for seed in 0..scale.cases {
        let mut random = Random::new(1000 + seed);
        let dtype = random.pick(&DTYPES);
        let (rows, width) = (1 + random.below(4), 8 * (1 + random.below(200)));
        let kinds = [CudaActivation::None, CudaActivation::GeluTanh, CudaActivation::GeluErf];
        let activation = kinds[seed as usize % 3];
        let values: Vec<f32> = (0..rows * width).map(|_| round(dtype, 6.0 * random.value())).collect();
        let x = bench.put(dtype, &values);
        let (bias, bias_values) = bench.random(dtype, &mut random, width);
        let has_bias = seed & 1 == 0;
        let bias = has_bias.then_some(bias);
        let shape = (rows as u32, width as u32);
        let args = BiasActivation { x, bias, rows: shape.0, width: shape.1, dtype, activation };
        bench.stream.bias_activation(&args).expect("a launch");
        let shift = |i: usize| if has_bias { bias_values[i % width] } else { 0.0 };
        let want: Vec<f32> = values
            .iter()
            .enumerate()
            .map(|(i, v)| round(dtype, twin::activate(v + shift(i), activation)))
            .collect();
        check_near("activation", seed, &bench.get(dtype, x), &want, tolerance(dtype));
    }
}

/// Products with tails in every axis, both methods, every epilogue.
pub(crate) fn products(device: &Device, scale: Scale) {
    let bench = Bench::new(device);
    let mut cases: Vec<(u64, usize)> = (0..3 * scale.cases).map(|seed| (seed, 0)).collect();
    // More outputs take other variants.
    cases.extend([(1, 16_384 + 3), (2, 16_384 + 1), (5, 16_384 + 2), (8, 16_390)]);
    cases.extend([(9, 1025), (10, 1030), (12, 1200), (13, 1026), (14, 1100), (16, 1027)]);
    for (seed, outputs) in cases {
        let mut random = Random::new(2000 + seed);
        let dtype = random.pick(&DTYPES);
        let is_own = seed % 4 != 3;
        let m = if is_own { 1 + random.below(8) } else { 1 + random.below(20) };
        // Long enough rows for several trips of the walk, in every variant.
        let longest = random.pick(&[120, 120, 120, 800]);
        let (n, k) = match outputs {
            0 => (1 + random.below(70), 8 * (1 + random.below(longest))),
            1..16_384 => (outputs, 8 * (1 + random.below(300))),
            _ => (outputs, 8 * (1 + random.below(8))),
        };
        // An activation behind the library's product is a launch of its own, over whole chunks.
        let n = if is_own { n } else { n.next_multiple_of(8) };
        let (x, x_values) = bench.random(dtype, &mut random, m * k);
        let (weight, weight_values) = bench.random(dtype, &mut random, n * k);
        let (bias, bias_values) = bench.random(dtype, &mut random, n);
        let y_dtype = if random.below(2) == 0 { dtype } else { CudaDtype::F32 };
        let (y, y_values) = bench.random(y_dtype, &mut random, m * n);
        let candidates = if seed % 8 == 3 { 1 } else { 8 };
        let (has_bias, accumulate) = (random.below(2) == 0, random.below(3) == 0);
        let activates = !accumulate && (is_own || y_dtype == dtype);
        let activation = if activates {
            random.pick(&[CudaActivation::None, CudaActivation::GeluTanh, CudaActivation::GeluErf])
        } else {
            CudaActivation::None
        };
        let method = if is_own { ProductMethod::Own } else { ProductMethod::Library };
        let [m, n, k32] = [m, n, k].map(|axis| axis as u32);
        // The library takes a bias of y's type only.
        let has_bias = has_bias && (is_own || y_dtype == dtype);
        let bias = has_bias.then_some(bias);
        let args = Product {
            x,
            weight,
            bias,
            y,
            m,
            n,
            k: k32,
            dtype,
            y_dtype,
            activation,
            method,
            accumulate,
            candidates,
        };
        bench.stream.product(&args).expect("a launch");
        let have = bench.get(y_dtype, y);
        if !accumulate {
            bench.stream.product(&args).expect("a launch");
            let again = bench.get(y_dtype, y);
            let same = have.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "product, seed {seed}: the same inputs give other bits");
        }
        let mut want =
            twin::product(&x_values, &weight_values, has_bias.then_some(&bias_values[..]), k, activation);
        if accumulate {
            want.iter_mut().zip(&y_values).for_each(|(want, before)| *want += before);
        }
        check_near("product", seed, &have, &want, tolerance(y_dtype).max(tolerance(dtype) / 8.0));
    }
}

/// Embeddings with future tokens and padding, gathers, block tables, block copies.
pub(crate) fn gathers(device: &Device, scale: Scale) {
    let bench = Bench::new(device);
    for seed in 0..scale.cases {
        let mut random = Random::new(3000 + seed);
        let dtype = random.pick(&DTYPES);
        let (vocab, positions_max, lanes, count) =
            (1 + random.below(40), 1 + random.below(40), 1 + random.below(6), 1 + random.below(9));
        let width = 8 * (1 + random.below(150));
        let (token_table, token_values) = bench.random(dtype, &mut random, vocab * width);
        let (position_table, position_values) = bench.random(dtype, &mut random, positions_max * width);
        let lane_tokens: Vec<u32> = (0..lanes).map(|_| random.below(vocab) as u32).collect();
        let tokens: Vec<u32> = (0..count)
            .map(|_| if random.below(3) == 0 { FUTURE_TOKEN } else { random.below(vocab) as u32 })
            .collect();
        let positions: Vec<u32> = (0..count).map(|_| random.below(positions_max) as u32).collect();
        let lane_of: Vec<u32> = (0..count)
            .map(|_| if random.below(5) == 0 { NO_LANE } else { random.below(lanes) as u32 })
            .collect();
        let has_positions = seed & 1 == 0;
        let out = bench.room(count * width * dtype.size());
        let args = Embed {
            tokens: bench.words(&tokens),
            positions: bench.words(&positions),
            lanes: bench.words(&lane_of),
            lane_tokens: bench.words(&lane_tokens),
            token_table,
            position_table: has_positions.then_some(position_table),
            out,
            count: count as u32,
            width: width as u32,
            vocab: vocab as u32,
            positions_max: positions_max as u32,
            dtype,
        };
        bench.stream.embed(&args).expect("a launch");
        let mut want = Vec::new();
        for i in 0..count {
            let token = match (tokens[i], lane_of[i]) {
                (FUTURE_TOKEN, NO_LANE) => 0,
                (FUTURE_TOKEN, lane) => lane_tokens[lane as usize] as usize,
                (token, _) => token as usize,
            };
            let position = positions[i] as usize;
            let shift = |j: usize| if has_positions { position_values[position * width + j] } else { 0.0 };
            want.extend((0..width).map(|j| round(dtype, token_values[token * width + j] + shift(j))));
        }
        check_near("embed", seed, &bench.get(dtype, out), &want, 0.0);

        let index: Vec<u32> = (0..count).map(|_| random.below(vocab) as u32).collect();
        let [rows, taken, width32] = [vocab, count, width].map(|axis| axis as u32);
        let args = Gather {
            x: token_table,
            index: bench.words(&index),
            out,
            count: taken,
            width: width32,
            rows,
            dtype,
        };
        bench.stream.gather(&args).expect("a launch");
        let want: Vec<f32> =
            index.iter().flat_map(|&i| token_values[i as usize * width..][..width].to_vec()).collect();
        check_near("gather", seed, &bench.get(dtype, out), &want, 0.0);
        tables_and_blocks(&bench, seed, &mut random);
    }
}

fn tables_and_blocks(bench: &Bench, seed: u64, random: &mut Random) {
    let (lanes, stride, count) = (1 + random.below(7), 1 + random.below(30), random.below(300));
    let mut want: Vec<u32> = (0..lanes * stride).map(|i| i as u32).collect();
    let tables = bench.words(&want);
    let mut updates = Vec::new();
    for _ in 0..count {
        // One update an entry: the order of two is undefined.
        let at = random.below(lanes * stride);
        if want[at] == at as u32 {
            want[at] = 1000 + random.below(1000) as u32;
            updates.extend([(at / stride) as u32, (at % stride) as u32, want[at]]);
        }
    }
    let args = UpdateTables {
        updates: bench.words(&updates),
        tables,
        count: (updates.len() / 3) as u32,
        lanes: lanes as u32,
        table_stride: stride as u32,
    };
    bench.stream.update_tables(&args).expect("a launch");
    let mut bytes = vec![0; tables.bytes()];
    bench.stream.download(&mut bytes, tables).expect("a copy");
    let have: Vec<u32> = bytes.chunks(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    assert_eq!(have, want, "tables, seed {seed}");

    let (layers, blocks, block_bytes) =
        (1 + random.below(3), 4 + random.below(6), 16 * (1 + random.below(300)));
    let mut cache: Vec<u8> = (0..layers * blocks * block_bytes).map(|_| random.bits() as u8).collect();
    let span = bench.raw(&cache);
    let pairs = [0u32, 1, 2, 3];
    let args = CopyBlocks {
        cache: span,
        pairs: bench.words(&pairs),
        layer_bytes: (blocks * block_bytes) as u64,
        block_bytes: block_bytes as u64,
        count: 2,
        layers: layers as u32,
    };
    bench.stream.copy_blocks(&args).expect("a launch");
    for layer in 0..layers {
        for pair in pairs.chunks(2) {
            let at = |block: u32| (layer * blocks + block as usize) * block_bytes;
            cache.copy_within(at(pair[0])..at(pair[0]) + block_bytes, at(pair[1]));
        }
    }
    let mut have = vec![0; cache.len()];
    bench.stream.download(&mut have, span).expect("a copy");
    assert!(have == cache, "block copies, seed {seed}");
}
