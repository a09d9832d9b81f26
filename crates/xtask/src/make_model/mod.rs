//! Makes a Hugging Face folder of GPT-2's 124 M shape without a network: random weights and the real tokenizer.
//! Speed and memory depend on the shape alone, so this folder stands in for the published one in benchmarks and
//! load tests. Its text is noise: for readable output use deploy/demo-model.

mod rng;
mod tokenizer;
mod weights;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use weights::{Shape, StoredDtype};

const DEFAULT_OUT: &str = "target/models/gpt2-124m";

/// The parsed command line of `make-model`.
#[derive(Debug, PartialEq)]
struct Request {
    out: PathBuf,
    seed: u64,
    dtype: StoredDtype,
}

/// `make-model gpt2 [--out DIR] [--seed N] [--dtype f32|bf16]`
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<(), String> {
    let request = parse(root, args)?;
    let began = Instant::now();
    fs::create_dir_all(&request.out)
        .map_err(|error| format!("cannot make {}: {error}", request.out.display()))?;

    println!("tokenizer: GPT-2's, rebuilt from the ranks of the tiktoken-rs crate");
    let tokenizer = tokenizer::gpt2()?;
    tokenizer
        .save(request.out.join("tokenizer.json"), false)
        .map_err(|error| format!("tokenizer.json: {error}"))?;
    write_json(&request.out, "tokenizer_config.json", &tokenizer_config())?;
    write_json(&request.out, "config.json", &model_config(&Shape::GPT2, request.dtype))?;
    write_json(
        &request.out,
        "generation_config.json",
        &json!({"bos_token_id": 50256, "eos_token_id": 50256}),
    )?;
    weights::write(&request.out.join("model.safetensors"), &Shape::GPT2, request.seed, request.dtype)?;

    println!("{} is ready after {:.1} s", request.out.display(), began.elapsed().as_secs_f32());
    Ok(())
}

fn parse(root: &Path, args: &[&str]) -> Result<Request, String> {
    let ["gpt2", flags @ ..] = args else {
        return Err("make-model: the one known model is gpt2".to_owned());
    };
    let mut request = Request { out: root.join(DEFAULT_OUT), seed: 0, dtype: StoredDtype::F32 };
    for pair in flags.chunks(2) {
        match pair {
            ["--out", dir] => request.out = PathBuf::from(dir),
            ["--seed", seed] => {
                request.seed = seed.parse().map_err(|_| format!("--seed: {seed} is not a whole number"))?;
            }
            ["--dtype", "f32"] => request.dtype = StoredDtype::F32,
            ["--dtype", "bf16"] => request.dtype = StoredDtype::Bf16,
            _ => return Err(format!("make-model: cannot read {}", pair.join(" "))),
        }
    }
    Ok(request)
}

fn write_json(folder: &Path, name: &str, value: &serde_json::Value) -> Result<(), String> {
    fs::write(folder.join(name), format!("{value:#}\n")).map_err(|error| format!("{name}: {error}"))
}

/// The keys of the published `gpt2` folder that a loader looks at.
fn model_config(shape: &Shape, dtype: StoredDtype) -> serde_json::Value {
    json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_layer": shape.layers,
        "n_embd": shape.width,
        "n_head": shape.heads,
        "n_inner": null,
        "n_positions": shape.positions,
        "n_ctx": shape.positions,
        "vocab_size": shape.vocabulary,
        "layer_norm_epsilon": 1e-5,
        "initializer_range": weights::INITIALIZER_RANGE,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "tie_word_embeddings": true,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "torch_dtype": dtype.config_name(),
    })
}

fn tokenizer_config() -> serde_json::Value {
    json!({
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": false,
        "bos_token": tokenizer::END_OF_TEXT,
        "eos_token": tokenizer::END_OF_TEXT,
        "unk_token": tokenizer::END_OF_TEXT,
        "clean_up_tokenization_spaces": false,
        "model_max_length": 1024,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines() {
        let root = Path::new("r");
        let default = Request { out: "r/target/models/gpt2-124m".into(), seed: 0, dtype: StoredDtype::F32 };
        assert_eq!(parse(root, &["gpt2"]), Ok(default));
        let all = ["gpt2", "--dtype", "bf16", "--seed", "7", "--out", "x"];
        assert_eq!(parse(root, &all), Ok(Request { out: "x".into(), seed: 7, dtype: StoredDtype::Bf16 }));
        for wrong in
            [&["llama"][..], &[], &["gpt2", "--seed"], &["gpt2", "--seed", "-1"], &["gpt2", "--dtype", "f16"]]
        {
            assert!(parse(root, wrong).is_err(), "{wrong:?} was taken");
        }
    }
}
