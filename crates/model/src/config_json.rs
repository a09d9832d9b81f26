//! A folder's config.json.

use crate::load::LoadError;
use pinion_architecture::Architecture;
use serde_json::{Map, Value};
use std::path::Path;

/// The keys of the file.
pub(crate) fn keys(folder: &Path) -> Result<Map<String, Value>, LoadError> {
    let text = std::fs::read(folder.join("config.json")).map_err(|error| fault(folder, error.to_string()))?;
    pinion_architecture::parse(&text).map_err(|reason| fault(folder, reason))
}

/// What the file says about the model.
pub(crate) fn architecture(folder: &Path) -> Result<Architecture, LoadError> {
    let keys = keys(folder)?;
    pinion_architecture::read(&keys).map_err(|reasons| fault(folder, reasons.join("; ")))
}

pub(crate) fn fault(folder: &Path, reason: String) -> LoadError {
    LoadError::Config { path: folder.join("config.json"), reason }
}
