//! Blocks of every type against what the Python package `gguf` unpacks (crates/model/tests/make_gguf.py).

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use pinion_gguf::BlockType;
use serde_json::Value;

#[test]
fn blocks_of_every_type_are_unpacked_to_the_bit() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/gguf_goldens/blocks.json");
    let goldens: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let every = [
        ("F32", BlockType::F32),
        ("F16", BlockType::F16),
        ("BF16", BlockType::Bf16),
        ("Q4_0", BlockType::Q4_0),
        ("Q4_1", BlockType::Q4_1),
        ("Q5_0", BlockType::Q5_0),
        ("Q5_1", BlockType::Q5_1),
        ("Q8_0", BlockType::Q8_0),
        ("Q4_K", BlockType::Q4K),
        ("Q5_K", BlockType::Q5K),
        ("Q6_K", BlockType::Q6K),
    ];
    assert_eq!(goldens.as_object().unwrap().len(), every.len());
    for (name, kind) in every {
        let golden = &goldens[name];
        let text = golden["bytes"].as_str().unwrap();
        let bytes: Vec<u8> =
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect();
        let want: Vec<f32> =
            golden["values"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap() as f32).collect();
        assert_eq!(bytes.len(), 256 / kind.numbers() * kind.bytes(), "{name}");
        let mut have = vec![9.0f32; 256];
        kind.unpack(&bytes, &mut have);
        for (at, (have, want)) in have.iter().zip(&want).enumerate() {
            assert!((have - want).abs() == 0.0, "{name} {at}: {have:e}, not {want:e}");
        }
        assert!(have.iter().any(|value| *value != have[0]), "{name}");
        if kind == BlockType::Q4_0 {
            let (mut integers, mut scales) = (vec![0i8; 256], vec![0f32; 8]);
            BlockType::integers_of_q4_0(&bytes, &mut integers, &mut scales);
            let values: Vec<f32> =
                integers.iter().enumerate().map(|(at, &q)| f32::from(q) * scales[at / 32]).collect();
            assert_eq!(values, have);
        }
    }
}
