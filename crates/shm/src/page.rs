//! A status page: plain words that one process writes and any process reads, without order between them.

use crate::region::{AttachError, Region, RegionKind, Words};
use crate::sync::Ordering;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Words of a status page; a clone is the same page. Which word means what is the caller's vocabulary.
#[derive(Clone)]
pub struct Page {
    region: Region,
}

impl Page {
    /// A page of `words` zeros.
    pub fn create(layout_hash: u64, epoch: u32, words: usize) -> io::Result<Page> {
        Ok(Page { region: Region::create("pinion-page", RegionKind::Page, layout_hash, epoch, words)? })
    }

    /// Checks and maps a received page.
    pub fn attach(fd: OwnedFd, layout_hash: u64, epoch: Option<u32>) -> Result<Page, AttachError> {
        Ok(Page { region: Region::attach(fd, RegionKind::Page, layout_hash, epoch)? })
    }

    /// How many words it has.
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Word `i`. Panics past the end.
    pub fn get(&self, i: usize) -> u64 {
        self.region.at(i).load(Ordering::Relaxed)
    }

    /// Replaces word `i`. Panics past the end.
    pub fn set(&self, i: usize, value: u64) {
        self.region.at(i).store(value, Ordering::Relaxed);
    }

    /// Adds to word `i`, wrapping. Panics past the end.
    pub fn add(&self, i: usize, value: u64) {
        self.region.at(i).fetch_add(value, Ordering::Relaxed);
    }

    /// See [`Region::mend`].
    pub fn mend(&self) -> bool {
        self.region.mend()
    }

    /// The memfd, for sending it to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.region.fd()
    }

    /// Which life of its writer it belongs to.
    pub fn epoch(&self) -> u32 {
        self.region.epoch()
    }
}
