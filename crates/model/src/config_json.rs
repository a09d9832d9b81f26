//! A folder's config.json, or what a GGUF file says instead.

use crate::load::LoadError;
use pinion_architecture::Architecture;
use serde_json::{Map, Value};
use std::path::Path;

/// The keys of the file, with what a file beside it says of packed weights.
pub(crate) fn keys(folder: &Path) -> Result<Map<String, Value>, LoadError> {
    let path = folder.join("config.json");
    let text = match pinion_gguf::of_path(&path) {
        Some((model, name)) => {
            pinion_gguf::folder_file(model, name).map(Option::unwrap_or_default).map_err(|e| e.to_string())
        }
        None => std::fs::read(&path).map_err(|error| error.to_string()),
    };
    let text = text.map_err(|reason| fault(folder, reason))?;
    let mut keys = pinion_architecture::parse(&text).map_err(|reason| fault(folder, reason))?;
    if !pinion_gguf::is_gguf(folder) {
        pinion_architecture::complete(&mut keys, |name| beside(folder, name))?;
    }
    Ok(keys)
}

/// The keys of a file that need not be there.
fn beside(folder: &Path, name: &str) -> Result<Option<Map<String, Value>>, LoadError> {
    let path = folder.join(name);
    let keys = match std::fs::read(&path) {
        Ok(text) => pinion_architecture::parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error.to_string()),
    };
    keys.map(Some).map_err(|reason| LoadError::Config { path, reason })
}

/// What the file says about the model.
pub(crate) fn architecture(folder: &Path) -> Result<Architecture, LoadError> {
    let keys = keys(folder)?;
    pinion_architecture::read(&keys).map_err(|reasons| fault(folder, reasons.join("; ")))
}

pub(crate) fn fault(folder: &Path, reason: String) -> LoadError {
    let path = if pinion_gguf::is_gguf(folder) { folder.to_owned() } else { folder.join("config.json") };
    LoadError::Config { path, reason }
}
