//! GGUF files, as llama.cpp and its relatives have them: a model in one file.
//!
//! [`Header::open`] reads what stands before the tensors, within limits: no length, count or offset of the file is
//! trusted. [`folder_file`] gives the files of a Hugging Face folder that follow from it, so that what reads a folder
//! reads a GGUF file the same way. [`BlockType`] unpacks tensors. The tensors themselves are read by the model.

mod blocks;
mod config;
mod header;
mod merges;
mod names;
mod tokenizer;
mod value;
mod vocabulary;

pub use blocks::BlockType;
pub use config::{ARCHITECTURES, ROPE_FACTORS};
pub use header::{Header, Tensor};
pub use names::{Place, Turned, place};
pub use value::{Texts, Value};

use std::io::Read;
use std::path::Path;

/// What is wrong with a file, in words that follow its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(pub String);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Whether the model is a GGUF file: by its first bytes or, so that an empty or damaged one is told as such, by its
/// name.
pub fn is_gguf(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let mut magic = [0; 4];
    let begins = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok();
    begins && magic == header::MAGIC || has_name(path)
}

/// Whether the name is a GGUF file's, which need not be there.
pub fn has_name(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "gguf")
}

/// The GGUF file that a path into a model's folder leads into, and the name behind it.
pub fn of_path(path: &Path) -> Option<(&Path, &str)> {
    let (model, name) = (path.parent()?, path.file_name()?.to_str()?);
    is_gguf(model).then_some((model, name))
}

/// A file of the folder that the GGUF file `model` stands for: `config.json`, `generation_config.json`,
/// `tokenizer.json` or `tokenizer_config.json`; `None` for any other name.
///
/// # Errors
/// What is wrong with the file, or not supported, with its key.
pub fn folder_file(model: &Path, name: &str) -> Result<Option<Vec<u8>>, Error> {
    let bytes = |value: serde_json::Value| value.to_string().into_bytes();
    let open = || Header::open(model);
    Ok(Some(match name {
        "config.json" => bytes(config::config(&open()?, model)?),
        "generation_config.json" => bytes(config::generation(&open()?)?),
        "tokenizer.json" => tokenizer::tokenizer(&open()?)?,
        "tokenizer_config.json" => bytes(tokenizer::tokenizer_config(&open()?)?),
        _ => return Ok(None),
    }))
}
