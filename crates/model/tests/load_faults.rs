//! Damaged and odd model folders: each fault is one error that names the file, the tensor and the reason; never a
//! panic. Odd but valid ones load and compute the same.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use pinion_model::{
    Backend, DtypeChoice, KvSize, LoadError, Model, ModelOptions, OwnedBatch, RowOutcome, StepOutput, WarmUp,
    load,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-c")
}

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, config: &Value, weights: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("pinion-load-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        std::fs::write(path.join("config.json"), config.to_string()).unwrap();
        std::fs::write(path.join("model.safetensors"), weights).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config() -> Value {
    serde_json::from_slice(&std::fs::read(fixture().join("config.json")).unwrap()).unwrap()
}

fn weights() -> Vec<u8> {
    std::fs::read(fixture().join("model.safetensors")).unwrap()
}

/// Rewrites the header of a safetensors file.
fn with_header(file: &[u8], edit: impl FnOnce(&mut serde_json::Map<String, Value>)) -> Vec<u8> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    edit(header.as_object_mut().unwrap());
    let mut text = header.to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut out = (text.len() as u64).to_le_bytes().to_vec();
    out.extend(text);
    out.extend(&file[8 + length..]);
    out
}

fn options() -> ModelOptions {
    ModelOptions { dtype: DtypeChoice::F32, kv: KvSize::Blocks(32), ..ModelOptions::default() }
}

fn fault(name: &str, config: &Value, weights: &[u8]) -> String {
    let folder = Folder::new(name, config, weights);
    match load(&folder.0, &options()) {
        Ok(_) => panic!("{name} loaded"),
        Err(error) => error.to_string(),
    }
}

fn expect(name: &str, message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{name}: {message:?} does not mention {part:?}");
    }
}

#[test]
fn damaged_weights() {
    let (config, weights) = (config(), weights());
    let length = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let mut huge = weights.clone();
    huge[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let mut garbled = weights.clone();
    garbled[9] = b'!';
    let cases: [(&str, &[u8]); 7] = [
        ("empty", &[]),
        ("short", &weights[..5]),
        ("header-cut", &weights[..8 + length / 2]),
        ("data-cut", &weights[..weights.len() - 100]),
        ("huge-header", &huge),
        ("garbled-header", &garbled),
        ("html", b"<html>not found</html>"),
    ];
    for (name, bytes) in cases {
        expect(name, &fault(name, &config, bytes), &["model.safetensors"]);
    }
}

#[test]
fn wrong_tensors() {
    let (config, weights) = (config(), weights());
    let length = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&weights[8..8 + length]).unwrap();
    let name = header.as_object().unwrap().keys().find(|name| name.ends_with("ln_f.weight")).unwrap().clone();
    let renamed = with_header(&weights, |header| {
        let entry = header.remove(&name).unwrap();
        header.insert("elsewhere".into(), entry);
    });
    expect("missing", &fault("missing", &config, &renamed), &["model.safetensors", "ln_f.weight", "missing"]);
    let reshaped = with_header(&weights, |header| header[&name]["shape"] = json!([20, 2]));
    expect("shape", &fault("shape", &config, &reshaped), &["ln_f.weight", "[20, 2]", "[40]"]);
    let retyped = with_header(&weights, |header| header[&name]["dtype"] = json!("I32"));
    expect("dtype", &fault("dtype", &config, &retyped), &["ln_f.weight", "I32", "BF16"]);
}

#[test]
fn wrong_configs() {
    let weights = weights();
    let edited = |key: &str, value: Value| {
        let mut config = config();
        config[key] = value;
        config
    };
    for (name, key, value, part) in [
        ("heads", "n_head", json!(3), "n_head 3"),
        ("zero", "n_layer", json!(0), "n_layer is 0"),
        ("absent", "n_embd", Value::Null, "has no n_embd"),
        ("type", "n_embd", json!("wide"), "n_embd is \"wide\""),
        ("negative", "vocab_size", json!(-5), "vocab_size is -5"),
        ("vocab", "vocab_size", json!(0), "vocab_size is 0"),
        ("family", "model_type", json!("mixtral"), "mixtral"),
        ("activation", "activation_function", json!("relu"), "relu"),
    ] {
        expect(name, &fault(name, &edited(key, value), &weights), &["config.json", part]);
    }
    let layers = fault("layers", &edited("n_layer", json!(2)), &weights);
    expect("layers", &layers, &["h.1.ln_1.weight", "missing"]);
    let untied = fault("untied", &edited("tie_word_embeddings", json!(false)), &weights);
    expect("untied", &untied, &["lm_head.weight", "missing"]);
    let nowhere = load(Path::new("/nonexistent"), &options()).err().unwrap();
    expect("nowhere", &nowhere.to_string(), &["/nonexistent/config.json"]);
}

