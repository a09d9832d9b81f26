//! The choice between the algorithms of cuBLASLt, on the stand-in that the emulated device brings.

use super::emulated::{alone, emulated};
use pinion_cuda::{CudaActivation, CudaDtype, Product, ProductMethod};

/// The emulated library's algorithms sum in different orders and cost 7, 3, 1 and 5 ticks, and the third never works.
#[test]
fn the_quickest_algorithm_that_works_is_taken_and_gives_the_same_product() {
    let _alone = alone();
    let device = emulated();
    let stream = device.stream().unwrap();
    let (begin, end) = (device.event(true).unwrap(), device.event(true).unwrap());
    let (m, n, k) = (20u32, 24u32, 336u32);
    let values = |count: u32, by: u32| -> Vec<u8> {
        (0..count).flat_map(|i| ((i * by % 101) as f32 / 50.0 - 1.0).to_le_bytes()).collect()
    };
    let put = |bytes: &[u8]| {
        let span = device.alloc(bytes.len()).unwrap();
        stream.upload(span, bytes).unwrap();
        span
    };
    let y = device.alloc((m * n * 4) as usize).unwrap();
    let args = |candidates| Product {
        x: put(&values(m * k, 7)),
        weight: put(&values(n * k, 13)),
        bias: None,
        y,
        m,
        n,
        k,
        dtype: CudaDtype::F32,
        y_dtype: CudaDtype::F32,
        activation: Default::default(),
        method: ProductMethod::Library,
        accumulate: false,
        candidates,
    };
    let mut seen = Vec::new();
    for (candidates, ticks) in [(1, 7.0), (2, 3.0), (3, 3.0), (8, 3.0), (0, 7.0), (1000, 3.0)] {
        let args = args(candidates);
        // The first use of the shape chooses.
        stream.product(&args).unwrap();
        stream.record(&begin).unwrap();
        stream.product(&args).unwrap();
        stream.record(&end).unwrap();
        let ms = begin.elapsed_ms(&end).unwrap();
        assert!((ms - ticks / 1000.0).abs() < 1e-6, "{candidates} candidates: {ms} ms");
        let mut bytes = vec![0; (m * n * 4) as usize];
        stream.download(&mut bytes, y).unwrap();
        let y: Vec<f32> =
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        seen.push(y);
    }
    let largest = seen[0].iter().fold(0f32, |max, value| max.max(value.abs()));
    for (other, first) in seen[1..].iter().flat_map(|y| y.iter().zip(&seen[0])) {
        assert!((other - first).abs() <= 1e-5 * largest, "{other} {first}");
    }
    assert_ne!(seen[0], seen[1], "the algorithms can be told apart");
}

/// The library's epilogue has the tanh form alone, and for fp32 the emulated one takes longer than a launch behind the
/// product.
#[test]
fn an_activation_is_the_librarys_where_that_is_quicker() {
    let _alone = alone();
    let device = emulated();
    let stream = device.stream().unwrap();
    let span = |count: u32| {
        let span = device.alloc(count as usize * 4).unwrap();
        stream.fill(span, 0).unwrap();
        span
    };
    let (m, n, k) = (20, 24, 32);
    for (dtype, activation, candidates, launches) in [
        (CudaDtype::F16, CudaActivation::GeluTanh, 8, 1),
        (CudaDtype::Bf16, CudaActivation::GeluTanh, 1, 1),
        (CudaDtype::F32, CudaActivation::GeluTanh, 1, 1),
        (CudaDtype::F32, CudaActivation::GeluTanh, 8, 2),
        (CudaDtype::F16, CudaActivation::GeluErf, 8, 2),
        (CudaDtype::F16, CudaActivation::None, 8, 1),
    ] {
        let args = Product {
            x: span(m * k),
            weight: span(n * k),
            bias: Some(span(n)),
            y: span(m * n),
            m,
            n,
            k,
            dtype,
            y_dtype: dtype,
            activation,
            method: ProductMethod::Library,
            accumulate: false,
            candidates,
        };
        stream.product(&args).unwrap();
        let before = device.counts().launches;
        stream.product(&args).unwrap();
        let have = device.counts().launches - before;
        assert_eq!(have, launches, "{dtype:?} {activation:?} with {candidates} candidates");
    }
}
