//! Memory of packed weights, in maps that many products share.
//!
//! A system gives a huge page where a map covers all of its 2 MiB. The products of a small model's layers have one to
//! five MiB: on maps of their own much of that would stand on pages of 4 KiB, at whose ends a CPU stops reading ahead.
//!
//! The price: up to 2 MiB behind a product that has a map of its own or was the last of a shared one. And memory goes
//! back to the system with the last part of a map, not with each; what was given once is not given again.

use memmap2::{MmapOptions, MmapRaw};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

const HUGE_PAGE: usize = 2 << 20;
/// Bytes of a map that is shared. A huge page of which no product takes anything is never touched.
const SHARED: usize = 32 << 20;
/// Products of more bytes have a map of their own, so that they leave no large gap at the end of a shared one.
const SHARED_PART: usize = 8 << 20;
/// Parts begin at multiples of two cache lines, which a CPU reads together.
const ALIGN: usize = 128;

/// The map in which the next part is taken, and how much of it is; it lives as long as a part of it.
static OPEN: Mutex<(Weak<Map>, usize)> = Mutex::new((Weak::new(), 0));

/// A map whose parts belong to the [`WeightMemory`] that took them.
#[derive(Debug)]
struct Map {
    raw: MmapRaw,
    /// Where its first huge page begins.
    first: usize,
    /// Bytes from there on.
    len: usize,
}

impl Map {
    /// Zeros, at least `bytes` in whole huge pages.
    fn new(bytes: usize) -> std::io::Result<Self> {
        let too_large = || std::io::Error::from(std::io::ErrorKind::OutOfMemory);
        let len = bytes.checked_next_multiple_of(HUGE_PAGE).ok_or_else(too_large)?;
        let whole = len.checked_add(HUGE_PAGE).ok_or_else(too_large)?;
        let map = MmapOptions::new().len(whole).map_anon()?;
        #[cfg(target_os = "linux")]
        // Huge pages spare TLB misses; a system without them just says no.
        let _ = map.advise(memmap2::Advice::HugePage);
        let raw = MmapRaw::from(map);
        let first = raw.as_mut_ptr().align_offset(HUGE_PAGE);
        Ok(Self { raw, first, len })
    }
}

/// Bytes of weights, zero at first.
#[derive(Debug)]
pub(crate) struct WeightMemory {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the memory mapped.
    _map: Arc<Map>,
}

// SAFETY: plain bytes, which no other value refers to.
unsafe impl Send for WeightMemory {}
// SAFETY: a shared reference only reads them.
unsafe impl Sync for WeightMemory {}

impl WeightMemory {
    /// `len` bytes of zeros, on huge pages where the system grants them. They start at a cache line.
    ///
    /// # Errors
    /// The system's error when there is not enough memory.
    pub(crate) fn zeroed(len: usize) -> std::io::Result<Self> {
        if len > SHARED_PART {
            return Ok(Self::part(Arc::new(Map::new(len)?), 0, len));
        }
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let (map, used) = &mut *open;
        let map = match map.upgrade().filter(|map| map.len - *used >= len) {
            Some(map) => map,
            None => {
                let new = Arc::new(Map::new(SHARED)?);
                (*map, *used) = (Arc::downgrade(&new), 0);
                new
            }
        };
        let at = *used;
        *used = (at + len).next_multiple_of(ALIGN).min(map.len);
        Ok(Self::part(map, at, len))
    }

    /// The caller has not given these bytes to anyone else.
    fn part(map: Arc<Map>, at: usize, len: usize) -> Self {
        assert!(at + len <= map.len, "a part lies within its map");
        let start = map.raw.as_mut_ptr().wrapping_add(map.first + at);
        Self { start: NonNull::new(start).expect("a map is not at address zero"), len, _map: map }
    }
}

impl Deref for WeightMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes of a map that lives as long as this, which began as zeros, and which only this refers to.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for WeightMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIGN, HUGE_PAGE, SHARED, SHARED_PART, WeightMemory};

    #[test]
    fn parts_are_zero_aligned_and_apart() {
        let sizes = [1, 64, 1000, SHARED_PART, SHARED_PART + 1, SHARED_PART - 1, 3 << 20, SHARED + 5];
        let mut parts: Vec<WeightMemory> =
            sizes.iter().cycle().take(24).map(|&len| WeightMemory::zeroed(len).expect("memory")).collect();
        for (at, part) in parts.iter_mut().enumerate() {
            assert_eq!(part.len(), sizes[at % sizes.len()]);
            assert!(part.as_ptr().addr().is_multiple_of(ALIGN));
            assert!(part.iter().all(|&byte| byte == 0), "part {at} holds what another was given");
            part.fill(at as u8 + 1);
        }
        for (at, part) in parts.iter().enumerate() {
            assert!(part.iter().all(|&byte| byte == at as u8 + 1), "part {at} lost its bytes");
        }
    }

    #[test]
    fn memory_outlives_the_parts_beside_it() {
        let (mut first, mut second) =
            (WeightMemory::zeroed(100).expect("memory"), WeightMemory::zeroed(100).expect("memory"));
        second.fill(9);
        drop(second);
        first.fill(7);
        assert!(first.iter().all(|&byte| byte == 7));
        let third = WeightMemory::zeroed(100).expect("memory");
        assert!(third.iter().all(|&byte| byte == 0), "a part is given once");
    }

    #[test]
    fn large_products_begin_at_a_huge_page() {
        let part = WeightMemory::zeroed(SHARED_PART + 1).expect("memory");
        assert!(part.as_ptr().addr().is_multiple_of(HUGE_PAGE));
    }

    #[test]
    fn threads_get_parts_of_their_own() {
        let one = |number: u8| {
            let mut parts: Vec<_> =
                (0..200).map(|at| WeightMemory::zeroed(1000 + at).expect("memory")).collect();
            for part in &mut parts {
                assert!(part.iter().all(|&byte| byte == 0), "a part holds what another was given");
                part.fill(number);
            }
            assert!(parts.iter().all(|part| part.iter().all(|&byte| byte == number)), "parts overlap");
        };
        std::thread::scope(|scope| (1..=4).for_each(|number| drop(scope.spawn(move || one(number)))));
    }

    #[test]
    fn more_than_there_is_is_an_error() {
        for len in [usize::MAX, usize::MAX / 2, isize::MAX as usize] {
            WeightMemory::zeroed(len).expect_err("more than an address space");
        }
    }
}
