//! Documents that are generated from the code. `tidy` compares them with the files, `docs` writes them.

use std::fs;
use std::path::Path;

/// Where the reference of every flag, variable and key stands.
pub(crate) const CONFIGURATION: &str = "docs/CONFIGURATION.md";

/// The text that [`CONFIGURATION`] should have.
pub(crate) fn configuration() -> String {
    pinion_config::docs::markdown()
}

/// Writes the generated documents into the tree.
pub(crate) fn write(root: &Path) -> Result<(), String> {
    let path = root.join(CONFIGURATION);
    fs::write(&path, configuration()).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    println!("wrote {CONFIGURATION}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_written_whole() {
        let root = std::env::temp_dir().join(format!("pinion-xtask-docs-{}", std::process::id()));
        fs::create_dir_all(root.join("docs")).unwrap();
        write(&root).unwrap();
        let written = fs::read_to_string(root.join(CONFIGURATION)).unwrap();
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(written, configuration());
        assert!(written.contains("\n# ") && written.len() > 1000, "{written}");
    }
}
