//! Headers that lie: each is one line that says what is wrong, without a panic and without memory for what is not
//! there.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use pinion_gguf::{Header, folder_file, is_gguf};
use pinion_random::Random;
use std::path::{Path, PathBuf};

const FILES: [&str; 4] = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"];

/// A file from its parts.
#[derive(Clone)]
struct Parts {
    version: u32,
    tensor_count: Option<u64>,
    value_count: Option<u64>,
    values: Vec<(String, u32, Vec<u8>)>,
    /// Name, axes from the innermost, type, offset.
    tensors: Vec<(String, Vec<u64>, u32, u64)>,
    data: usize,
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

impl Parts {
    fn good() -> Parts {
        let named = |key: &str, kind: u32, bytes: Vec<u8>| (key.to_owned(), kind, bytes);
        Parts {
            version: 3,
            tensor_count: None,
            value_count: None,
            values: vec![
                named("general.architecture", 8, text("llama")),
                named("llama.block_count", 4, 2u32.to_le_bytes().to_vec()),
            ],
            tensors: vec![("a".into(), vec![4, 2], 0, 0), ("b".into(), vec![32], 8, 32)],
            data: 66,
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        file.extend(self.value_count.unwrap_or(self.values.len() as u64).to_le_bytes());
        for (key, kind, bytes) in &self.values {
            file.extend(text(key));
            file.extend(kind.to_le_bytes());
            file.extend(bytes);
        }
        for (name, axes, kind, offset) in &self.tensors {
            file.extend(text(name));
            file.extend((axes.len() as u32).to_le_bytes());
            axes.iter().for_each(|axis| file.extend(axis.to_le_bytes()));
            file.extend(kind.to_le_bytes());
            file.extend(offset.to_le_bytes());
        }
        file.resize(file.len().next_multiple_of(32) + self.data, 0);
        file
    }
}

fn read(bytes: &[u8]) -> Result<Header, String> {
    Header::read(bytes, bytes.len() as u64).map_err(|error| error.to_string())
}

#[test]
fn a_whole_header_is_read() {
    let header = read(&Parts::good().bytes()).unwrap();
    assert_eq!(header.text("general.architecture"), Ok(Some("llama")));
    assert_eq!(header.number("llama.block_count"), Ok(Some(2)));
    let a = header.tensor("a").unwrap();
    assert_eq!((a.shape.as_slice(), a.range.len()), (&[2, 4][..], 32));
    assert_eq!(header.tensor("b").unwrap().range, a.range.end..a.range.end + 34);
}

#[test]
fn lies_are_told_in_one_line() {
    let good = Parts::good();
    let with = |edit: &dyn Fn(&mut Parts)| {
        let mut parts = good.clone();
        edit(&mut parts);
        parts.bytes()
    };
    let list = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    let value = |kind: u32, bytes: Vec<u8>| {
        with(&|parts: &mut Parts| parts.values[1] = ("k".into(), kind, bytes.clone()))
    };
    let tensor = |axes: &[u64], kind: u32, offset: u64| {
        with(&|parts: &mut Parts| parts.tensors[1] = ("b\nc".into(), axes.to_vec(), kind, offset))
    };
    let huge = u64::MAX;
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("ends within its header", Vec::new()),
        ("is not a GGUF file", b"GGML____".to_vec()),
        ("version 1 of GGUF", with(&|parts| parts.version = 1)),
        ("version 50331648", with(&|parts| parts.version = 3u32.swap_bytes())),
        ("tensors, more than 65536", with(&|parts| parts.tensor_count = Some(huge))),
        ("metadata keys, more than 65536", with(&|parts| parts.value_count = Some(huge))),
        ("does not fit the rest of the header (key k)", value(8, huge.to_le_bytes().to_vec())),
        ("does not fit the rest of the header (key k)", value(9, list(4, huge))),
        ("does not fit the rest of the header (key k)", value(9, list(8, 1 << 40))),
        ("does not fit the rest of the header (key k)", value(9, list(0, 1 << 10))),
        ("a list of lists, which is not supported (key k)", value(9, list(9, 1))),
        ("has 2 where true or false is expected (key k)", value(7, vec![2])),
        ("a name of more than 1024 bytes", with(&|parts| parts.values[1].0 = "k".repeat(1025))),
        ("unknown type 77", value(77, Vec::new())),
        ("unknown type 13", value(9, [list(13, 1), vec![0; 8]].concat())),
        ("not UTF-8", value(8, [1u64.to_le_bytes().to_vec(), vec![0xff]].concat())),
        ("the key general.architecture twice", with(&|parts| parts.values[1] = parts.values[0].clone())),
        ("the tensor a twice", with(&|parts| parts.tensors[1] = parts.tensors[0].clone())),
        ("the tensors a and b in the same place", with(&|parts| parts.tensors[1].3 = 0)),
        (
            "split.count 3: a model in several files is not supported",
            with(&|parts| parts.values[1] = ("split.count".into(), 2, 3u16.to_le_bytes().to_vec())),
        ),
        (r"tensor b\nc has 0 axes", tensor(&[], 0, 0)),
        (r"tensor b\nc has 5 axes", tensor(&[1; 5], 0, 0)),
        (r"tensor b\nc has the shape", tensor(&[huge, 2], 0, 0)),
        (r"tensor b\nc has the shape [0]", tensor(&[0], 0, 0)),
        (r"no whole number of blocks of 32", tensor(&[33], 8, 0)),
        (r"no whole number of blocks of 256", tensor(&[32], 12, 0)),
        (r"has the type IQ4_XS, which is not supported", tensor(&[256], 23, 0)),
        (r"has the type 4000, which is not supported", tensor(&[256], 4000, 0)),
        (r"begins at 33", tensor(&[1], 0, 33)),
        (r"ends behind the end of the file", tensor(&[64], 0, 32)),
        (r"ends behind the end of the file", tensor(&[1 << 40], 0, 32)),
        (r"ends behind the end of the file", tensor(&[1], 0, huge - 31)),
        (r"ends behind the end of the file", tensor(&[1 << 62], 0, 0)),
        (
            "general.alignment 0; expected a power of two",
            with(&|parts| parts.values[1] = ("general.alignment".into(), 4, 0u32.to_le_bytes().to_vec())),
        ),
        (
            "general.alignment is not a whole number",
            with(&|parts| parts.values[1] = ("general.alignment".into(), 8, text("32"))),
        ),
    ];
    for (part, bytes) in cases {
        let message = read(&bytes).expect_err(part);
        assert!(message.contains(part) && message.lines().count() == 1, "{message:?} does not say {part:?}");
    }
}

fn goldens() -> Vec<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/gguf_goldens"));
    let files = std::fs::read_dir(folder).unwrap().flatten().map(|file| file.path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "gguf")).collect()
}

