//! Folders that tests make: temporary ones, and model folders in them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A temporary folder, removed on drop.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// A fresh, empty one. One of the same name may have been left by a test that was killed.
    pub fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let name = format!("pinion-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Ok(()) => return Folder(path),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{} cannot be made: {error}", path.display()),
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Where it is, for a command line.
    pub fn text(&self) -> &str {
        self.0.to_str().expect("temporary folders have UTF-8 names")
    }

    /// Writes a file in it.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.0.join(name), bytes).expect("a file in a temporary folder can be written");
    }

    /// Names of what is in it.
    pub fn entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("a temporary folder can be read");
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Default for Folder {
    fn default() -> Self {
        Folder::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}

/// A model folder for the fake backend: the byte tokenizer, and the config.json of a GPT-2 with this context.
/// One token per byte is the hardest case for the detokenizer: most answers are broken UTF-8.
pub fn fake_model(context: u32) -> Folder {
    let folder = Folder::new();
    folder.write("tokenizer.json", pinion_text::byte_tokenizer_json());
    let config = serde_json::json!({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
        "vocab_size": 257, "bos_token_id": 256, "eos_token_id": 256, "n_positions": context, "n_embd": 64,
        "n_head": 4, "n_layer": 2, "n_inner": null, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": true,
    });
    folder.write("config.json", config.to_string());
    folder
}

/// A real, tiny GPT-2 with random weights that fits the byte tokenizer: the parity fixture `tiny-a`.
pub fn fixture_model() -> Folder {
    let source = crates_folder().join("model/tests/fixtures/tiny-a");
    let folder = Folder::new();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(source.join(name), folder.path().join(name))
            .expect("the parity fixtures are committed");
    }
    folder.write("tokenizer.json", pinion_text::byte_tokenizer_json());
    folder
}

/// The committed demo model, if this checkout has it.
pub fn demo_model() -> Option<PathBuf> {
    let path = crates_folder().join("../deploy/demo-model");
    path.join("model.safetensors").is_file().then_some(path)
}

fn crates_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
