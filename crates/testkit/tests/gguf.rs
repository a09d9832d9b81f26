//! GGUF files through the real processes: tokenizer, template, ends and logits all come from the one file; what is
//! damaged or not supported ends the start with exit code 3.

use pinion_model::{DtypeChoice, KvSize, ModelOptions, OwnedBatch, Quantization, load};
use pinion_testkit::{Api, Folder, PATIENCE, Server, continued, launcher_binary, run_binary_to_end};
use pinion_text::TextCodec;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/gguf_goldens"))
        .join(format!("{name}.gguf"))
}

/// The likeliest tokens, one after another.
fn greedy(file: &Path, prompt: &[u32], count: usize) -> Vec<u32> {
    let options = ModelOptions {
        dtype: DtypeChoice::F32,
        kv: KvSize::Blocks(16),
        quantization: Quantization::Checkpoint,
        ..ModelOptions::default()
    };
    let mut model = load(file, &options).unwrap_or_else(|error| panic!("{error}"));
    let blocks: Vec<u32> = (0..6).collect();
    let (mut found, mut logits, mut next, mut start) = (Vec::new(), Vec::new(), prompt.to_vec(), 0);
    while found.len() < count {
        let mut batch = OwnedBatch::default();
        batch.push(0, start, &next, &blocks);
        model.logits(&batch.as_step(), &mut logits).expect("a step");
        start += next.len() as u32;
        let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id);
        next = vec![best.expect("a vocabulary")];
        found.extend(&next);
    }
    found
}

#[test]
fn a_file_is_served_whole() {
    for name in ["llama", "llama-pieces", "qwen2", "qwen3"] {
        let file = path(name);
        let golden: Value =
            serde_json::from_slice(&std::fs::read(file.with_extension("json")).expect("the golden"))
                .expect("JSON");
        let codec = TextCodec::load(&file).expect("the tokenizer");
        let server = Server::start(&file, &["--dtype", "fp32"]);
        let models = server.get("/v1/models").json();
        assert_eq!(models["data"][0]["id"], name);
        let prompt = codec.encode_framed("the other", 64).expect("it encodes");
        let expected = greedy(&file, &prompt, 24);
        let body = json!({"prompt": "the other", "max_tokens": 24, "temperature": 0, "ignore_eos": true,
            "return_token_ids": true});
        let choice = server.post("/v1/completions", &body).json()["choices"][0].clone();
        assert_eq!(choice["prompt_token_ids"], json!(prompt), "{name}");
        assert_eq!(choice["token_ids"], json!(expected), "{name}");
        assert_eq!(choice["text"], continued(&codec, &expected), "{name}");
        // A tokenizer of pieces writes a space before a text's first word and does not show it: here it is shown.
        let mut echoed = body.clone();
        echoed["echo"] = true.into();
        let whole = server.post("/v1/completions", &echoed).json()["choices"][0]["text"].clone();
        assert_eq!(whole, codec.decode_all(&[prompt.as_slice(), expected.as_slice()].concat()), "{name}");
        // Each end that the file names ends a text.
        for end in golden["ends"].as_array().expect("ends") {
            let bias = json!({ end.to_string(): 100 });
            let body = json!({"prompt": "the", "max_tokens": 4, "temperature": 0, "logit_bias": bias});
            let choice = server.post("/v1/completions", &body).json()["choices"][0].clone();
            assert_eq!(
                (choice["text"].as_str(), choice["finish_reason"].as_str()),
                (Some(""), Some("stop")),
                "{name}"
            );
        }
        let chat = json!({"messages": [{"role": "user", "content": "the"}], "max_tokens": 4, "stream": true});
        assert_eq!(server.ask(Api::Chat, &chat).status, 200, "{name}");
        server.stop();
    }
}

/// One model as a folder and as files of F32 and F16: the same greedy ids for completions, the same chats.
#[test]
fn a_file_answers_as_the_folder_that_it_was_made_from() {
    let folder = path("plain").with_extension("");
    let answers = |model: &Path| {
        let server = Server::start(model, &["--dtype", "fp32"]);
        let mut found = Vec::new();
        for prompt in ["the other", "12 the\n", "é <turn> there"] {
            let body = json!({"prompt": prompt, "max_tokens": 32, "temperature": 0, "ignore_eos": true,
                "return_token_ids": true});
            let choice = server.post("/v1/completions", &body).json()["choices"][0].clone();
            found.push(json!([choice["prompt_token_ids"], choice["token_ids"], choice["text"]]));
        }
        // The temperature is that of generation_config.json, and of general.sampling.temp.
        let chat = json!({"messages": [{"role": "user", "content": "the"}], "max_tokens": 16, "seed": 3});
        let chat = server.post("/v1/chat/completions", &chat).json();
        found.push(json!([chat["choices"][0]["message"]["content"], chat["usage"]["prompt_tokens"]]));
        server.stop();
        found
    };
    let of_folder = answers(&folder);
    assert!(of_folder[0][1].as_array().is_some_and(|ids| ids.len() == 32), "{of_folder:?}");
    for name in ["plain-f32", "plain-f16"] {
        assert_eq!(answers(&path(name)), of_folder, "{name}");
    }
}

/// The examination of a file is that of a folder.
#[test]
fn the_doctor_examines_a_file() {
    let file = path("qwen3");
    let text = file.to_str().expect("a plain name");
    let ended = run_binary_to_end(&launcher_binary(), &["doctor", text], &[], PATIENCE);
    for part in ["qwen3.gguf is served as qwen3: context 96 of 96, 2 layers", "whole: tensors: 25, files: 1"]
    {
        assert!(ended.stdout.contains(part), "{part}: {}{}", ended.stdout, ended.stderr);
    }
    // This one has no head: its embeddings, 272 of 32 numbers, are held a second time as one.
    let file = path("plain-f32");
    let text = file.to_str().expect("a plain name");
    let ended = run_binary_to_end(&launcher_binary(), &["doctor", text, "--dtype", "fp32"], &[], PATIENCE);
    for part in ["106.6 KiB", "weights about 140.6 KiB"] {
        assert!(ended.stdout.contains(part), "{part}: {}{}", ended.stdout, ended.stderr);
    }
}

#[test]
fn damaged_and_unsupported_files_end_the_start() {
    let folder = Folder::new();
    let whole = std::fs::read(path("llama")).expect("the golden");
    let replaced = |from: &[u8], to: &[u8]| {
        let at = whole.windows(from.len()).position(|window| window == from).expect("it is there");
        [&whole[..at], to, &whole[at + from.len()..]].concat()
    };
    for (bytes, part) in [
        (whole[..5000].to_vec(), "is truncated"),
        (whole[..whole.len() - 900].to_vec(), "ends behind the end of the file"),
        (Vec::new(), "is truncated"),
        (b"GGUF\x01\0\0\0".to_vec(), "has version 1 of GGUF"),
        (
            replaced(
                b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama",
                b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0mamba",
            ),
            "general.architecture mamba is not supported; supported: llama, qwen2, qwen3",
        ),
        (replaced(b"llama-bpe", b"other-bpe"), "tokenizer.ggml.pre other-bpe is not supported"),
    ] {
        let file = folder.path().join("model.gguf");
        std::fs::write(&file, bytes).expect("a file in a temporary folder can be written");
        let text = file.to_str().expect("a plain name");
        let ended = run_binary_to_end(&launcher_binary(), &["serve", text, "--port", "0"], &[], PATIENCE);
        assert_eq!(ended.code, Some(3), "{part}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(part) && ended.stderr.contains("model.gguf"),
            "{part}: {}",
            ended.stderr
        );
    }
}
