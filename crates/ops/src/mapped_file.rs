//! A file read through a memory map.

use std::path::Path;

/// A read-only map of a whole file.
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps the file at `path`.
    ///
    /// # Errors
    /// The system's error when the file cannot be opened or mapped.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = std::fs::File::open(path)?;
        // SAFETY: the map is private to the reader and read-only. Nobody may truncate a model file while it is being
        // loaded; model folders are immutable by contract, and the map is dropped after the load.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}