/// Cut anywhere, or with any byte of the header changed: an error of one line, or a file that is read.
#[test]
fn no_damage_panics() {
    let folder = std::env::temp_dir().join(format!("pinion-gguf-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("damaged.gguf");
    let seed = 16;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut refused = 0;
    for golden in goldens() {
        let whole = std::fs::read(&golden).unwrap();
        let header = Header::open(&golden).unwrap().bytes as usize;
        for round in 0..300 {
            let mut bytes = whole.clone();
            match round % 3 {
                0 => bytes.truncate(random.below(whole.len())),
                1 => bytes[random.below(header)] = random.bits() as u8,
                _ => bytes[random.below(header)] ^= 1 << random.below(8),
            }
            std::fs::write(&path, &bytes).unwrap();
            for name in FILES {
                if let Err(error) = folder_file(&path, name) {
                    refused += 1;
                    assert_eq!(error.to_string().lines().count(), 1, "{error}");
                }
            }
        }
    }
    assert!(refused > 300, "{refused}");
    assert!(is_gguf(&path) && !is_gguf(&folder) && !is_gguf(&folder.join("none.gguf")));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A file with the metadata of a golden and a few keys more or other.
fn with_values(golden: &Path, edit: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
    let whole = std::fs::read(golden).unwrap();
    let mut header = whole[..24].to_vec();
    let count = u64::from_le_bytes(whole[16..24].try_into().unwrap()) + edit.len() as u64;
    header[16..24].copy_from_slice(&count.to_le_bytes());
    let mut file = header;
    for (key, kind, bytes) in edit {
        file.extend(text(key));
        file.extend(kind.to_le_bytes());
        file.extend(bytes);
    }
    let old = Header::open(golden).unwrap();
    file.extend(&whole[24..old.bytes as usize]);
    let data = (old.bytes as usize).next_multiple_of(32);
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(&whole[data..]);
    file
}

/// llama.cpp's converter writes both, and llama.cpp runs without either.
#[test]
fn factors_of_yarn_may_say_what_holds_without_them() {
    let folder = std::env::temp_dir().join(format!("pinion-gguf-yarn-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("m.gguf");
    let golden = goldens().into_iter().find(|path| path.ends_with("qwen2.gguf")).unwrap();
    let f32_of = |number: f32| number.to_le_bytes().to_vec();
    let yarn = |more: &[(&'static str, f32)]| {
        let mut values =
            vec![("qwen2.rope.scaling.type", 8, text("yarn")), ("qwen2.rope.scaling.factor", 6, f32_of(4.0))];
        values.extend(more.iter().map(|&(key, number)| (key, 6, f32_of(number))));
        std::fs::write(&path, with_values(&golden, &values)).unwrap();
        folder_file(&path, "config.json").map(|_| ()).map_err(|error| error.to_string())
    };
    let (attention, mix) = ("qwen2.rope.scaling.yarn_attn_factor", "qwen2.rope.scaling.yarn_ext_factor");
    assert_eq!(yarn(&[(attention, 1.138_629_4), (mix, 1.0)]), Ok(()));
    for (key, number, part) in
        [(attention, 1.0, "yarn_attn_factor 1; supported: 1.138629"), (mix, 0.5, "supported: 1.0")]
    {
        assert!(yarn(&[(key, number)]).unwrap_err().contains(part), "{key}");
    }
    std::fs::write(&path, with_values(&golden, &[(mix, 6, f32_of(1.0))])).unwrap();
    let found = folder_file(&path, "config.json").unwrap_err().to_string();
    assert!(found.contains("yarn_ext_factor without yarn"), "{found}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// What is not known changes what the model computes, and is refused by its key.
#[test]
fn keys_that_are_not_known_are_refused() {
    let folder = std::env::temp_dir().join(format!("pinion-gguf-keys-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("m.gguf");
    let golden = goldens().into_iter().find(|path| path.ends_with("qwen2.gguf")).unwrap();
    let u32_of = |number: u32| number.to_le_bytes().to_vec();
    let f32_of = |number: f32| number.to_le_bytes().to_vec();
    let list = |count: u64| [&4u32.to_le_bytes()[..], &count.to_le_bytes(), &[0; 8]].concat();
    let cases: [(&str, u32, Vec<u8>, Option<&str>); 15] = [
        ("qwen2.vocab_size", 4, u32_of(9), None),
        ("qwen2.expert_count", 4, u32_of(0), None),
        ("qwen2.expert_count", 4, u32_of(8), Some("has qwen2.expert_count, which is not supported")),
        ("qwen2.attention.sliding_window", 4, u32_of(64), Some("has qwen2.attention.sliding_window")),
        ("qwen2.logit_scale", 6, f32_of(2.0), Some("has qwen2.logit_scale")),
        ("qwen2.something.new", 9, list(2), Some("has qwen2.something.new")),
        ("qwen2.attention.causal", 7, vec![0], Some("has qwen2.attention.causal false")),
        ("qwen2.attention.key_length", 4, u32_of(16), None),
        ("qwen2.pooling_type", 4, u32_of(3), None),
        ("qwen2.rope.scaling.type", 8, text("linear"), None),
        (
            "qwen2.rope.scaling.type",
            8,
            text("longrope"),
            Some("qwen2.rope.scaling.type longrope is not supported"),
        ),
        ("qwen2.rope.scaling.type", 8, text("yarn"), Some("has no qwen2.rope.scaling.factor beside yarn")),
        (
            "tokenizer.ggml.eom_token_id",
            8,
            text("x"),
            Some("tokenizer.ggml.eom_token_id is not a whole number"),
        ),
        ("other.expert_count", 4, u32_of(8), None),
        ("general.sampling.temp", 8, text("hot"), None),
    ];
    for (key, kind, bytes, expected) in cases {
        std::fs::write(&path, with_values(&golden, &[(key, kind, bytes)])).unwrap();
        let found = folder_file(&path, "config.json").map(|_| ()).map_err(|error| error.to_string());
        match expected {
            None => assert_eq!(found, Ok(()), "{key}"),
            Some(part) => assert!(found.clone().unwrap_err().contains(part), "{key}: {found:?}"),
        }
    }
    let widths =
        [("qwen2.attention.key_length", 4, u32_of(16)), ("qwen2.attention.value_length", 4, u32_of(32))];
    std::fs::write(&path, with_values(&golden, &widths)).unwrap();
    let found = folder_file(&path, "config.json").unwrap_err().to_string();
    assert!(found.contains("qwen2.attention.value_length 32 beside heads of 16"), "{found}");
    let sampling = [
        ("general.sampling.temp", 6, f32_of(0.6)),
        ("general.sampling.top_k", 5, u32_of(20)),
        ("tokenizer.ggml.padding_token_id", 4, u32_of(u32::MAX)),
        ("tokenizer.chat_template", 8, text("plain")),
        ("tokenizer.chat_template.tool_use", 8, text("tools")),
    ];
    std::fs::write(&path, with_values(&golden, &sampling)).unwrap();
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&folder_file(&path, name).unwrap().unwrap()).unwrap()
    };
    assert_eq!(json("generation_config.json"), serde_json::json!({"temperature": 0.6, "top_k": 20}));
    let templates = serde_json::json!([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]);
    assert_eq!(json("tokenizer_config.json")["chat_template"], templates);
    assert_eq!(folder_file(&path, "chat_template.jinja"), Ok(None));
    let off = [("general.sampling.top_k", 5, (-1i32).to_le_bytes().to_vec())];
    std::fs::write(&path, with_values(&golden, &off)).unwrap();
    assert_eq!(json("generation_config.json"), serde_json::json!({}));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A file in which the bytes behind a name and those in between are others.
fn patched(golden: &str, name: &str, skip: usize, bytes: &[u8]) -> Vec<u8> {
    let golden = goldens().into_iter().find(|path| path.ends_with(golden)).unwrap();
    let mut file = std::fs::read(golden).unwrap();
    let found = file.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
    let at = found + name.len() + skip;
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

/// The key or the tensor of the file is named, not that of config.json which is made of it.
#[test]
fn counts_that_cannot_be_are_told_by_their_key() {
    let folder = std::env::temp_dir().join(format!("pinion-gguf-counts-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("m.gguf");
    // Behind a key stands the type of its value; behind a tensor's name the number of its axes.
    for (name, skip, bytes, expected) in [
        (
            "llama.attention.head_count",
            4,
            &0u32.to_le_bytes()[..],
            "has llama.attention.head_count 0; expected at least 1",
        ),
        (
            "llama.attention.head_count_kv",
            4,
            &0u32.to_le_bytes(),
            "has llama.attention.head_count_kv 0; expected at least 1",
        ),
        ("llama.block_count", 4, &0u32.to_le_bytes(), "has llama.block_count 0; expected at least 1"),
        (
            "rope_freqs.weight",
            4,
            &7u64.to_le_bytes(),
            "tensor rope_freqs.weight has 7 numbers; heads of 32 need 16",
        ),
    ] {
        std::fs::write(&path, patched("llama.gguf", name, skip, bytes)).unwrap();
        let found = folder_file(&path, "config.json").unwrap_err().to_string();
        assert_eq!(found, expected, "{name}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
