//! Prepacked linears against plain ones, and the tensor helpers.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use pinion_ops::attention::{Attend, Batch, Launch, SpanRoom};
use pinion_ops::linear::{Layout, Linear};
use pinion_ops::tensor::{AttentionPlan, attend_qkv, copy_to_f32, kind_of, set_threads, tensor_from_bytes};
use pinion_ops::{Activation, AttentionKernel, Dtype, KernelLevel, KvPool, KvShape};
use tch::{Device, Kind, Tensor};

/// Largest difference relative to the largest value.
fn distance(a: &Tensor, b: &Tensor) -> f64 {
    let (a, b) = (a.to_kind(Kind::Float), b.to_kind(Kind::Float));
    let largest = b.abs().max().double_value(&[]).max(1e-9);
    (a - b).abs().max().double_value(&[]) / largest
}

/// Whether libtorch packs weights of this dtype here: bf16 takes AVX-512.
fn packs(kind: Kind) -> bool {
    let avx512 = std::arch::is_x86_feature_detected!("avx512bw")
        && std::arch::is_x86_feature_detected!("avx512vl")
        && std::arch::is_x86_feature_detected!("avx512dq");
    let packs = kind == Kind::Float || avx512;
    if !packs {
        println!("{kind:?}: not packed without AVX-512; left out");
    }
    packs
}

#[test]
fn packed_equals_plain() {
    set_threads(1);
    tch::manual_seed(11);
    let kinds = [(Kind::Float, 1e-5), (Kind::BFloat16, 1.0 / 64.0)];
    for (kind, tolerance) in kinds.into_iter().filter(|&(kind, _)| packs(kind)) {
        for (rows, inner, outer) in
            [(1, 8, 3), (1, 40, 120), (4, 64, 257), (7, 96, 288), (33, 112, 40), (256, 64, 64)]
        {
            for activation in [Activation::None, Activation::GeluTanh, Activation::GeluErf] {
                for with_bias in [true, false] {
                    let make = |size: &[i64]| Tensor::randn(size, (kind, Device::Cpu));
                    let (x, weight, bias) = (make(&[rows, inner]), make(&[outer, inner]), make(&[outer]));
                    let bias = with_bias.then_some(&bias);
                    let packed = Linear::new(&weight, bias, activation, Layout::OneDnn).unwrap();
                    let plain = Linear::new(&weight, bias, activation, Layout::Plain).unwrap();
                    let case = format!("{kind:?} {rows}x{inner}x{outer} {activation:?} bias {with_bias}");
                    let (have, want) = (packed.forward(&x).unwrap(), plain.forward(&x).unwrap());
                    assert_eq!(have.size(), [rows, outer], "{case}");
                    assert!(distance(&have, &want) <= tolerance, "{case}: {}", distance(&have, &want));
                    if activation == Activation::None {
                        let residual = make(&[rows, outer]);
                        let have = packed.forward_add(&x, &residual).unwrap();
                        let want = plain.forward_add(&x, &residual).unwrap();
                        assert!(distance(&have, &want) <= tolerance, "{case} with a residual");
                        let sum = plain.forward(&x).unwrap() + &residual;
                        assert!(distance(&want, &sum) <= tolerance, "{case}: the residual is added");
                    } else {
                        assert!(packed.forward_add(&x, &want).is_err(), "{case}");
                    }
                }
            }
        }
    }
}

/// What a row gives may not depend on how many there are: texts would depend on what is served beside them.
#[test]
fn the_number_of_rows_does_not_change_a_bit() {
    set_threads(1);
    tch::manual_seed(12);
    for kind in [Kind::Float, Kind::BFloat16].into_iter().filter(|&kind| packs(kind)) {
        for (inner, outer) in [(192, 2048), (192, 576), (3072, 768), (768, 3072), (40, 7)] {
            let make = |size: &[i64]| Tensor::randn(size, (kind, Device::Cpu));
            let bias = make(&[outer]);
            let mut linear =
                Linear::new(&make(&[outer, inner]), Some(&bias), Activation::None, Layout::OneDnn).unwrap();
            let Some(fewest) = linear.find_fewest_rows().unwrap() else {
                println!("{kind:?} {inner}x{outer}: this CPU's products depend on their rows");
                continue;
            };
            linear.set_fewest_rows(fewest);
            let (x, residual) = (make(&[300, inner]), make(&[300, outer]));
            let whole = [linear.forward(&x).unwrap(), linear.forward_add(&x, &residual).unwrap()];
            for rows in (1..=70).chain([127, 128, 129, 256, 299]) {
                let (x, residual) = (x.narrow(0, 0, rows), residual.narrow(0, 0, rows));
                let some = [linear.forward(&x).unwrap(), linear.forward_add(&x, &residual).unwrap()];
                for (some, whole) in some.iter().zip(&whole) {
                    assert_eq!(some.size(), [rows, outer]);
                    assert!(
                        some.equal(&whole.narrow(0, 0, rows)),
                        "{kind:?} {inner}x{outer}: {rows} rows, at least {fewest}"
                    );
                }
            }
        }
    }
}

