//! A file read through a memory map.

use std::ops::Range;
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
        // SAFETY: the map is private to the reader and read-only. A model file must not be truncated while it is
        // loaded; model folders are immutable by contract, and the map is dropped after the load.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { map })
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Lets the system take back the memory of whole pages within a range; reading them again reads the file again.
    pub fn release(&self, range: Range<usize>) {
        const PAGE: usize = 4096;
        let (start, end) = (range.start.next_multiple_of(PAGE), range.end.min(self.map.len()) / PAGE * PAGE);
        if start < end {
            // SAFETY: the map is read-only and of a file, so a dropped page has the same bytes when it is read again.
            let advice = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
            };
            // A system that keeps the pages loads as well, with more memory.
            drop(advice);
        }
    }
}
