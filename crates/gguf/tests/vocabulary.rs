//! A small header cannot ask for much memory by a vocabulary: its merges and its special tokens are bounded. The limit
//! is the kernel's, so that more is an allocation that fails, which ends this program.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use pinion_gguf::folder_file;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::path::{Path, PathBuf};

/// What may be taken for the largest tokenizer.json that a header of a few megabytes may ask for, in bytes.
const ROOM: u64 = 256 << 20;

fn data_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

fn list(kind: u32, count: usize, items: Vec<u8>) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), &items].concat()
}

/// Writes a file of pieces, which are all as likely, with the kind of each.
fn write(path: &Path, pieces: &[String], kind: i32) {
    let texts = pieces.iter().flat_map(|piece| text(piece)).collect();
    let values = [
        ("tokenizer.ggml.model", 8u32, text("llama")),
        ("tokenizer.ggml.tokens", 9, list(8, pieces.len(), texts)),
        ("tokenizer.ggml.scores", 9, list(6, pieces.len(), vec![0; 4 * pieces.len()])),
        ("tokenizer.ggml.token_type", 9, list(5, pieces.len(), kind.to_le_bytes().repeat(pieces.len()))),
    ];
    let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes()].concat();
    file.extend((values.len() as u64).to_le_bytes());
    for (key, kind, bytes) in values {
        file.extend([&text(key)[..], &kind.to_le_bytes(), &bytes].concat());
    }
    file.resize(file.len().next_multiple_of(32), 0);
    std::fs::write(path, file).unwrap();
}

/// Every part of each piece is a piece: one of n letters is made of n - 1 pairs.
fn runs(letters: u8, longest: usize) -> Vec<String> {
    let letter = |at: u8| char::from(b'!' + at).to_string();
    (0..letters).flat_map(|at| (1..=longest).map(move |length| letter(at).repeat(length))).collect()
}

#[derive(Deserialize)]
struct File {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    merges: Vec<IgnoredAny>,
}

#[test]
fn a_small_header_cannot_ask_for_many_merges_or_special_tokens() {
    let path: PathBuf = std::env::temp_dir().join(format!("pinion-gguf-pieces-{}.gguf", std::process::id()));
    pinion_os::heap::limit(data_bytes() + ROOM, || {}).unwrap();
    let tokenizer = || folder_file(&path, "tokenizer.json").map(Option::unwrap).map_err(|e| e.to_string());

    // 64 letters without `"` and `\`: 2.2 MB of pieces would make 280 MB of merges.
    let pieces: Vec<String> =
        runs(66, 256).into_iter().filter(|piece| !piece.starts_with(['"', '\\'])).collect();
    write(&path, &pieces, 1);
    assert!(std::fs::metadata(&path).unwrap().len() < 5 << 19);
    let refused = tokenizer().unwrap_err();
    assert_eq!(refused, "tokenizer.ggml.tokens makes merges of more than 64 MiB in tokenizer.json");

    // The bound counts what is written.
    let fewer: Vec<String> = pieces.iter().filter(|piece| piece.as_bytes()[0] < b'*').cloned().collect();
    write(&path, &fewer, 1);
    let made = tokenizer().unwrap();
    let File { model: Model { merges } } = serde_json::from_slice(&made).unwrap();
    assert_eq!(merges.len(), fewer.len() / 256 * (255 * 256 / 2));
    drop(made);

    let many: Vec<String> = (0..(1 << 16) + 1).map(|at| format!("<{at}>")).collect();
    write(&path, &many, 3);
    let refused = tokenizer().unwrap_err();
    assert_eq!(refused, "tokenizer.ggml.token_type has 65537 special tokens, more than 65536");
    write(&path, &many[1..], 3);
    assert!(tokenizer().is_ok());
    std::fs::remove_file(&path).unwrap();
}
