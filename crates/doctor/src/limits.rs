//! Memory, and the limits that a process inherits.

use crate::check::Check;
use nix::sys::resource::RLIM_INFINITY;
use pinion_config::{Memory, control_groups, human_bytes};
use std::path::Path;

/// Memory in which a small model is served.
const MEMORY_LOW: u64 = 1 << 30;
/// Descriptors with which a frontend has no connection to refuse at the default of --max-inflight.
const DESCRIPTORS_LOW: u64 = 1024;
/// Processes and threads of a service beside those that compute.
const TASKS: u64 = 48;
/// `CAP_SYS_RESOURCE`, `CAP_SYS_ADMIN` and `CAP_IPC_LOCK` (capabilities(7)).
const SYS_RESOURCE: u32 = 24;
const SYS_ADMIN: u32 = 21;
const IPC_LOCK: u32 = 14;

/// A soft and a hard limit.
type Limit = (u64, u64);

/// The effective capabilities in the text of /proc/self/status, as bits.
pub(crate) fn capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

fn has(capabilities: u64, bit: u32) -> bool {
    capabilities & (1 << bit) != 0
}

/// Memory, and how much of it is free.
pub(crate) fn memory(memory: Memory) -> Check {
    let id = "memory";
    let Some(total) = memory.total_bytes else {
        return Check::note(
            id,
            "/proc/meminfo does not say how much there is",
            "Mount /proc to have it checked.",
        );
    };
    let mut found = human_bytes(total);
    if let Some(available) = memory.available_bytes {
        found += &format!(", {} of it available", human_bytes(available));
    }
    let limit = memory.limit_bytes.filter(|limit| *limit < total);
    match limit {
        Some(limit) => found += &format!("; the cgroup's limit is {}", human_bytes(limit)),
        None => found += "; no cgroup limit below that",
    }
    let room = [limit.unwrap_or(total), memory.available_bytes.unwrap_or(total)].into_iter().min();
    if room.is_some_and(|room| room >= MEMORY_LOW) {
        return Check::ok(id, found);
    }
    Check::warning(
        id,
        found,
        "Free some memory or raise the limit: even small models want 1 GiB with libtorch.",
    )
}

/// RLIMIT_MEMLOCK, or the right to go past it.
pub(crate) fn locked((soft, hard): Limit, capabilities: u64) -> Check {
    let id = "limits.memlock";
    if soft == RLIM_INFINITY || hard == RLIM_INFINITY {
        return Check::ok(id, "RLIMIT_MEMLOCK is unlimited: --jitter-control can lock all memory");
    }
    let limit = human_bytes(hard);
    if has(capabilities, IPC_LOCK) || has(capabilities, SYS_RESOURCE) {
        return Check::ok(id, format!("RLIMIT_MEMLOCK is {limit}, and this process may go past it"));
    }
    let found = format!(
        "RLIMIT_MEMLOCK is {limit}: memory is not locked and can be swapped out in the middle of a step"
    );
    let remedy =
        "Lift it: LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (docker) or `ulimit -l unlimited`.";
    Check::warning(id, found, remedy)
}

/// RLIMIT_NOFILE; the launcher raises the soft limit itself.
pub(crate) fn descriptors((soft, hard): Limit) -> Check {
    let id = "limits.nofile";
    let shown = |limit: u64| if limit == RLIM_INFINITY { "unlimited".to_owned() } else { limit.to_string() };
    let found = format!("open files: {} now, up to {}", shown(soft), shown(hard));
    if hard >= DESCRIPTORS_LOW {
        return Check::ok(id, found);
    }
    Check::warning(
        id,
        found,
        "Raise the hard limit (LimitNOFILE=65536, `ulimit -Hn`): each connection takes one.",
    )
}

/// RLIMIT_NPROC and the pids limits of the control groups above this process.
pub(crate) fn tasks(root: &Path, (soft, _): Limit, capabilities: u64, cpus: usize) -> Check {
    let id = "limits.processes";
    let needed = TASKS + 2 * cpus as u64;
    let free_of_limit =
        soft == RLIM_INFINITY || has(capabilities, SYS_RESOURCE) || has(capabilities, SYS_ADMIN);
    let of_user = (!free_of_limit).then_some(soft);
    let of_group = group_room(root);
    let mut found = match of_user {
        None => "RLIMIT_NPROC does not limit this process".to_owned(),
        Some(limit) => format!("RLIMIT_NPROC is {limit}"),
    };
    found += &match of_group {
        None => "; no pids limit of a control group".to_owned(),
        Some(room) => format!("; the control group has room for {room} more"),
    };
    match [of_user, of_group].into_iter().flatten().min() {
        Some(room) if room < needed => {
            let remedy = format!(
                "Raise it to {needed} or more (LimitNPROC and TasksMax, docker --pids-limit, `ulimit -u`)."
            );
            Check::warning(id, found, &remedy)
        }
        _ => Check::ok(id, found),
    }
}

