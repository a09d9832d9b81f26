//! The emulated device, and what tests load a model onto it with.

#![allow(dead_code, unused_imports, reason = "each test includes it and uses its part")]

#[path = "../../../cuda/tests/kernels/emulated.rs"]
mod object;

pub(crate) use object::{alone, emulated, object};

use pinion_model::cuda::{
    CudaDecoder, CudaDtype, CudaKv, CudaOptions, DecodePath, PrefillAttention, load_cuda,
};
use pinion_model::{KvSize, Pipeline, WarmUp};
use pinion_random::Random;
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
        max_model_len: None,
        max_rows: SHAPES.max_rows,
        max_tokens: SHAPES.max_tokens,
        graphs: true,
        mixed_graphs: false,
        dependent_launch: false,
        fused_norms: true,
        fused_products: true,
        prefill: PrefillAttention::Auto,
        decode: DecodePath::Graph,
        measured_products: false,
        shaped_on_device: true,
        scored_on_device: true,
        masked_on_device: true,
        spin: std::time::Duration::from_millis(20),
        step_deadline: pinion_model::STEP_DEADLINE,
    }
}

/// A fixture on the device, warm.
pub(crate) fn ready(name: &str, options: &CudaOptions) -> CudaDecoder {
    let mut model = load_cuda(&fixture(name), options).expect("the fixture loads");
    Pipeline::warm_up(&mut model, &SHAPES).expect("the fixture warms up");
    model
}

/// A random model with heads of 64, so that prompt chunks go to the tensor-core kernel.
pub(crate) fn model_of_64(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let config =
        r#"{"model_type":"gpt2","n_embd":128,"n_head":2,"n_layer":2,"n_positions":256,"vocab_size":61}"#;
    std::fs::write(folder.join("config.json"), config).unwrap();
    let mut source = Random::new(1);
    let mut random = |count: usize, around: f32| -> Vec<u8> {
        (0..count).flat_map(|_| (around + source.value() * 0.15).to_le_bytes()).collect()
    };
    let mut names: Vec<(String, Vec<usize>)> =
        vec![("wte.weight".into(), vec![61, 128]), ("wpe.weight".into(), vec![256, 128])];
    for layer in 0..2 {
        for (part, axes) in [
            ("attn.c_attn", [128, 384]),
            ("attn.c_proj", [128, 128]),
            ("mlp.c_fc", [128, 512]),
            ("mlp.c_proj", [512, 128]),
        ] {
            names.push((format!("h.{layer}.{part}.weight"), axes.to_vec()));
            names.push((format!("h.{layer}.{part}.bias"), vec![axes[1]]));
        }
        names.extend(
            ["ln_1", "ln_2"]
                .into_iter()
                .flat_map(|n| ["weight", "bias"].map(|p| (format!("h.{layer}.{n}.{p}"), vec![128]))),
        );
    }
    names.extend(["weight", "bias"].map(|part| (format!("ln_f.{part}"), vec![128])));
    let data: Vec<(String, Vec<usize>, Vec<u8>)> = names
        .into_iter()
        .map(|(name, axes)| {
            let around = if name.contains("ln_") && name.ends_with("weight") { 1.0 } else { 0.0 };
            let bytes = random(axes.iter().product(), around);
            (name, axes, bytes)
        })
        .collect();
    let views = data.iter().map(|(name, axes, bytes)| {
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, axes.clone(), bytes).unwrap();
        (name.clone(), view)
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    folder
}
