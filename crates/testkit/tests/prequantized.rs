//! Checkpoints that are quantised already, through the real processes: a folder as it is published is served without an
//! option, and what is not supported ends the start with the key and exit code 3.

use crate::tiny_prequantized::{Golden, folder, goldens};
use pinion_model::{DtypeChoice, KvSize, ModelOptions, OwnedBatch, Quantization, load};
use pinion_testkit::{PATIENCE, Server, launcher_binary, run_binary_to_end};
use serde_json::json;

fn golden(name: &str) -> Golden {
    goldens().into_iter().find(|(known, _)| known == name).expect("there is a golden of this name").1
}

fn best(logits: &[f32]) -> u32 {
    (0..).zip(logits).max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id).expect("a vocabulary")
}

#[test]
fn quantised_checkpoints_are_served() {
    for name in ["packed-g32", "integers-channel", "awq-g32", "gptq-act-order", "float8-blocks"] {
        let golden = golden(name);
        let folder = folder(&golden);
        folder.write("tokenizer.json", pinion_text::byte_tokenizer_json().as_bytes());
        let options = ModelOptions {
            dtype: DtypeChoice::F32,
            kv: KvSize::Blocks(16),
            quantization: Quantization::Checkpoint,
            ..ModelOptions::default()
        };
        let mut model = load(&folder.0, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
        let server = Server::start(&folder.0, &["--dtype", "fp32"]);
        for case in &golden.cases {
            let (mut batch, mut logits) = (OwnedBatch::default(), Vec::new());
            batch.push(0, 0, &case.prompt, &[3]);
            model.logits(&batch.as_step(), &mut logits).expect("a step");
            let body = json!({"prompt": case.prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": true,
                "return_token_ids": true});
            let answer = server.post("/v1/completions", &body).json();
            assert_eq!(answer["choices"][0]["token_ids"], json!([best(&logits)]), "{name} {:?}", case.prompt);
            if golden.keeps.is_none() {
                assert_eq!(best(&logits), best(&case.logits), "{name} {:?}", case.prompt);
            }
        }
        server.stop();
    }
}

#[test]
fn an_unknown_method_ends_the_start_with_its_key() {
    for (method, key) in [
        (
            json!({"quant_method": "bitsandbytes"}),
            "quantization_config.quant_method bitsandbytes is not supported",
        ),
        (
            json!({"quant_method": "gptq", "bits": 3}),
            "quantization_config.bits 3 is not supported; supported: 4, 8",
        ),
    ] {
        let mut golden = golden("gptq-g32");
        golden.config["quantization_config"] = method;
        let folder = folder(&golden);
        folder.write("tokenizer.json", pinion_text::byte_tokenizer_json().as_bytes());
        let path = folder.0.to_str().expect("a temporary folder has a plain name");
        let ended = run_binary_to_end(&launcher_binary(), &["serve", path, "--port", "0"], &[], PATIENCE);
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        assert!(ended.stderr.contains(key), "{}", ended.stderr);
    }
    // A tensor that does not fit is the engine's to refuse, with the same code.
    let mut golden = golden("awq-g32");
    golden.tensors.remove("model.layers.1.mlp.up_proj.qzeros");
    let folder = folder(&golden);
    folder.write("tokenizer.json", pinion_text::byte_tokenizer_json().as_bytes());
    let path = folder.0.to_str().expect("a temporary folder has a plain name");
    let ended = run_binary_to_end(&launcher_binary(), &["serve", path, "--port", "0"], &[], PATIENCE);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("mlp.up_proj.qzeros: missing"), "{}", ended.stderr);
}
