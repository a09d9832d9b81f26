//! A folder's config.json, or what a GGUF file says instead.

use crate::load::LoadError;
use pinion_architecture::Architecture;
use serde_json::{Map, Value};
use std::path::Path;

/// The keys of the file.
pub(crate) fn keys(folder: &Path) -> Result<Map<String, Value>, LoadError> {
    let path = folder.join("config.json");
    let text = match pinion_gguf::of_path(&path) {
        Some((model, name)) => {
            pinion_gguf::folder_file(model, name).map(Option::unwrap_or_default).map_err(|e| e.to_string())
        }
        None => std::fs::read(&path).map_err(|error| error.to_string()),
    };
    let text = text.map_err(|reason| fault(folder, reason))?;
    pinion_architecture::parse(&text).map_err(|reason| fault(folder, reason))
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
