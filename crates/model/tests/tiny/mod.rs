//! Tiny random models of every family: their goldens (tests/families, written by tests/make_families.py), and their
//! folders, whose weights are computed from the tensors' names.

#![allow(dead_code, reason = "each test includes it and uses its part")]

use pinion_random::Random;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What transformers says of one model.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Golden {
    pub(crate) config: Map<String, Value>,
    pub(crate) served: u32,
    pub(crate) tensors: BTreeMap<String, Rule>,
    pub(crate) cases: Vec<Case>,
}

/// How a tensor's numbers are made.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Rule {
    pub(crate) shape: Vec<usize>,
    base: f32,
    spread: f32,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Case {
    pub(crate) prompt: Vec<u32>,
    pub(crate) greedy: Vec<u32>,
    /// Left out of most cases to keep the files small.
    pub(crate) logits_last: Option<Vec<f32>>,
}

/// A folder of its own, removed at the end.
#[derive(Debug)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn goldens() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/families")).to_owned()
}

/// Names of all goldens.
pub(crate) fn names() -> Vec<String> {
    let files = std::fs::read_dir(goldens()).expect("the goldens are there");
    let name = |path: PathBuf| path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
    let mut names: Vec<String> = files.flatten().map(|file| name(file.path())).collect();
    names.sort();
    names
}

pub(crate) fn golden(name: &str) -> Golden {
    let text = std::fs::read(goldens().join(format!("{name}.json"))).expect("there is a golden of this name");
    serde_json::from_slice(&text).expect("the maker wrote it")
}

impl Rule {
    /// SplitMix64 from FNV-1a of the name, as in tests/make_families.py.
    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
        let mut random = Random::new(seed);
        let count = self.shape.iter().product::<usize>();
        (0..count).map(|_| self.base + self.spread * random.value()).collect()
    }
}

/// The largest distance, relative to the largest number.
pub(crate) fn relative_error(have: &[f32], want: &[f32]) -> f32 {
    assert_eq!(have.len(), want.len());
    let largest = want.iter().fold(0f32, |max, value| max.max(value.abs()));
    have.iter().zip(want).fold(0f32, |max, (a, b)| max.max((a - b).abs())) / largest
}

/// The bytes of a safetensors file with these tensors in fp32.
pub(crate) fn safetensors<'a>(tensors: impl Iterator<Item = (&'a String, &'a Rule)>) -> Vec<u8> {
    safetensors_as(tensors, |_| ("F32", |value| value.to_le_bytes().to_vec()))
}

/// A type of the file and the bytes of a number in it.
pub(crate) type StoredAs = (&'static str, fn(f32) -> Vec<u8>);

/// The same, each tensor in the type that `stored` gives for its name.
pub(crate) fn safetensors_as<'a>(
    tensors: impl Iterator<Item = (&'a String, &'a Rule)>,
    stored: impl Fn(&str) -> StoredAs,
) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, rule) in tensors {
        let (start, (dtype, bytes_of)) = (data.len(), stored(name));
        data.extend(rule.values(name).into_iter().flat_map(bytes_of));
        let entry = json!({"dtype": dtype, "shape": rule.shape, "data_offsets": [start, data.len()]});
        header.insert(name.clone(), entry);
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text);
    file.extend(data);
    file
}

/// An empty folder.
pub(crate) fn empty_folder(name: &str) -> Folder {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("pinion-tiny-{}-{number}-{name}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a temporary folder can be made");
    Folder(path)
}

impl Folder {
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.0.join(name), bytes).expect("a file in a temporary folder can be written");
    }
}

/// A file that says it is a Llama and has the biases of a Qwen 2, which a Llama has not.
pub(crate) fn llama_with_biases() -> Folder {
    let mut file = std::fs::read(goldens().join("../gguf_goldens/qwen2.gguf")).expect("the golden is there");
    let mut rename = |from: &str, to: &str| {
        let places: Vec<usize> =
            (0..file.len() - from.len()).filter(|&at| file[at..].starts_with(from.as_bytes())).collect();
        assert!(from.len() == to.len() && !places.is_empty(), "{from}");
        places.into_iter().for_each(|at| file[at..at + to.len()].copy_from_slice(to.as_bytes()));
    };
    let family = |name: &str| format!("architecture\u{8}\0\0\0\u{5}\0\0\0\0\0\0\0{name}");
    rename(&family("qwen2"), &family("llama"));
    rename("qwen2.", "llama.");
    // Those of the first layer would make it a Llama with `attention_bias`.
    rename("blk.0.attn_q.bias", "blk.9.attn_q.bias");
    let folder = empty_folder("biases");
    folder.write("model.gguf", &file);
    folder
}

/// What a load says of them.
pub(crate) const LOST_BIAS: &str =
    "tensor model.layers.0.self_attn.k_proj.bias: is a bias of a product that has none in this model_type";

/// The model's folder, its weights in one file.
pub(crate) fn folder(name: &str, golden: &Golden) -> Folder {
    let folder = empty_folder(name);
    folder.write("config.json", Value::Object(golden.config.clone()).to_string().as_bytes());
    folder.write("model.safetensors", &safetensors(golden.tensors.iter()));
    folder
}
