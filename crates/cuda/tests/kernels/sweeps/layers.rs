//! The sweeps of what stands between a layer's products.

use super::{Bench, DTYPES, Scale, check_near, round, tolerance};
use pinion_cuda::{CudaDtype, Device, Gate, GateActivation, Rms, RmsOrder, Rope, twin};
use pinion_random::Random;

/// Groups of columns within longer rows, in place and not, in every order of rounding; factors and soft caps.
pub(crate) fn rms_norms_and_scales(device: &Device, scale: Scale) {
    let bench = Bench::new(device);
    for seed in 0..2 * scale.cases {
        let mut random = Random::new(8000 + seed);
        let dtype = DTYPES[seed as usize % 3];
        let order = random.pick(&[RmsOrder::RoundFirst, RmsOrder::RoundLast, RmsOrder::OnePlus]);
        let longest = random.pick(&[5, 300]);
        let (rows, groups, width) =
            (1 + random.below(4), 1 + random.below(4), 8 * (1 + random.below(longest)));
        // The groups begin behind other columns, as keys do behind queries.
        let (before, behind) = (8 * random.below(3), 8 * random.below(3));
        let stride = before + groups * width + behind;
        let (x, values) = bench.random(dtype, &mut random, rows * stride);
        let (weight, weights) = bench.random(CudaDtype::F32, &mut random, width);
        let is_in_place = seed & 1 == 0;
        let from = x.from(before * dtype.size());
        let apart = bench.room(rows * groups * width * dtype.size());
        let (out, out_stride) = if is_in_place { (from, stride) } else { (apart, groups * width) };
        let args = Rms {
            x: from,
            weight,
            out,
            rows: rows as u32,
            groups: groups as u32,
            width: width as u32,
            x_stride: stride as u32,
            out_stride: out_stride as u32,
            epsilon: 1e-5,
            dtype,
            order,
        };
        bench.stream.rms(&args).expect("a launch");
        let rounded = |value| round(dtype, value);
        let mut want = if is_in_place { values.clone() } else { Vec::new() };
        for row in 0..rows {
            for group in 0..groups {
                let at = row * stride + before + group * width;
                let normed = twin::rms(&values[at..at + width], &weights, 1e-5, order, rounded);
                match is_in_place {
                    true => want[at..at + width].copy_from_slice(&normed),
                    false => want.extend(normed),
                }
            }
        }
        let have = bench.get(dtype, if is_in_place { x } else { apart });
        check_near("RMS norm", seed, &have, &want, tolerance(dtype));
        let short = Rms { out_stride: (groups * width) as u32 - 8, ..args };
        bench.stream.rms(&short).expect_err("rows that overlap");
        scaled(&bench, seed, dtype, &mut random);
    }
}

fn scaled(bench: &Bench, seed: u64, dtype: CudaDtype, random: &mut Random) {
    let count = 1 + random.below(700);
    let values: Vec<f32> = (0..count).map(|_| round(dtype, 8.0 * random.value())).collect();
    let x = bench.put(dtype, &values);
    let (factor, divisor) = (1.0 + random.value(), random.pick(&[1.0f32, 0.25, 13.0]));
    let soft_cap = random.pick(&[None, Some(3.0f32), Some(30.0)]);
    let args = pinion_cuda::Scale { x, count: count as u64, factor, divisor, soft_cap, dtype };
    bench.stream.scale(&args).expect("a launch");
    let want: Vec<f32> =
        values.iter().map(|&x| round(dtype, twin::scale(x, factor, divisor, soft_cap))).collect();
    check_near("scale", seed, &bench.get(dtype, x), &want, tolerance(dtype));
    let nothing = pinion_cuda::Scale { divisor: 0.0, ..args };
    bench.stream.scale(&nothing).expect_err("a division by zero");
}

/// Gates of every activation; rotations of whole heads and of their first columns.
pub(crate) fn gates_and_rotations(device: &Device, scale: Scale) {
    let bench = Bench::new(device);
    for seed in 0..2 * scale.cases {
        let mut random = Random::new(9000 + seed);
        let dtype = random.pick(&DTYPES);
        let (rows, width) = (1 + random.below(4), 8 * (1 + random.below(200)));
        let kinds = [GateActivation::Silu, GateActivation::GeluTanh, GateActivation::GeluErf];
        let activation = kinds[seed as usize % 3];
        let (x, values) = bench.random(dtype, &mut random, rows * 2 * width);
        let out = bench.room(rows * width * dtype.size());
        let args = Gate { x, out, rows: rows as u32, width: width as u32, dtype, activation };
        bench.stream.gate(&args).expect("a launch");
        let want = twin::gate(&values, width, activation);
        check_near("gate", seed, &bench.get(dtype, out), &want, tolerance(dtype));
        rotation(&bench, seed, dtype, &mut random);
    }
}

fn rotation(bench: &Bench, seed: u64, dtype: CudaDtype, random: &mut Random) {
    let (tokens, heads) = (1 + random.below(4), 1 + random.below(5));
    let (head_dim, dim) =
        random.pick(&[(16, 16), (64, 64), (128, 128), (96, 96), (80, 32), (256, 64), (24, 18)]);
    let (stride, positions_max) = (heads * head_dim + 8 * random.below(3), 1 + random.below(50));
    let (x, x_values) = bench.random(dtype, random, tokens * stride);
    let positions: Vec<u32> = (0..tokens).map(|_| random.below(positions_max) as u32).collect();
    let angle = |position: u32, pair: usize| (position as f32 / (1.0 + pair as f32)).sin_cos();
    let angles: Vec<f32> = (0..positions_max as u32)
        .flat_map(|p| (0..dim / 2).flat_map(move |i| [angle(p, i).1, angle(p, i).0]))
        .collect();
    let args = Rope {
        x,
        positions: bench.words(&positions),
        angles: bench.put(CudaDtype::F32, &angles),
        tokens: tokens as u32,
        heads: heads as u32,
        head_dim: head_dim as u32,
        dim: dim as u32,
        stride: stride as u32,
        positions_max: positions_max as u32,
        dtype,
    };
    bench.stream.rope(&args).expect("a launch");
    let mut want = x_values;
    for (token, &position) in positions.iter().enumerate() {
        let turn: Vec<(f32, f32)> =
            (0..dim / 2).map(|i| (angle(position, i).1, angle(position, i).0)).collect();
        for head in 0..heads {
            let at = token * stride + head * head_dim;
            let rotated = twin::rope(&want[at..at + head_dim], &turn);
            want[at..at + head_dim].copy_from_slice(&rotated);
        }
    }
    check_near("rope", seed, &bench.get(dtype, x), &want, tolerance(dtype));
}
