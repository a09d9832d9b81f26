//! No length of a header is believed: with numbers changed at random, a file takes no more memory than its own size
//! and a bound. The limit is the kernel's, so that more is an allocation that fails, which ends this program.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise, in its helpers too")]

use pinion_gguf::folder_file;
use pinion_random::Random;

/// What the program, its threads and its heap's own rounding may take beside the file, in bytes.
const ROOM: u64 = 32 << 20;
/// JSON of a header takes as many times its bytes.
const TIMES: u64 = 16;

/// Private writable memory of this process, which the limit is on.
fn data_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_header_takes_no_more_memory_than_the_file_and_a_bound() {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/gguf_goldens/llama.gguf");
    let whole = std::fs::read(golden).unwrap();
    let header = pinion_gguf::Header::open(golden.as_ref()).unwrap().bytes as usize;
    let path = std::env::temp_dir().join(format!("pinion-gguf-memory-{}.gguf", std::process::id()));
    pinion_os::heap::limit(data_bytes() + ROOM + TIMES * whole.len() as u64, || {}).unwrap();
    let seed = 16;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for round in 0..2000 {
        let mut bytes = whole.clone();
        // Lengths and counts are 8 bytes; most places hold none, but each of these is tried in some round.
        let at = if round < 3 { [8, 16, 24][round] } else { 24 + random.below(header - 32) };
        let lie = 1u64 << random.between(24, 62);
        bytes[at..at + 8].copy_from_slice(&lie.to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            if let Err(error) = folder_file(&path, name) {
                assert_eq!(error.to_string().lines().count(), 1, "{error}");
            }
        }
    }
    std::fs::remove_file(&path).unwrap();
}
