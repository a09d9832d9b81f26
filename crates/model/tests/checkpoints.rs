//! Weights in one file and in several load alike; files that lie are refused, each with the file, the tensor and the
//! reason.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]
#![cfg(feature = "torch")]

use crate::tiny::{Folder, Golden, empty_folder, folder, golden, safetensors};
use pinion_model::{DtypeChoice, KvSize, LoadEvent, Model, ModelOptions, OwnedBatch, load, load_watched};
use serde_json::{Map, Value, json};

fn options() -> ModelOptions {
    ModelOptions { dtype: DtypeChoice::F32, kv: KvSize::Blocks(32), ..ModelOptions::default() }
}

fn logits(model: &mut dyn Model) -> Vec<f32> {
    let mut batch = OwnedBatch::default();
    batch.push(0, 0, &[3, 1, 4, 1, 5], &[0]);
    let mut logits = Vec::new();
    model.logits(&batch.as_step(), &mut logits).unwrap();
    logits
}

const FILES: [&str; 3] = [
    "model-00001-of-00003.safetensors",
    "model-00002-of-00003.safetensors",
    "model-00003-of-00003.safetensors",
];

/// The model in three files, each third tensor in each, after `edit` of the index.
fn sharded(golden: &Golden, edit: impl FnOnce(&mut Map<String, Value>)) -> Folder {
    let folder = empty_folder("sharded");
    folder.write("config.json", Value::Object(golden.config.clone()).to_string().as_bytes());
    let mut map = Map::new();
    for (at, file) in FILES.iter().enumerate() {
        let part = || golden.tensors.iter().skip(at).step_by(FILES.len());
        folder.write(file, &safetensors(part()));
        map.extend(part().map(|(name, _)| (name.clone(), json!(file))));
    }
    edit(&mut map);
    folder.write("model.safetensors.index.json", json!({"weight_map": map}).to_string().as_bytes());
    folder
}

#[test]
fn several_files_load_as_one() {
    let golden = golden("llama-llama3");
    let want = logits(&mut *load(&folder("one", &golden).0, &options()).unwrap());
    let several = sharded(&golden, |_| {});
    assert_eq!(logits(&mut *load(&several.0, &options()).unwrap()), want);
}

#[test]
fn a_load_tells_how_far_it_is_and_what_is_not_used() {
    let mut golden = golden("llama-llama3");
    let extra = golden.tensors["model.norm.weight"].clone();
    for name in ["model.stray.weight", "model.layers.0.self_attn.rotary_emb.inv_freq", "lm_head.weight"] {
        golden.tensors.insert(name.to_owned(), extra.clone());
    }
    golden.config.insert("final_logit_softcapping".to_owned(), 30.into());
    let folder = folder("watched", &golden);
    let (mut last, mut unused, mut ignored) = ((0, 0), Vec::new(), Vec::new());
    let mut watch = |event: LoadEvent<'_>| match event {
        LoadEvent::Bytes { done, total } => {
            assert!(done > last.0 && done <= total, "{done} after {last:?}");
            last = (done, total);
        }
        LoadEvent::Unused(names) => unused.extend_from_slice(names),
        LoadEvent::Ignored(reasons) => ignored.extend_from_slice(reasons),
        LoadEvent::WithoutKernels(reason) => panic!("no kernels are asked for: {reason}"),
    };
    load_watched(&folder.0, &options(), &mut watch).unwrap();
    // All but the three extra vectors of 48 numbers.
    assert_eq!(last.1 - last.0, 3 * 48 * 4);
    assert_eq!(unused, ["model.stray.weight"]);
    let reason =
        "final_logit_softcapping is 30; models of the model_type llama are served without it: it is ignored";
    assert_eq!(ignored, [reason]);
}

/// As in transformers: a tied model's files may have the one tensor under either name, or both with their own numbers.
#[test]
fn a_tied_head_that_differs_is_the_head() {
    let mut golden = golden("llama-llama3");
    let tied = logits(&mut *load(&folder("tied", &golden).0, &options()).unwrap());
    let mut file = safetensors(golden.tensors.iter());
    let name = br#""model.embed_tokens.weight""#;
    let at = file.windows(name.len()).position(|part| part == name).unwrap();
    let other = format!("{:width$}", r#""lm_head.weight""#, width = name.len());
    file[at..at + name.len()].copy_from_slice(other.as_bytes());
    let renamed = folder("renamed", &golden);
    renamed.write("model.safetensors", &file);
    assert_eq!(logits(&mut *load(&renamed.0, &options()).unwrap()), tied);

    // The numbers of a tensor follow from its name.
    let table = golden.tensors["model.embed_tokens.weight"].clone();
    golden.tensors.insert("lm_head.weight".to_owned(), table);
    let mut told = Vec::new();
    let mut watch = |event: LoadEvent<'_>| {
        if let LoadEvent::Ignored(reasons) = event {
            told.extend_from_slice(reasons);
        }
    };
    let both = logits(&mut *load_watched(&folder("both", &golden).0, &options(), &mut watch).unwrap());
    assert!(told.len() == 1 && told[0].contains("lm_head.weight has other numbers"), "{told:?}");
    golden.config.insert("tie_word_embeddings".to_owned(), false.into());
    let untied = logits(&mut *load(&folder("untied", &golden).0, &options()).unwrap());
    assert_eq!(both, untied);
    assert_ne!(both, tied);
}

