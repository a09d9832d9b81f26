//! Files below the root of a tree, which is `/` or made up by a test.

use std::path::Path;

/// The text of a file, trimmed; empty if it cannot be read.
pub(crate) fn text(root: &Path, path: &str) -> String {
    std::fs::read_to_string(root.join(path)).map(|text| text.trim().to_owned()).unwrap_or_default()
}