#[test]
fn faults_come_back_as_messages() {
    let float = (Kind::Float, Device::Cpu);
    let weight = Tensor::zeros([4, 8], float);
    let packed = Linear::new(&weight, None, Activation::None, Layout::OneDnn).unwrap();
    for x in [
        Tensor::zeros([2, 7], float),
        Tensor::zeros([8], float),
        Tensor::zeros([2, 8], (Kind::Int64, Device::Cpu)),
    ] {
        assert!(packed.forward(&x).is_err());
    }
    // Reaches the C++ side: an f32 weight does not take bf16 activations.
    let mixed = packed.forward(&Tensor::zeros([2, 8], (Kind::BFloat16, Device::Cpu))).unwrap_err();
    assert!(!mixed.message.is_empty(), "{mixed}");
    assert!(Linear::new(&Tensor::zeros([4], float), None, Activation::None, Layout::OneDnn).is_err());
}

#[test]
fn tensors_from_bytes_and_back() {
    let values = [1.0f32, -2.5, 3.25e-3, f32::INFINITY, 0.0, -0.0];
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensor = tensor_from_bytes(&bytes, &[2, 3], Kind::Float).unwrap();
    let mut out = Vec::new();
    copy_to_f32(&tensor, &mut out).unwrap();
    assert_eq!(out, values);
    let half = tensor.to_kind(Kind::BFloat16);
    copy_to_f32(&half, &mut out).unwrap();
    let want: Vec<f32> = values.iter().map(|&value| half::bf16::from_f32(value).to_f32()).collect();
    assert_eq!(out, want);
    assert!(copy_to_f32(&half.transpose(0, 1), &mut out).is_err());
    assert!(copy_to_f32(&tensor.to_kind(Kind::Int64), &mut out).is_err());
    assert!(tensor_from_bytes(&bytes, &[2, 4], Kind::Float).is_err());
    assert!(tensor_from_bytes(&bytes, &[-2, -3], Kind::Float).is_err());
    assert!(tensor_from_bytes(&bytes, &[i64::MAX, 3], Kind::Float).is_err());
}

#[test]
fn attention_on_tensors_checks_its_operands() {
    check_attention(Dtype::F32, Kind::BFloat16, 1e-5);
    // The twin took no bf16 tensor once.
    check_attention(Dtype::Bf16, Kind::Float, 1.0 / 64.0);
}

fn check_attention(dtype: Dtype, other: Kind, tolerance: f64) {
    let shape = KvShape { layers: 1, blocks: 4, heads: 2, block_size: 4, head_dim: 8 };
    let mut pool = KvPool::new(shape, dtype).unwrap();
    let batch =
        Batch { query_start: &[0, 3], context_len: &[3], prompt_len: &[2], table_start: &[0], blocks: &[2] };
    let batch = batch.check(&shape).unwrap();
    let launch = Launch { level: KernelLevel::best(), threads: 1 };
    let float = (kind_of(dtype), Device::Cpu);
    let qkv = Tensor::randn([3, 48], float);
    let mut results = Vec::new();
    for kernel in [AttentionKernel::Vector, AttentionKernel::Twin] {
        let plan = AttentionPlan { kernel, launch, attend: Attend::plain(2, 0.5) };
        let (mut out, room) = (Tensor::zeros([3, 16], float), &mut SpanRoom::default());
        attend_qkv(&mut pool, 0, &batch, &qkv, &mut out, plan, room).unwrap();
        results.push(out);
        let mut inside = qkv.view([9, 16]).narrow(0, 0, 3);
        assert!(
            attend_qkv(&mut pool, 0, &batch, &qkv, &mut inside, plan, room).is_err(),
            "output inside the input"
        );
        for bad in [
            Tensor::zeros([2, 48], float),
            Tensor::zeros([3, 47], float),
            Tensor::zeros([48, 3], float).transpose(0, 1),
            Tensor::zeros([3, 48], (other, Device::Cpu)),
            Tensor::zeros([144], float),
        ] {
            let mut out = Tensor::zeros([3, 16], float);
            let shape = bad.size();
            assert!(
                attend_qkv(&mut pool, 0, &batch, &bad, &mut out, plan, room).is_err(),
                "{shape:?} with {kernel:?}"
            );
        }
    }
    let apart = distance(&results[0], &results[1]);
    assert!(apart < tolerance, "{dtype:?}: {apart}");
}
