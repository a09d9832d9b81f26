//! Activations in memory of ours, and a layer's operations over them.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use half::bf16;
use pinion_ops::attention::{Attend, Batch, Launch, SpanRoom};
use pinion_ops::layer::{self, AttentionPlan, attend_qkv};
use pinion_ops::rows::{GateActivation, LayerNorm, RmsNorm, RmsOrder, Rotation, twin};
use pinion_ops::{AttentionKernel, Dtype, Element, KernelLevel, KvPool, KvShape, Matrix};
use pinion_random::Random;

fn random<T: Element>(rows: usize, columns: usize) -> Matrix {
    let mut random = Random::new((rows * 1000 + columns) as u64);
    let values: Vec<T> = (0..rows * columns).map(|_| T::from_f32(random.value())).collect();
    Matrix::of(&values, columns)
}

fn launch() -> Launch {
    Launch { level: KernelLevel::best(), threads: 1 }
}

/// Largest difference.
fn distance<T: Element>(a: &Matrix, b: &Matrix) -> f32 {
    assert_eq!((a.rows(), a.columns()), (b.rows(), b.columns()));
    let pairs = a.values::<T>().iter().zip(b.values::<T>());
    pairs.map(|(a, b)| (a.to_f32() - b.to_f32()).abs()).fold(0.0, f32::max)
}

#[test]
fn memory_is_kept_and_grows() {
    let mut matrix = random::<f32>(3, 4);
    let before = matrix.values::<f32>().as_ptr();
    assert!(before.addr().is_multiple_of(64));
    matrix.resize(1, 12);
    matrix.resize(2, 1);
    assert_eq!(matrix.values::<f32>().as_ptr(), before);
    matrix.resize(100, 100);
    matrix.values_mut::<f32>().fill(1.5);
    assert_eq!((matrix.rows(), matrix.columns(), matrix.values::<f32>()[9_999]), (100, 100, 1.5));
    matrix.resize(0, 7);
    assert!(matrix.values::<f32>().is_empty());
}

fn check_sums<T: Element + PartialEq>() {
    let (from, table) = (random::<T>(5, 6), random::<T>(9, 6));
    let of = |matrix: &Matrix, row: usize| matrix.values::<T>()[row * 6..][..6].to_vec();
    let mut found = Matrix::new(T::DTYPE);
    found.gather(&from, [4, 0, 4].into_iter()).unwrap();
    assert_eq!(found.values::<T>().to_vec(), [of(&from, 4), of(&from, 0), of(&from, 4)].concat());
    let plus = |a: Vec<T>, b: Vec<T>| -> Vec<T> {
        a.into_iter().zip(b).map(|(a, b)| T::from_f32(a.to_f32() + b.to_f32())).collect()
    };
    found.add_rows(&table, &[8, 1, 0]).unwrap();
    let rows = [(4, 8), (0, 1), (4, 0)].map(|(row, add)| plus(of(&from, row), of(&table, add)));
    assert_eq!(found.values::<T>().to_vec(), rows.concat());
    let mut sum = random::<T>(3, 6);
    let want = plus(sum.values::<T>().to_vec(), found.values::<T>().to_vec());
    sum.add(&found).unwrap();
    assert_eq!(sum.values::<T>(), want);
    sum.scale(0.3);
    let scaled: Vec<T> = want.iter().map(|value| T::from_f32(value.to_f32() * 0.3)).collect();
    assert_eq!(sum.values::<T>(), scaled);
    let mut widened = vec![0.0; 99];
    sum.copy_to_f32(&mut widened);
    assert_eq!(widened, scaled.iter().map(|value| value.to_f32()).collect::<Vec<f32>>());

    assert!(found.gather(&from, [5].into_iter()).is_err(), "no such row");
    assert!(found.gather(&from, [usize::MAX].into_iter()).is_err(), "no such row");
    found.gather(&from, 0..3).unwrap();
    for rows in [&[0, 1][..], &[0, 1, 9], &[0, 1, -1], &[0, 1, i64::MAX]] {
        assert!(found.add_rows(&table, rows).is_err(), "{rows:?}");
    }
    assert!(found.add_rows(&random::<T>(9, 5), &[0, 1, 2]).is_err(), "another width");
    assert!(found.add(&from).is_err(), "other axes");
}

#[test]
fn rows_are_gathered_added_and_scaled() {
    check_sums::<f32>();
    check_sums::<bf16>();
    let mut found = Matrix::new(Dtype::F32);
    assert!(found.gather(&random::<bf16>(2, 2), 0..1).is_err());
    assert!(random::<f32>(2, 2).add(&random::<bf16>(2, 2)).is_err());
    assert!(random::<f32>(1, 2).add_rows(&random::<bf16>(2, 2), &[0]).is_err());
}

