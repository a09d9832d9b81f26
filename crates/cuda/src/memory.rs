//! Ranges of device memory, and page-locked host memory.

use super::device::{CudaError, Device};
use std::fmt;
use std::ptr::null_mut;

/// A range of device memory. Good as long as its device, which every stream holds, unless its maker said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub(super) address: u64,
    pub(super) bytes: u64,
}

impl Span {
    /// Bytes in the range.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// The part from `offset` on, `bytes` long.
    ///
    /// # Panics
    /// If the part is not inside the range: offsets are computed from sizes that were checked at load.
    #[must_use]
    pub fn part(&self, offset: usize, bytes: usize) -> Span {
        let end = offset.checked_add(bytes).expect("a part's end fits");
        assert!(end as u64 <= self.bytes, "bytes {offset}..{end} are not inside {} bytes", self.bytes);
        Span { address: self.address + offset as u64, bytes: bytes as u64 }
    }

    /// The part from `offset` to the end.
    #[must_use]
    pub fn from(&self, offset: usize) -> Span {
        self.part(offset, self.bytes() - offset)
    }
}

impl Device {
    /// Takes page-locked host memory of `len` bytes, zeroed.
    ///
    /// # Errors
    /// The system has no such amount left.
    pub fn pinned(&self, len: usize) -> Result<Pinned, CudaError> {
        let mut memory = null_mut();
        // SAFETY: `memory` is writable for the call.
        let code = unsafe { (self.symbols().pinned_alloc)(len.max(16) as u64, &raw mut memory) };
        self.check("allocating pinned memory", code)?;
        // SAFETY: the memory was just handed over, `len` bytes of it at least.
        unsafe { memory.cast::<u8>().write_bytes(0, len) };
        Ok(Pinned { device: self.clone(), memory: memory.cast(), len })
    }
}

/// Page-locked host memory, for copies that run beside the host.
pub struct Pinned {
    device: Device,
    memory: *mut u8,
    len: usize,
}

// SAFETY: the memory is owned by this value alone and is not bound to a thread.
unsafe impl Send for Pinned {}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("len", &self.len).finish()
    }
}

impl Pinned {
    /// The bytes. After a queued copy to them they are defined once an event behind the copy has passed.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this length, initialised, and borrowed like the value.
        unsafe { std::slice::from_raw_parts(self.memory, self.len) }
    }

    /// The bytes. What a queued copy has yet to read must not be changed: the copy would carry a mixture.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory, self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: allocated by this object and not freed before.
        unsafe { (self.device.symbols().pinned_free)(self.memory.cast()) };
    }
}
