//! Chores of the project that are not part of the server. Start at [`tidy`], which tests the tree itself.
//!
//! Run as `cargo xtask <chore>`; the list is in [`USAGE`].

mod docs;
mod make_model;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <chore>

  tidy                     test the tree: sizes, banned words, dependency direction, dead files, stale documents
  docs                     write docs/CONFIGURATION.md from the configuration crate
  make-model FAMILY [--size S] [--out DIR] [--seed N] [--dtype f32|bf16] [--deviation X] [--shards N]
                           write a Hugging Face folder of a published shape: random weights, a real tokenizer, the family's
                           special tokens (default target/models/FAMILY-SIZE, seed 0, f32, deviation of the linears 0.02, one
                           file). gpt2 (124m), llama (1b), smollm2 (135m), qwen3 (0.6b), gemma3 (270m), and `tiny` of each.
                           With a larger deviation a greedy token depends on more than the one before it";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let root = repository_root();
    let outcome = match args.as_slice() {
        ["tidy"] => tidy::run(&root),
        ["docs"] => docs::write(&root),
        ["make-model", rest @ ..] => make_model::run(&root, rest),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The repository that this binary was built from: xtask always runs through cargo, inside its own checkout.
fn repository_root() -> PathBuf {
    let manifest_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest_dir.ancestors().nth(2).unwrap_or(manifest_dir).to_path_buf()
}
