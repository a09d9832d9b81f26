//! Placing this process on the cores that the plan gives it.

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

/// Restricts the calling thread, and every thread it starts later, to `cpus`. A single core goes through
/// `core_affinity`, a set through `sched_setaffinity`.
///
/// # Errors
/// In words, with the set.
pub fn pin_to(cpus: &[usize]) -> Result<(), String> {
    if let [cpu] = cpus {
        let pinned = core_affinity::set_for_current(core_affinity::CoreId { id: *cpu });
        return if pinned { Ok(()) } else { Err(format!("cannot pin to cpu {cpu}")) };
    }
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu).map_err(|e| format!("cpu {cpu}: {e}"))?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).map_err(|e| format!("cannot pin to cpus {cpus:?}: {e}"))
}
