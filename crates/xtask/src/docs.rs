//! Documents that are generated from the code. `tidy` compares them with the files, `docs` writes them.

use std::fs;
use std::path::Path;

/// Where the reference of every flag, variable and key stands.
pub(crate) const CONFIGURATION: &str = "docs/CONFIGURATION.md";

/// The text that [`CONFIGURATION`] should have.
pub(crate) fn configuration() -> String {
    // Wired to the configuration crate as soon as that one has its documents.
    String::new()
}

/// Writes the generated documents into the tree.
pub(crate) fn write(root: &Path) -> Result<(), String> {
    let path = root.join(CONFIGURATION);
    fs::write(&path, configuration()).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    println!("wrote {CONFIGURATION}");
    Ok(())
}
