//! What the weight files of a folder hold, by their headers: nothing is loaded.

use crate::checkpoint::Checkpoint;
use crate::load::LoadError;
use std::path::Path;

/// The weights of a folder as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredWeights {
    /// Files.
    pub files: usize,
    /// Tensors in them, or those that the index names.
    pub tensors: usize,
    /// Numbers in all tensors.
    pub numbers: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The head has a tensor of its own; otherwise the embedding is the head's weight, too.
    pub has_head: bool,
}

/// Opens the weights of `folder` as a load does, and counts.
///
/// # Errors
/// A file that is missing, cut or malformed, or lacks a tensor that the index has in it.
pub fn weigh(folder: &Path) -> Result<StoredWeights, LoadError> {
    Ok(Checkpoint::open(folder, None, 1)?.stored())
}
