//! The CUDA kernels against their plain Rust twins, run by the emulated device: threads as fibers, in both orders.
//! The same sweeps run on a real device through `cargo run -p pinion-model --example cuda_check`.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

mod emulated;
mod fragments;
mod products;
mod sweeps;

use emulated::emulated;
use pinion_cuda::{CudaDtype, Device, Product, ProductMethod, Span};
use std::path::Path;

/// Shapes small enough for fibers.
const SCALE: sweeps::Scale = sweeps::Scale { cases: 12, context_max: 150 };

#[test]
fn norms_activations_scales_gates_and_rotations() {
    sweeps::norms(&emulated(), SCALE);
    sweeps::activations(&emulated(), SCALE);
    sweeps::rms_norms_and_scales(&emulated(), SCALE);
    sweeps::gates_and_rotations(&emulated(), SCALE);
}

#[test]
fn products_of_few_and_many_rows() {
    sweeps::products(&emulated(), SCALE);
}

#[test]
fn embeddings_gathers_and_tables() {
    sweeps::gathers(&emulated(), SCALE);
}

#[test]
fn decode_attention_with_append() {
    sweeps::decode_attention(&emulated(), SCALE);
}

#[test]
fn general_attention() {
    sweeps::general_attention(&emulated(), SCALE);
}

#[test]
fn prefill_attention() {
    sweeps::prefill_attention(&emulated(), SCALE);
}

#[test]
fn borrowed_stream() {
    sweeps::borrowed_stream(&emulated(), SCALE);
}

#[test]
fn the_fused_decode_step() {
    sweeps::fused_decode(&emulated(), SCALE);
    sweeps::refused_decode_steps(&emulated());
}

#[test]
fn a_graph_runs_what_was_captured_with_what_is_there_now() {
    let _alone = emulated::alone();
    let device = emulated();
    let stream = device.stream().unwrap();
    let (from, to) = (device.alloc(64).unwrap(), device.alloc(64).unwrap());
    let captured_before = device.counts().captures;
    let graph = stream.capture(|| stream.copy(to, from)).unwrap();
    assert_eq!(device.counts().captures, captured_before + 1);
    for value in [3u8, 9] {
        stream.upload(from, &[value; 64]).unwrap();
        stream.replay(&graph).unwrap();
        let mut seen = [0; 64];
        stream.download(&mut seen, to).unwrap();
        assert_eq!(seen, [value; 64]);
    }
    let refused = stream.capture(|| stream.upload(to, &[1])).unwrap_err();
    assert!(refused.message.contains("captured"), "{refused}");
}

#[test]
fn what_does_not_fit_is_an_error_before_anything_runs() {
    let device = emulated();
    let stream = device.stream().unwrap();
    let span = |bytes: usize| device.alloc(bytes).unwrap();
    let product = |x: Span, weight: Span, bias: Option<Span>, y: Span, k: u32| Product {
        x,
        weight,
        bias,
        y,
        m: 2,
        n: 3,
        k,
        dtype: CudaDtype::F16,
        y_dtype: CudaDtype::F32,
        activation: Default::default(),
        method: ProductMethod::Own,
        accumulate: false,
        candidates: 1,
    };
    assert_eq!(stream.product(&product(span(64), span(96), Some(span(6)), span(24), 16)), Ok(()));
    for (args, says) in [
        (product(span(63), span(96), None, span(24), 16), "x is shorter"),
        (product(span(64), span(95), None, span(24), 16), "weight is shorter"),
        (product(span(64), span(96), Some(span(5)), span(24), 16), "bias is shorter"),
        (product(span(64), span(96), None, span(23), 16), "y is shorter"),
        (product(span(80).from(2), span(96), None, span(24), 16), "not aligned"),
        (product(span(60), span(90), None, span(24), 15), "outside the kernel's contract"),
    ] {
        let error = stream.product(&args).unwrap_err();
        assert!(error.message.contains(says), "{error} does not say {says:?}");
    }
}

#[test]
fn an_object_that_is_none_gives_one_line() {
    for (path, says) in [
        ("/nonexistent/libpinion_cuda.so", "there is no /nonexistent/libpinion_cuda.so"),
        ("/dev/null", "/dev/null cannot be used"),
    ] {
        let error = Device::open(Path::new(path), 0).unwrap_err().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{error:?}");
    }
    let error = Device::open(&emulated::object(), 7).unwrap_err();
    assert!(error.message.contains("device 7"), "{error}");
}
