//! The allocator of a process whose memory is limited: when the kernel gives no more, the process says so and ends,
//! instead of aborting without a word.
//!
//! The limit is RLIMIT_DATA, which counts private writable memory: heap, thread stacks, memory that libraries map.
//! Shared memory and files are not counted. [`trim`] is for processes without such a limit.

use nix::sys::resource::{Resource, setrlimit};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::sync::OnceLock;

/// The system's allocator, which calls what [`limit`] was given when it has no memory left.
#[derive(Debug)]
pub struct Heap;

static ON_EXHAUSTED: OnceLock<fn()> = OnceLock::new();

/// Limits this process's own memory to this number of bytes, for good. Past it `on_exhausted` runs on the thread that
/// wanted more: it must not allocate. If it returns, or this program's allocator is not [`Heap`], the allocation fails.
pub fn limit(bytes: u64, on_exhausted: fn()) -> io::Result<()> {
    ON_EXHAUSTED.get_or_init(|| on_exhausted);
    Ok(setrlimit(Resource::RLIMIT_DATA, bytes, bytes)?)
}

/// Returns the heap's free pages to the system; `free` does that only at the heap's end. True if there were any. Blocks
/// the allocations of all threads meanwhile: some milliseconds for 100 MiB.
pub fn trim() -> bool {
    // SAFETY: the function takes no pointer; it locks the heap as malloc does.
    unsafe { libc::malloc_trim(0) != 0 }
}

/// Ends the process at once, without running destructors.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: _exit takes an integer and does not return; no destructor of ours relies on being run.
    unsafe { libc::_exit(code) }
}

fn checked(pointer: *mut u8) -> *mut u8 {
    if pointer.is_null()
        && let Some(on_exhausted) = ON_EXHAUSTED.get()
    {
        on_exhausted();
    }
    pointer
}

// SAFETY: every method hands its arguments to the system's allocator and gives back what that gave.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        checked(unsafe { System.alloc(layout) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from the system's allocator, by way of this one.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
        checked(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the pointer came from the system's allocator, by way of this one.
        checked(unsafe { System.realloc(pointer, layout, bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn free_pages_go_back_to_the_system_though_later_ones_are_in_use() {
        let mut held: Vec<Vec<u8>> = (0..4096).map(|_| vec![1; 8 << 10]).collect();
        let last = held.pop();
        drop(held);
        let before = resident_kib();
        assert!(trim());
        let after = resident_kib();
        assert!(after + (16 << 10) < before, "{before} KiB, then {after} KiB");
        assert_eq!(last.map_or(0, |last| last.len()), 8 << 10);
    }
}
