//! Tiny random checkpoints that are quantised already: their goldens (tests/prequantized_goldens, written by
//! tests/make_prequantized.py), and their folders, whose bits are computed from the tensors' names.

#![allow(dead_code, clippy::unwrap_used, reason = "each test includes it and uses its part")]

use crate::tiny::{Folder, empty_folder};
use half::{bf16, f16};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Golden {
    pub(crate) config: Value,
    pub(crate) keeps: Option<String>,
    pub(crate) tensors: BTreeMap<String, Rule>,
    pub(crate) cases: Vec<Case>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Case {
    pub(crate) prompt: Vec<u32>,
    pub(crate) logits: Vec<f32>,
}

/// As in tests/make_prequantized.py.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Rule {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    #[serde(default)]
    pub(crate) base: f32,
    #[serde(default)]
    pub(crate) spread: f32,
    #[serde(default)]
    pub(crate) bits: bool,
    pub(crate) list: Option<Vec<i64>>,
}

impl Rule {
    fn bytes(&self, name: &str) -> Vec<u8> {
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
        let mixed = |place: u64| pinion_random::nth(seed, place);
        let count = self.shape.iter().product::<usize>() as u64;
        let float = |value: f32| match self.dtype.as_str() {
            "F32" => value.to_le_bytes().to_vec(),
            "F16" => f16::from_f32(value).to_le_bytes().to_vec(),
            "BF16" => bf16::from_f32(value).to_le_bytes().to_vec(),
            other => panic!("{name}: no numbers of {other}"),
        };
        if let Some(list) = &self.list {
            let bytes = |&value: &i64| match self.dtype.as_str() {
                "I32" => (value as i32).to_le_bytes().to_vec(),
                "I64" => value.to_le_bytes().to_vec(),
                _ => float(value as f32),
            };
            return list.iter().flat_map(bytes).collect();
        }
        let bits = |step: u64| match (self.dtype.as_str(), (mixed(step) >> 56) as u8) {
            ("I32", _) => ((mixed(step) >> 32) as u32).to_le_bytes().to_vec(),
            ("F8_E4M3", byte) if byte & 0x7f == 0x7f => vec![0],
            (_, byte) => vec![byte],
        };
        let u = |step: u64| (mixed(step) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        (1..=count)
            .flat_map(|step| if self.bits { bits(step) } else { float(self.base + self.spread * u(step)) })
            .collect()
    }
}

pub(crate) fn goldens() -> Vec<(String, Golden)> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/prequantized_goldens"));
    let mut found: Vec<(String, Golden)> = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|file| {
            let name = file.path().file_stem().unwrap().to_string_lossy().into_owned();
            (name, serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap())
        })
        .collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() >= 16);
    found
}

pub(crate) fn safetensors(tensors: &BTreeMap<String, Rule>) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, rule) in tensors {
        let start = data.len();
        data.extend(rule.bytes(name));
        header.insert(
            name.clone(),
            json!({"dtype": rule.dtype, "shape": rule.shape, "data_offsets": [start, data.len()]}),
        );
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend(text);
    file.extend(data);
    file
}

pub(crate) fn folder(golden: &Golden) -> Folder {
    let folder = empty_folder("packed");
    folder.write("config.json", golden.config.to_string().as_bytes());
    folder.write("model.safetensors", &safetensors(&golden.tensors));
    folder
}
