//! Makes a Hugging Face folder of GPT-2's 124 M shape without a network: random weights and the real tokenizer.
//! Speed and memory depend on the shape alone, so this folder stands in for the published one in benchmarks and
//! load tests. Its text is noise: for readable output use deploy/demo-model. `tiny` is the same in a size that an
//! emulated device serves within seconds, with a token for each byte.

mod rng;
mod tokenizer;
mod weights;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use weights::{Filling, Shape, StoredDtype};

/// Which model.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Preset {
    Gpt2,
    Tiny,
}

impl Preset {
    fn default_out(self) -> &'static str {
        match self {
            Self::Gpt2 => "target/models/gpt2-124m",
            Self::Tiny => "target/models/tiny",
        }
    }

    fn shape(self) -> &'static Shape {
        match self {
            Self::Gpt2 => &Shape::GPT2,
            Self::Tiny => &Shape::TINY,
        }
    }

    /// Writes tokenizer.json.
    fn write_tokenizer(self, path: &Path) -> Result<(), String> {
        match self {
            Self::Gpt2 => {
                println!("tokenizer: GPT-2's, rebuilt from the ranks of the tiktoken-rs crate");
                tokenizer::gpt2()?.save(path, false).map_err(|error| format!("tokenizer.json: {error}"))
            }
            Self::Tiny => {
                println!("tokenizer: a token for each byte");
                fs::write(path, pinion_text::byte_tokenizer_json())
                    .map_err(|error| format!("tokenizer.json: {error}"))
            }
        }
    }
}

/// The parsed command line of `make-model`.
#[derive(Debug, PartialEq)]
struct Request {
    preset: Preset,
    out: PathBuf,
    filling: Filling,
}

/// `make-model gpt2|tiny [--out DIR] [--seed N] [--dtype f32|bf16] [--deviation X]`
pub(crate) fn run(root: &Path, args: &[&str]) -> Result<(), String> {
    let request = parse(root, args)?;
    let began = Instant::now();
    fs::create_dir_all(&request.out)
        .map_err(|error| format!("cannot make {}: {error}", request.out.display()))?;

    let shape = request.preset.shape();
    let end = shape.end_of_text();
    request.preset.write_tokenizer(&request.out.join("tokenizer.json"))?;
    write_json(&request.out, "tokenizer_config.json", &tokenizer_config(shape))?;
    write_json(&request.out, "config.json", &model_config(shape, request.filling.dtype))?;
    write_json(&request.out, "generation_config.json", &json!({"bos_token_id": end, "eos_token_id": end}))?;
    weights::write(&request.out.join("model.safetensors"), shape, request.filling)?;

    println!("{} is ready after {:.1} s", request.out.display(), began.elapsed().as_secs_f32());
    Ok(())
}

fn parse(root: &Path, args: &[&str]) -> Result<Request, String> {
    let (preset, flags) = match args {
        ["gpt2", flags @ ..] => (Preset::Gpt2, flags),
        ["tiny", flags @ ..] => (Preset::Tiny, flags),
        _ => return Err("make-model: the known models are gpt2 and tiny".to_owned()),
    };
    let out = root.join(preset.default_out());
    let filling = Filling { seed: 0, dtype: StoredDtype::F32, deviation: weights::INITIALIZER_RANGE };
    let mut request = Request { preset, out, filling };
    for pair in flags.chunks(2) {
        match pair {
            ["--out", dir] => request.out = PathBuf::from(dir),
            ["--seed", seed] => {
                request.filling.seed =
                    seed.parse().map_err(|_| format!("--seed: {seed} is not a whole number"))?;
            }
            ["--dtype", "f32"] => request.filling.dtype = StoredDtype::F32,
            ["--dtype", "bf16"] => request.filling.dtype = StoredDtype::Bf16,
            ["--deviation", text] => {
                let deviation = text.parse().ok().filter(|value: &f32| value.is_finite() && *value >= 0.0);
                request.filling.deviation =
                    deviation.ok_or_else(|| format!("--deviation: {text} is not a number of at least 0"))?;
            }
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
        "bos_token_id": shape.end_of_text(),
        "eos_token_id": shape.end_of_text(),
        "torch_dtype": dtype.config_name(),
    })
}

fn tokenizer_config(shape: &Shape) -> serde_json::Value {
    json!({
        "tokenizer_class": "GPT2Tokenizer",
        "add_prefix_space": false,
        "bos_token": tokenizer::END_OF_TEXT,
        "eos_token": tokenizer::END_OF_TEXT,
        "unk_token": tokenizer::END_OF_TEXT,
        "clean_up_tokenization_spaces": false,
        "model_max_length": shape.positions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines() {
        let root = Path::new("r");
        let plain = Filling { seed: 0, dtype: StoredDtype::F32, deviation: 0.02 };
        let request = |preset, out: &str, filling| Ok(Request { preset, out: PathBuf::from(out), filling });
        assert_eq!(parse(root, &["gpt2"]), request(Preset::Gpt2, "r/target/models/gpt2-124m", plain));
        assert_eq!(parse(root, &["tiny"]), request(Preset::Tiny, "r/target/models/tiny", plain));
        let all = ["gpt2", "--dtype", "bf16", "--seed", "7", "--out", "x", "--deviation", "0.5"];
        let filling = Filling { seed: 7, dtype: StoredDtype::Bf16, deviation: 0.5 };
        assert_eq!(parse(root, &all), request(Preset::Gpt2, "x", filling));
        for wrong in [
            &["llama"][..],
            &[],
            &["gpt2", "--seed"],
            &["gpt2", "--seed", "-1"],
            &["gpt2", "--dtype", "f16"],
            &["gpt2", "--deviation", "nan"],
        ] {
            assert!(parse(root, wrong).is_err(), "{wrong:?} was taken");
        }
    }
}