#[test]
fn wrong_options() {
    for bad in [
        ModelOptions { block_size: 0, ..options() },
        ModelOptions { threads: 0, ..options() },
        ModelOptions { kv: KvSize::Blocks(0), ..options() },
        ModelOptions { kv: KvSize::Bytes(10), ..options() },
        ModelOptions { kv: KvSize::Bytes(u64::MAX), ..options() },
    ] {
        assert!(matches!(load(&fixture(), &bad), Err(LoadError::Options { .. })), "{bad:?}");
    }
    let bytes = ModelOptions { kv: KvSize::Bytes(1 << 20), ..options() };
    let model = load(&fixture(), &bytes).unwrap();
    let info = model.info();
    assert_eq!(info.kv_block_bytes, 16 * 40 * 2 * 4);
    assert_eq!(u64::from(info.block_count), (1 << 20) / info.kv_block_bytes);
    assert_eq!((info.vocab_size, info.eos, info.max_context, info.dtype), (131, Some(130), 256, "f32"));
}

/// Greedy token and logits after `tokens` in one step.
fn prefill(model: &mut dyn Model, prompts: &[&[u32]]) -> (Vec<RowOutcome>, Vec<f32>) {
    let mut batch = OwnedBatch::default();
    for (index, prompt) in (0..).zip(prompts) {
        let blocks: Vec<u32> = (index * 8..index * 8 + 8).collect();
        batch.push(index, 0, prompt, &blocks);
    }
    let batch = batch.as_step();
    let (mut out, mut logits) = (StepOutput::default(), Vec::new());
    model.step(&batch, &mut out).unwrap();
    model.logits(&batch, &mut logits).unwrap();
    (out.rows, logits)
}

/// Names without the usual prefix, and weights stored as bf16, are read as well.
#[test]
fn other_names_and_stored_dtypes() {
    let prompt: &[u32] = &[1, 50, 3, 99];
    let want = prefill(&mut *load(&fixture(), &options()).unwrap(), &[prompt]);
    let renamed = with_header(&weights(), |header| {
        *header = std::mem::take(header)
            .into_iter()
            .map(|(name, entry)| match name.strip_prefix("transformer.") {
                Some(short) => (short.to_owned(), entry),
                None if name == "__metadata__" => (name, entry),
                None => (format!("transformer.{name}"), entry),
            })
            .collect();
    });
    let folder = Folder::new("names", &config(), &renamed);
    assert_eq!(prefill(&mut *load(&folder.0, &options()).unwrap(), &[prompt]), want);

    let mut data = Vec::new();
    let halved = with_header(&weights(), |header| {
        let mut entries: Vec<_> = header.iter_mut().filter(|(name, _)| *name != "__metadata__").collect();
        entries.sort_by_key(|(_, entry)| entry["data_offsets"][0].as_u64().unwrap());
        for (_, entry) in entries {
            entry["dtype"] = json!("BF16");
            for side in 0..2 {
                entry["data_offsets"][side] = json!(entry["data_offsets"][side].as_u64().unwrap() / 2);
            }
        }
    });
    let length = u64::from_le_bytes(halved[..8].try_into().unwrap()) as usize;
    data.extend_from_slice(&halved[..8 + length]);
    for value in halved[8 + length..].chunks_exact(4) {
        let value = f32::from_le_bytes(value.try_into().unwrap());
        data.extend(half::bf16::from_f32(value).to_le_bytes());
    }
    let folder = Folder::new("bf16", &config(), &data);
    let (_, logits) = prefill(&mut *load(&folder.0, &options()).unwrap(), &[prompt]);
    let largest = want.1.iter().fold(0f32, |max, value| max.max(value.abs()));
    for (have, want) in logits.iter().zip(&want.1) {
        assert!((have - want).abs() < 0.05 * largest, "{have} {want}");
    }
}

/// A NaN in the embedding of position 20: only the row that is that long fails.
#[test]
fn a_non_finite_row_does_not_touch_the_others() {
    let mut poisoned = weights();
    let length = u64::from_le_bytes(poisoned[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&poisoned[8..8 + length]).unwrap();
    let entry = header.as_object().unwrap().iter().find(|(name, _)| name.ends_with("wpe.weight")).unwrap().1;
    let start = 8 + length + entry["data_offsets"][0].as_u64().unwrap() as usize;
    poisoned[start + 20 * 40 * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    let folder = Folder::new("nan", &config(), &poisoned);
    let long: Vec<u32> = (0..30).collect();
    let short: &[u32] = &[4, 5, 6];
    for dtype in [DtypeChoice::F32, DtypeChoice::Auto] {
        let options = ModelOptions { dtype, ..options() };
        let alone = prefill(&mut *load(&fixture(), &options).unwrap(), &[short]).0[0];
        let (rows, _) = prefill(&mut *load(&folder.0, &options).unwrap(), &[short, &long, short]);
        assert_eq!(rows, [alone, RowOutcome::NonFinite, alone]);
    }
}

#[test]
fn warm_up_and_the_fake_backend() {
    let mut model = load(&fixture(), &options()).unwrap();
    model.warm_up(&WarmUp { max_rows: 5, max_tokens: 1000 }).unwrap();
    model.warm_up(&WarmUp { max_rows: 0, max_tokens: 0 }).unwrap();
    let fake = load(&fixture(), &ModelOptions { backend: Backend::Fake, ..options() }).unwrap();
    let info = fake.info();
    assert_eq!((info.family, info.vocab_size, info.eos, info.max_context), ("fake", 131, Some(130), 256));
}
