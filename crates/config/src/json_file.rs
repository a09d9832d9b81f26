//! JSON files of a model folder, read within limits and with faults that name the file.

use crate::fault::{Collector, Origin};
use serde_json::{Map, Value};
use std::path::Path;

/// Largest JSON file of which a tree is made, in bytes: a tree takes many times as much.
const JSON_BYTES_MAX: u64 = 16 << 20;

/// The file, for a fault.
pub(crate) fn origin(path: &Path) -> Origin {
    Origin::Model(path.display().to_string())
}

/// The whole text, with the reason in words if there is none.
pub(crate) fn load(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let length = std::fs::metadata(path).map_err(io_reason)?.len();
    match length {
        0 => Err("is empty".to_owned()),
        n if n > bytes_max => Err(format!("is larger than {bytes_max} bytes")),
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
    dir.join(name).exists().then(|| object(dir, name, faults)).flatten()
}