fn fault(folder: &Folder) -> String {
    match load(&folder.0, &options()) {
        Ok(_) => panic!("it loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn an_index_that_lies_is_refused() {
    let golden = golden("llama-llama3");
    for name in [
        "../model.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        ".safetensors",
        "model.bin",
        "a\\b.safetensors",
        "",
    ] {
        let bad = sharded(&golden, |map| drop(map.insert("model.norm.weight".into(), json!(name))));
        assert!(fault(&bad).contains("is not a safetensors file of this folder"), "{name}: {}", fault(&bad));
    }
    let bad = sharded(&golden, |map| drop(map.insert("model.norm.weight".into(), json!(5))));
    assert!(fault(&bad).contains("is not a safetensors file"));
    let elsewhere = sharded(&golden, |map| drop(map.insert("model.norm.weight".into(), json!(FILES[0]))));
    let message = fault(&elsewhere);
    assert!(message.contains(FILES[0]) && message.contains("has no tensor model.norm.weight"), "{message}");
    let unmapped = sharded(&golden, |map| drop(map.remove("model.norm.weight")));
    let message = fault(&unmapped);
    assert!(message.contains("index.json: tensor norm.weight: missing"), "{message}");
    let lost = sharded(&golden, |_| {});
    std::fs::remove_file(lost.0.join(FILES[1])).unwrap();
    assert!(fault(&lost).contains(FILES[1]), "{}", fault(&lost));
    for index in ["", "[]", "{}", "{\"weight_map\": {}}", "{\"weight_map\": 3}"] {
        let bad = sharded(&golden, |_| {});
        bad.write("model.safetensors.index.json", index.as_bytes());
        assert!(fault(&bad).contains("model.safetensors.index.json"), "{index}");
    }
}

#[test]
fn tensors_that_overlap_or_lie_about_their_size_are_refused() {
    type Lie<'a> = &'a dyn Fn(&mut Map<String, Value>);
    let golden = golden("llama-llama3");
    let edited = |edit: Lie<'_>| {
        let folder = folder("lies", &golden);
        let file = std::fs::read(folder.0.join("model.safetensors")).unwrap();
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let mut header: Map<String, Value> = serde_json::from_slice(&file[8..8 + length]).unwrap();
        edit(&mut header);
        let text = Value::Object(header).to_string().into_bytes();
        let mut out = (text.len() as u64).to_le_bytes().to_vec();
        out.extend(text);
        out.extend(&file[8 + length..]);
        folder.write("model.safetensors", &out);
        folder
    };
    let name = "model.norm.weight";
    let lies: [Lie<'_>; 5] = [
        &|header| header[name]["data_offsets"] = json!([0, 192]),
        &|header| header[name]["data_offsets"] = json!([192, 0]),
        &|header| header[name]["data_offsets"] = json!([1u64 << 60, (1u64 << 60) + 192]),
        &|header| header[name]["shape"] = json!([49]),
        &|header| header[name]["shape"] = json!([1u64 << 62, 8]),
    ];
    for (index, lie) in lies.iter().enumerate() {
        let message = fault(&edited(lie));
        assert!(message.contains("not a whole safetensors file"), "{index}: {message}");
    }
    let retyped = fault(&edited(&|header| header[name]["dtype"] = json!("I32")));
    assert!(retyped.contains("tensor model.norm.weight: has dtype I32"), "{retyped}");
    assert!(load(&edited(&|_| {}).0, &options()).is_ok(), "an edit of nothing");
}

/// The text model of a multimodal folder, under both of the names that transformers has given its tensors.
#[test]
fn a_wrapped_text_model_loads() {
    let golden = golden("gemma3");
    let want = logits(&mut *load(&folder("plain", &golden).0, &options()).unwrap());
    for prefix in ["language_model.model.", "model.language_model."] {
        let folder = folder("wrapped", &golden);
        let file = std::fs::read(folder.0.join("model.safetensors")).unwrap();
        let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        let text = String::from_utf8(file[8..8 + length].to_vec()).unwrap();
        let text = text.replace("\"model.", &format!("\"{prefix}"));
        let mut out = (text.len() as u64).to_le_bytes().to_vec();
        out.extend(text.as_bytes());
        out.extend(&file[8 + length..]);
        folder.write("model.safetensors", &out);
        let config = json!({"model_type": "gemma3", "text_config": golden.config});
        folder.write("config.json", config.to_string().as_bytes());
        assert_eq!(logits(&mut *load(&folder.0, &options()).unwrap()), want, "{prefix}");
    }
}
