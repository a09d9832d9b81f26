//! JSON files of a model folder, or what a GGUF file says instead, read within limits and with faults that name the
//! file.

use crate::fault::{Collector, Origin};
use serde_json::{Map, Value};
use std::path::Path;

/// Largest JSON file of which a tree is made, in bytes: a tree takes many times as much.
const JSON_BYTES_MAX: u64 = 16 << 20;

/// The file, for a fault.
pub(crate) fn origin(path: &Path) -> Origin {
    let file = pinion_gguf::of_path(path).map_or(path, |(model, _)| model);
    Origin::Model(file.display().to_string())
}

/// The whole text, with the reason in words if there is none.
pub(crate) fn load(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let too_large = || format!("is larger than {bytes_max} bytes");
    if let Some((model, name)) = pinion_gguf::of_path(path) {
        let found = pinion_gguf::folder_file(model, name).map_err(|error| error.to_string())?;
        let found = found.ok_or_else(|| format!("has no {name}"))?;
        return if found.len() as u64 > bytes_max { Err(too_large()) } else { Ok(found) };
    }
    let length = std::fs::metadata(path).map_err(io_reason)?.len();
    match length {
        0 => Err("is empty".to_owned()),
        n if n > bytes_max => Err(too_large()),
        _ => std::fs::read(path).map_err(io_reason),
    }
}

pub(crate) fn io_reason(error: std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "is missing".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

/// The object in the file `name` of the folder `dir`, or `None` after the fault was noted.
pub(crate) fn object(dir: &Path, name: &str, faults: &mut Collector) -> Option<Map<String, Value>> {
    let path = dir.join(name);
    let parsed = load(&path, JSON_BYTES_MAX).and_then(|bytes| {
        serde_json::from_slice::<Value>(&bytes).map_err(|e| format!("is not valid JSON: {e}")).and_then(
            |value| match value {
                Value::Object(map) => Ok(map),
                _ => Err("is not a JSON object".to_owned()),
            },
        )
    });
    parsed.map_err(|reason| faults.add(&origin(&path), reason)).ok()
}

/// The same for a file that may be missing.
pub(crate) fn optional_object(dir: &Path, name: &str, faults: &mut Collector) -> Option<Map<String, Value>> {
    let is_there = dir.join(name).exists() || pinion_gguf::is_gguf(dir);
    is_there.then(|| object(dir, name, faults)).flatten()
}
