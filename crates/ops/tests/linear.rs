//! Prepacked linears against plain ones, and the tensor helpers.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use pinion_ops::attention::Launch;
use pinion_ops::linear::{Layout, Linear};
use pinion_ops::matrix::Table;
use pinion_ops::packed::PackedWeights;
use pinion_ops::product::{PackedLinear, Product, QuantizedLinear};
use pinion_ops::quantized::{IntegerLaunch, QuantizedWeights, Source, SourceType, WeightForm};
use pinion_ops::tensor::{copy_to_f32, set_threads, tensor_from_bytes};
use pinion_ops::{Activation, Dtype, Element, Epilogue, IntegerLevel, KernelLevel, Matrix};
use pinion_random::Random;
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

/// The values of a tensor in fp32.
fn values(tensor: &Tensor) -> Vec<f32> {
    let mut values = Vec::new();
    copy_to_f32(&tensor.contiguous(), &mut values).unwrap();
    values
}

#[test]
fn dense_products_of_matrices_are_those_of_tensors() {
    let (x, weight) = (
        Tensor::randn([5, 24], (Kind::Float, Device::Cpu)),
        Tensor::randn([16, 24], (Kind::Float, Device::Cpu)),
    );
    let linear = || Linear::new(&weight, None, Activation::None, Layout::Plain).unwrap();
    let want = values(&linear().forward(&x).unwrap());
    let (product, x) = (Product::Dense(linear()), Matrix::of(&values(&x), 24));
    let mut out = Matrix::new(Dtype::F32);
    product.forward(&x, &mut out).unwrap();
    assert_eq!((out.rows(), out.columns(), out.values::<f32>()), (5, 16, &want[..]));
    // A sum that stands in memory of ours, then in libtorch's.
    for mut sum in [Matrix::of(&want, 16), out] {
        product.forward_add(&x, &mut sum).unwrap();
        let twice: Vec<f32> = want.iter().map(|value| value + value).collect();
        assert_eq!(sum.values::<f32>(), twice);
        // What libtorch made is kept where the axes are the same, and replaced where they are not.
        sum.resize(5, 16);
        assert_eq!(sum.values::<f32>(), twice);
        sum.resize(1, 7);
        sum.values_mut::<f32>().fill(2.0);
        assert_eq!(sum.values::<f32>(), [2.0; 7]);
    }
    let mut half = Matrix::new(Dtype::Bf16);
    assert!(product.forward(&x, &mut half).is_err());
}

#[test]
fn rows_are_looked_up_in_tables_of_their_own_type() {
    let numbers = Tensor::randn([6, 5], (Kind::Float, Device::Cpu));
    for kind in [Kind::Float, Kind::BFloat16, Kind::Half] {
        let table = Table::new(numbers.to_kind(kind)).unwrap();
        let want = table.tensor().index_select(0, &Tensor::from_slice(&[5i64, 0, 5]));
        let mut found = Matrix::new(Dtype::F32);
        found.look_up(&table, &[5, 0, 5]).unwrap();
        assert_eq!(
            (found.rows(), found.values::<f32>()),
            (3, &values(&want.to_kind(Kind::Float))[..]),
            "{kind:?}"
        );
        for row in [6, -1, i64::MAX] {
            assert!(found.look_up(&table, &[0, row]).is_err(), "{row}");
        }
        let mut found = Matrix::new(Dtype::Bf16);
        assert_eq!(found.look_up(&table, &[1]).is_ok(), kind == Kind::BFloat16, "{kind:?}");
    }
    let integers = Table::new(numbers.to_kind(Kind::Int64)).unwrap();
    assert!(Matrix::new(Dtype::F32).look_up(&integers, &[0]).is_err());
    assert!(Table::new(numbers.transpose(0, 1)).is_err());
    assert!(Table::new(numbers.view([30])).is_err());
}

/// Rows that our products take in several passes, added to what stands there, against the same beside it.
fn check_sums<T: Element + PartialEq>(weight_type: SourceType) {
    const ROWS: usize = 300;
    let (inputs, outputs) = (40, 24);
    let mut random = Random::new(7);
    let mut numbers = |count: usize| -> Vec<f32> { (0..count).map(|_| random.value()).collect() };
    let bytes: Vec<u8> = numbers(inputs * outputs)
        .into_iter()
        .flat_map(|value| match weight_type {
            SourceType::F16 => half::f16::from_f32(value).to_le_bytes().to_vec(),
            SourceType::Bf16 => half::bf16::from_f32(value).to_le_bytes().to_vec(),
            SourceType::F32 => value.to_le_bytes().to_vec(),
        })
        .collect();
    let source = Source { bytes: &bytes, source_type: weight_type, rows: outputs, is_transposed: false };
    let typed = |values: Vec<f32>| -> Vec<T> { values.into_iter().map(T::from_f32).collect() };
    let (x, residual) = (typed(numbers(ROWS * inputs)), typed(numbers(ROWS * outputs)));
    let epilogue = Epilogue { residual: Some(&residual), ..Epilogue::default() };
    let mut want = vec![T::default(); ROWS * outputs];

    let launch = Launch { level: KernelLevel::best(), threads: 2 };
    let mut packed = PackedWeights::new(weight_type, outputs, inputs).unwrap();
    packed.pack(0, source, 1).unwrap();
    packed.multiply(&x, epilogue, &mut want, launch).unwrap();
    let product = Product::Packed(PackedLinear::new(packed, None, Activation::None, launch).unwrap());
    let (x, mut sum) = (Matrix::of(&x, inputs), Matrix::of(&residual, outputs));
    product.forward_add(&x, &mut sum).unwrap();
    assert!(sum.values::<T>() == want, "{weight_type:?} into {:?}", T::DTYPE);

    let launch = IntegerLaunch { level: IntegerLevel::best(), threads: 2 };
    let mut integers = QuantizedWeights::new(WeightForm::Int8, outputs, inputs).unwrap();
    integers.pack(0, source, 1).unwrap();
    integers.multiply(x.values::<T>(), epilogue, &mut want, launch).unwrap();
    let product = Product::Quantized(QuantizedLinear::new(integers, None, Activation::None, launch).unwrap());
    let mut sum = Matrix::of(&residual, outputs);
    product.forward_add(&x, &mut sum).unwrap();
    assert!(sum.values::<T>() == want, "integers of {weight_type:?} into {:?}", T::DTYPE);

    let mut out = Matrix::new(T::DTYPE);
    assert!(product.forward_add(&x, &mut out).is_err(), "nothing to add to");
    assert!(product.forward(&sum, &mut out).is_err(), "another width");
    let other = if T::DTYPE == Dtype::F32 { Dtype::Bf16 } else { Dtype::F32 };
    assert!(product.forward(&x, &mut Matrix::new(other)).is_err(), "another type");
}

#[test]
fn products_add_to_what_stands_there() {
    for weight_type in [SourceType::F32, SourceType::Bf16, SourceType::F16] {
        check_sums::<f32>(weight_type);
        check_sums::<half::bf16>(weight_type);
    }
}