fn check_layer<T: Element>() {
    let (x, weight) = (random::<T>(4, 24), random::<f32>(1, 24));
    let weight = weight.values::<f32>();
    let near = |have: &Matrix, want: &[T], what: &str| {
        let apart = distance::<T>(have, &Matrix::of(want, have.columns()));
        assert!(apart <= if T::DTYPE == Dtype::F32 { 4e-6 } else { 1.0 / 64.0 }, "{what}: {apart}");
    };
    let place = |columns, groups, width| pinion_ops::rows::Place {
        tokens: 4,
        stride: columns,
        column: 0,
        groups,
        width,
    };
    let mut out = Matrix::new(T::DTYPE);

    let norm = RmsNorm { weight, epsilon: 1e-5, order: RmsOrder::RoundLast };
    let mut want = x.values::<T>().to_vec();
    twin::rms_norm(&mut want, place(24, 1, 24), &norm);
    layer::rms_norm(&x, &norm, &mut out, launch()).unwrap();
    near(&out, &want, "rms norm");

    let centred = LayerNorm { weight, bias: weight, epsilon: 1e-5 };
    let mut want = x.values::<T>().to_vec();
    twin::layer_norm(&mut want, &centred);
    layer::layer_norm(&x, &centred, &mut out, launch()).unwrap();
    near(&out, &want, "layer norm");

    let each = RmsNorm { weight: &weight[..8], ..norm };
    let mut want = x.values::<T>().to_vec();
    twin::rms_norm(&mut want, pinion_ops::rows::Place { column: 8, ..place(24, 2, 8) }, &each);
    let mut have = Matrix::of(x.values::<T>(), 24);
    layer::rms_norm_columns(&mut have, 8, 2, &each, launch()).unwrap();
    near(&have, &want, "norm of columns");

    let table = random::<f32>(4, 6);
    let rotation = Rotation { table: table.values::<f32>(), dim: 6 };
    let mut want = x.values::<T>().to_vec();
    twin::rotate(&mut want, place(24, 3, 8), rotation);
    let mut have = Matrix::of(x.values::<T>(), 24);
    layer::rotate_columns(&mut have, 3, 8, rotation, launch()).unwrap();
    near(&have, &want, "rotation");

    let mut want = vec![T::default(); 4 * 12];
    twin::gate(x.values::<T>(), &mut want, 12, GateActivation::Silu);
    layer::gate(&x, GateActivation::Silu, &mut out, launch()).unwrap();
    near(&out, &want, "gate");

    let short = RmsNorm { weight: &weight[..23], ..norm };
    assert!(layer::rms_norm(&x, &short, &mut out, launch()).is_err());
    let short = LayerNorm { weight: &weight[..23], bias: &weight[..23], ..centred };
    assert!(layer::layer_norm(&x, &short, &mut out, launch()).is_err());
    let mut whole = Matrix::of(x.values::<T>(), 24);
    assert!(layer::rms_norm_columns(&mut whole, 9, 2, &each, launch()).is_err());
    assert!(layer::rotate_columns(&mut whole, 4, 8, rotation, launch()).is_err());
    assert!(layer::gate(&random::<T>(2, 5), GateActivation::Silu, &mut out, launch()).is_err());
}

#[test]
fn operations_of_a_layer_agree_with_their_twins() {
    check_layer::<f32>();
    check_layer::<bf16>();
    let (x, mut out, weight) = (random::<f32>(2, 4), Matrix::new(Dtype::Bf16), [1.0; 4]);
    let norm = RmsNorm { weight: &weight, epsilon: 0.0, order: RmsOrder::RoundFirst };
    assert!(layer::rms_norm(&x, &norm, &mut out, launch()).is_err());
    assert!(layer::gate(&x, GateActivation::Silu, &mut out, launch()).is_err());
}

fn check_attention<T: Element, Other: Element>(tolerance: f32) {
    let shape = KvShape { layers: 1, blocks: 4, heads: 2, block_size: 4, head_dim: 8 };
    let mut pool = KvPool::new(shape, T::DTYPE).unwrap();
    let batch =
        Batch { query_start: &[0, 3], context_len: &[3], prompt_len: &[2], table_start: &[0], blocks: &[2] };
    let batch = batch.check(&shape).unwrap();
    let qkv = random::<T>(3, 48);
    let mut results = Vec::new();
    for kernel in [AttentionKernel::Vector, AttentionKernel::Twin] {
        let plan = AttentionPlan { kernel, launch: launch(), attend: Attend::plain(2, 0.5) };
        let (mut out, room) = (Matrix::new(T::DTYPE), &mut SpanRoom::default());
        attend_qkv(&mut pool, 0, &batch, &qkv, &mut out, plan, room).unwrap();
        assert_eq!((out.rows(), out.columns()), (3, 16));
        results.push(out);
        for bad in [random::<T>(2, 48), random::<T>(3, 47), random::<T>(4, 48), random::<Other>(3, 48)] {
            for dtype in [T::DTYPE, Other::DTYPE] {
                let mut out = Matrix::new(dtype);
                let found = attend_qkv(&mut pool, 0, &batch, &bad, &mut out, plan, room);
                assert!(found.is_err(), "{} rows of {} with {kernel:?}", bad.rows(), bad.columns());
            }
        }
        let mut out = Matrix::new(T::DTYPE);
        assert!(attend_qkv(&mut pool, 1, &batch, &qkv, &mut out, plan, room).is_err(), "no such layer");
    }
    let apart = distance::<T>(&results[0], &results[1]);
    assert!(apart < tolerance, "{:?}: {apart}", T::DTYPE);
}

#[test]
fn attention_checks_its_operands() {
    check_attention::<f32, bf16>(1e-5);
    check_attention::<bf16, f32>(1.0 / 64.0);
}