/// How many more tasks the tightest control group takes; `None` without a limit.
fn group_room(root: &Path) -> Option<u64> {
    let number =
        |folder: &Path, file: &str| std::fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok();
    let rooms = control_groups(root, "pids").into_iter().filter_map(|group| {
        let max: u64 = number(&group, "pids.max")?;
        Some(max.saturating_sub(number(&group, "pids.current").unwrap_or(0)))
    });
    rooms.min()
}

/// Transparent huge pages, as /sys/kernel/mm/transparent_hugepage/enabled has them.
pub(crate) fn huge_pages(enabled: &str) -> Check {
    let id = "memory.huge-pages";
    let mode = enabled.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(mode, _)| mode);
    match mode {
        Some(mode @ ("always" | "madvise")) => Check::ok(
            id,
            format!("transparent huge pages are on ({mode}): KV pool and packed weights take them"),
        ),
        Some(mode) => Check::note(
            id,
            format!("transparent huge pages are off ({mode})"),
            "As root: `echo madvise >/sys/kernel/mm/transparent_hugepage/enabled` spares misses of the TLB.",
        ),
        None => Check::note(
            id,
            "the kernel does not say whether it has transparent huge pages",
            "Mount /sys to have it checked.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    const GIB: u64 = 1 << 30;

    #[test]
    fn memory_is_the_least_of_machine_group_and_what_is_free() {
        for (total, available, limit, status, says) in [
            (
                Some(64 * GIB),
                Some(32 * GIB),
                None,
                Status::Ok,
                "64.0 GiB, 32.0 GiB of it available; no cgroup",
            ),
            (Some(64 * GIB), Some(32 * GIB), Some(GIB / 2), Status::Warning, "limit is 512.0 MiB"),
            (Some(64 * GIB), Some(GIB / 2), Some(1 << 62), Status::Warning, "no cgroup limit"),
            (None, None, None, Status::Note, "/proc/meminfo"),
        ] {
            let check = memory(Memory { total_bytes: total, available_bytes: available, limit_bytes: limit });
            assert_eq!(check.status, status, "{check:?}");
            assert!(check.found.contains(says), "{check:?}");
        }
    }

    #[test]
    fn limits_hold_unless_a_capability_goes_past_them() {
        let lock = capabilities("Name:\tx\nCapEff:\t0000000000004000\n");
        assert_eq!((lock, capabilities("")), (1 << 14, 0));
        let low = (8 << 20, 8 << 20);
        assert_eq!(locked(low, 0).status, Status::Warning);
        assert_eq!(locked(low, lock).status, Status::Ok);
        assert_eq!(locked((low.0, RLIM_INFINITY), 0).status, Status::Ok);
        assert_eq!(descriptors((256, 4096)).status, Status::Ok);
        assert_eq!(descriptors((256, 1023)).status, Status::Warning);
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = std::env::temp_dir().join(format!("pinion-doctor-groups-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/self/cgroup", "0::/a/b\n");
        write("sys/fs/cgroup/a/pids.max", "100\n");
        write("sys/fs/cgroup/a/pids.current", "90\n");
        write("sys/fs/cgroup/a/b/pids.max", "max\n");
        let unlimited = (RLIM_INFINITY, RLIM_INFINITY);
        let check = tasks(&root, unlimited, 0, 4);
        assert!(check.status == Status::Warning && check.found.ends_with("room for 10 more"), "{check:?}");
        write("sys/fs/cgroup/a/pids.current", "1\n");
        assert_eq!(tasks(&root, unlimited, 0, 4).status, Status::Ok);
        assert_eq!(tasks(&root, (20, 20), 0, 4).status, Status::Warning);
        assert_eq!(tasks(&root, (20, 20), 1 << SYS_RESOURCE, 4).status, Status::Ok);
        write("proc/self/cgroup", "4:cpu,pids:/c\n");
        write("sys/fs/cgroup/pids/pids.max", "7\n");
        assert!(tasks(&root, unlimited, 0, 4).found.ends_with("room for 7 more"));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn huge_pages_are_taken_where_they_are_on() {
        for (text, status) in [
            ("always [madvise] never", Status::Ok),
            ("[always] madvise never", Status::Ok),
            ("always madvise [never]", Status::Note),
            ("", Status::Note),
        ] {
            assert_eq!(huge_pages(text).status, status, "{text}");
        }
    }
}
