//! K and V as integers of 8 bits: which integers, and what is lost. That the kernels read them as their twins do is in
//! the other files on attention.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use crate::layers::{Layer, fill};
use half::bf16;
use pinion_ops::attention::{self, Attend, Batch, Launch, Rows, SpanRoom};
use pinion_ops::{Dtype, Element, KernelLevel, KvDtype, KvPool, KvShape, twin};
use pinion_random::Random;

/// The row's integers and scale as the kernel writes them, which are the twin's.
fn rounded<T: Element>(row: &[T]) -> (Vec<i8>, f32) {
    let shape = KvShape { layers: 1, blocks: 1, heads: 1, block_size: 1, head_dim: row.len() };
    let mut pool = KvPool::new(shape, KvDtype::Int8).unwrap();
    pool.layer_bytes_mut(0).fill(0x55);
    let mut expected = Layer::of(&mut pool, 0);
    let one_token =
        Batch { query_start: &[0, 1], context_len: &[1], prompt_len: &[1], table_start: &[0], blocks: &[0] };
    let batch = one_token.check(&shape).unwrap();
    let rows = Rows { data: row, stride: row.len() };
    let launch = Launch { level: KernelLevel::best(), threads: 1 };
    attention::kv_append(&mut pool, 0, &batch, rows, rows, launch).unwrap();
    expected.append(&batch, rows, rows);
    assert!(expected.is_same(&mut pool, 0), "{row:?}");
    let bytes = &pool.layer_bytes_mut(0)[..KvDtype::Int8.row_bytes(row.len())];
    let (integers, scale) = bytes.split_at(bytes.len() - 4);
    assert!(integers[row.len()..].iter().all(|&byte| byte == 0), "what fills up to the scale is zeros");
    let scale = f32::from_ne_bytes(scale.try_into().unwrap());
    (integers[..row.len()].iter().map(|byte| byte.cast_signed()).collect(), scale)
}

#[test]
fn a_rows_largest_magnitude_is_127_and_ties_go_to_even() {
    assert_eq!(
        rounded(&[127.0f32, -127.0, 0.5, 1.5, -2.5, 3.4, 0.0]),
        (vec![127, -127, 0, 2, -2, 3, 0], 1.0)
    );
    assert_eq!(rounded(&[0.0f32, -0.25, 0.125]).0, [0, -127, 64]);
    assert_eq!(rounded(&[bf16::from_f32(-3.0)]), (vec![-127], 3.0 / 127.0));
    assert_eq!(rounded(&[f32::MAX, -1.0]).0, [127, 0]);
}

#[test]
fn rows_that_have_no_scale_are_zeros() {
    assert_eq!(rounded(&[0.0f32; 5]), (vec![0; 5], 0.0));
    assert_eq!(rounded(&[1e-31f32, -1e-40]), (vec![0; 2], 0.0));
    assert!(rounded(&[2e-30f32, 0.0]).1 > 0.0);
    for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let (integers, scale) = rounded(&[1.0f32, odd, 2.0]);
        assert!(integers == [0; 3] && scale.is_nan(), "{odd}: what reads the row shall see it");
    }
}

#[test]
fn random_rows_are_those_of_the_twin() {
    let mut random = Random::new(7);
    for head_dim in 1..=130 {
        for exponent in [-20, -3, 0, 9] {
            let size = 10f32.powi(exponent);
            let row: Vec<f32> = (0..head_dim).map(|_| random.value() * size).collect();
            let (integers, scale) = rounded(&row);
            for (value, integer) in row.iter().zip(integers) {
                let error = (value - f32::from(integer) * scale).abs();
                assert!(error <= 0.501 * scale, "{value} became {integer} * {scale}");
            }
            rounded(&row.iter().map(|&value| bf16::from_f32(value)).collect::<Vec<_>>());
        }
    }
}

/// Attention over a context that was appended as integers and as floats: each number is off by half a step at most.
#[test]
fn the_loss_is_that_of_the_rounding() {
    let (tokens, head_dim, blocks) = (300u32, 64, Vec::from_iter(0..19));
    let (query_start, context_len) = ([0, tokens], [tokens]);
    let shape = KvShape { layers: 1, blocks: 19, heads: 1, block_size: 16, head_dim };
    let one_prompt = Batch {
        query_start: &query_start,
        context_len: &context_len,
        prompt_len: &context_len,
        table_start: &[0],
        blocks: &blocks,
    };
    let batch = one_prompt.check(&shape).unwrap();
    let mut random = Random::new(5);
    let [q, k, v] = [0, 1, 2].map(|_| fill::<f32>(&mut random, tokens as usize * head_dim));
    let rows = |data| Rows { data, stride: head_dim };
    let attend = Attend::plain(1, 1.0 / 8.0);
    for level in KernelLevel::available() {
        let launch = Launch { level, threads: 1 };
        let [floats, integers] = [Dtype::F32.into(), KvDtype::Int8].map(|stored| {
            let mut pool = KvPool::new(shape, stored).unwrap();
            let mut out = vec![0f32; q.len()];
            attention::kv_append(&mut pool, 0, &batch, rows(&k), rows(&v), launch).unwrap();
            let room = &mut SpanRoom::default();
            attention::paged_attention(
                &mut pool,
                0,
                &batch,
                rows(&q),
                &mut out,
                head_dim,
                attend,
                launch,
                room,
            )
            .unwrap();
            out
        });
        let off = |(a, b): (&f32, &f32)| (a - b).abs();
        let largest = floats.iter().zip(&integers).map(off).fold(0.0, f32::max);
        // Half a step of V, and scores that are off by little: q . k is about 64 / 9 products of half a step each.
        assert!(largest > 0.0 && largest < 0.02, "{level:?}: {largest}");
    }
}

#[test]
fn a_pool_of_integers_has_no_float_elements() {
    let shape = KvShape { layers: 1, blocks: 1, heads: 1, block_size: 1, head_dim: 6 };
    let mut pool = KvPool::new(shape, KvDtype::Int8).unwrap();
    assert_eq!(pool.layer_bytes_mut(0).len(), 2 * (8 + 4));
    assert_eq!(twin::widened(pool.layer_bytes_mut(0), &shape), [0.0; 12]);
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.layer_mut::<f32>(0).len()));
    assert!(refused.is_err());
}
