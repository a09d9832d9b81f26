//! Jitter control at start: this process's pages stay in memory.
//!
//! Pages that were never touched are not brought in: most of libtorch is never used, and reading it takes a second.

use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Keeps every page of this process that is in memory there, and every other of today's mappings from its first use on,
/// where the system allows it. Gives what came of it, for the operator: without the right to lock nothing else is lost.
pub fn lock() -> String {
    let on_fault = MlockAllFlags::from_bits_retain(nix::libc::MCL_ONFAULT);
    match mlockall(MlockAllFlags::MCL_CURRENT | on_fault) {
        Ok(()) => "memory locked".into(),
        Err(error) => {
            let limit = match getrlimit(Resource::RLIMIT_MEMLOCK) {
                Ok((RLIM_INFINITY, _)) => "without limit".into(),
                Ok((bytes, _)) => format!("{} KiB", bytes >> 10),
                Err(_) => "unknown".into(),
            };
            format!("memory not locked ({}; RLIMIT_MEMLOCK is {limit})", error.desc())
        }
    }
}
