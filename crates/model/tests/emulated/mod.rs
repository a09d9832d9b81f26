//! The emulated device, and what tests load a model onto it with.

#![allow(dead_code, unused_imports, reason = "each test includes it and uses its part")]

#[path = "../../../ops/tests/cuda/emulated.rs"]
mod object;

pub(crate) use object::{alone, emulated, object};

use pinion_model::cuda::{CudaDtype, CudaGpt2, CudaKv, CudaOptions, DecodePath, PrefillAttention, load_cuda};
use pinion_model::{KvSize, Pipeline, WarmUp};
use std::path::PathBuf;

/// The largest shapes that tests send.
pub(crate) const SHAPES: WarmUp = WarmUp { max_rows: 16, max_tokens: 300 };

/// A folder of the parity fixtures.
pub(crate) fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Everything on, in fp32, but for the choice of algorithms: it computes every shape many times before ready.
pub(crate) fn options() -> CudaOptions {
    CudaOptions {
        object: object(),
        device: 0,
        products: None,
        dtype: CudaDtype::F32,
        load_threads: 2,
        block_size: 16,
        kv: CudaKv::Size(KvSize::Blocks(256)),
        max_rows: SHAPES.max_rows,
        max_tokens: SHAPES.max_tokens,
        graphs: true,
        fused: true,
        prefill: PrefillAttention::Auto,
        decode: DecodePath::Graph,
        measured_products: false,
        shaped_on_device: true,
        scored_on_device: true,
        masked_on_device: true,
    }
}

/// A fixture on the device, warm.
pub(crate) fn ready(name: &str, options: &CudaOptions) -> CudaGpt2 {
    let mut model = load_cuda(&fixture(name), options).expect("the fixture loads");
    Pipeline::warm_up(&mut model, &SHAPES).expect("the fixture warms up");
    model
}
