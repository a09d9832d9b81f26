//! [`Machine`]: what the plan needs to know about the computer, as a value. Reading it from /sys and /proc is
//! here; deciding with it is [`crate::cpu_plan`]'s.

use crate::control_groups::control_groups;
use crate::cpu_set::parse_cpu_set;
use std::collections::BTreeSet;
use std::path::Path;

/// One logical CPU that we may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// The kernel's number.
    pub id: usize,
    /// Socket.
    pub package: usize,
    /// Physical core within the socket: CPUs with the same package and core are SMT siblings.
    pub core: usize,
    /// Relative speed: the kernel's capacity, or else the top frequency in kHz; absent where neither is told.
    pub speed: Option<u64>,
    /// NUMA node.
    pub node: usize,
}

/// The computer as far as the configuration depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// CPUs in the allowed set (affinity and cgroup), by number; never empty.
    pub cpus: Vec<Cpu>,
    /// Whole CPUs' worth of time that the tightest cgroup quota grants, if there is one (`docker --cpus`, systemd's
    /// `CPUQuota=`).
    pub quota_cpus: Option<usize>,
    /// Memory that we may use in bytes: the machine's, or less under a cgroup limit; absent if unknown.
    pub memory_bytes: Option<u64>,
    /// The CPU multiplies bfloat16 (avx512_bf16 or amx_bf16).
    pub has_bf16: bool,
    /// It does so faster than fp32: with amx_bf16, or on AMD's cores. Intel's avx512_bf16 alone has half the rate.
    pub prefers_bf16: bool,
    /// An NVIDIA driver is loaded, and a device of it is seen from here: containers see the host's driver without one.
    pub has_nvidia_gpu: bool,
}

impl Machine {
    /// This computer, and what this process may use of it.
    pub fn detect() -> Machine {
        let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).map(|set| {
            (0..nix::sched::CpuSet::count()).filter(|&c| set.is_set(c).unwrap_or(false)).collect::<Vec<_>>()
        });
        Machine::from_sysfs(Path::new("/"), &allowed.unwrap_or_default())
    }

    /// Reads the tree under `root`, which holds `sys` and `proc`. `allowed` is the affinity mask; when it is
    /// empty every online CPU counts. What is absent is assumed plain: no SMT, one socket, one node, one speed.
    pub fn from_sysfs(root: &Path, allowed: &[usize]) -> Machine {
        let system = root.join("sys/devices/system");
        let nodes = read_nodes(&system.join("node"));
        let mut ids: BTreeSet<usize> = allowed.iter().copied().collect();
        if ids.is_empty() {
            ids = read_text(&system.join("cpu/online"))
                .and_then(|t| parse_cpu_set(&t).ok())
                .unwrap_or_default();
        }
        if ids.is_empty() {
            ids.insert(0);
        }
        let cpus = ids.into_iter().map(|id| read_cpu(&system, id, &nodes)).collect();
        let memory = Memory::from_sysfs(root);
        let memory_bytes = [memory.total_bytes, memory.limit_bytes].into_iter().flatten().min();
        let info = read_text(&root.join("proc/cpuinfo")).unwrap_or_default();
        let flag = |name| cpuinfo(&info, "flags").split_whitespace().any(|flag| flag == name);
        let amd = cpuinfo(&info, "vendor_id") == "AuthenticAMD";
        Machine {
            cpus,
            quota_cpus: read_quota(root),
            memory_bytes,
            has_bf16: flag("avx512_bf16") || flag("amx_bf16"),
            has_nvidia_gpu: has_nvidia_gpu(root),
            prefers_bf16: flag("amx_bf16") || (flag("avx512_bf16") && amd),
        }
    }

    /// `cores` equal cores with `threads` SMT siblings each, numbered core by core, on one node: for tests and
    /// for planning a machine that is not at hand.
    pub fn uniform(cores: usize, threads: usize) -> Machine {
        let cpu = |id: usize| Cpu { id, package: 0, core: id / threads.max(1), speed: None, node: 0 };
        Machine {
            cpus: (0..cores * threads.max(1)).map(cpu).collect(),
            quota_cpus: None,
            memory_bytes: None,
            has_bf16: false,
            has_nvidia_gpu: false,
            prefers_bf16: false,
        }
    }
}

/// Memory of the computer, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The machine's.
    pub total_bytes: Option<u64>,
    /// What could be taken now without swapping.
    pub available_bytes: Option<u64>,
    /// The tightest limit of the control groups that this process is in, of version 2 or 1.
    pub limit_bytes: Option<u64>,
}

impl Memory {
    /// Reads the tree under `root`, which holds `sys` and `proc`.
    pub fn from_sysfs(root: &Path) -> Memory {
        let limits = control_groups(root, "memory").into_iter().filter_map(|group| {
            read_number(&group.join("memory.max"))
                .or_else(|| read_number(&group.join("memory.limit_in_bytes")))
        });
        Memory {
            total_bytes: meminfo(root, "MemTotal:"),
            available_bytes: meminfo(root, "MemAvailable:"),
            limit_bytes: limits.min(),
        }
    }
}

fn read_text(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|t| t.trim().to_owned())
}

fn read_number(path: &Path) -> Option<u64> {
    read_text(path)?.parse().ok()
}

fn read_cpu(system: &Path, id: usize, nodes: &[(usize, BTreeSet<usize>)]) -> Cpu {
    let dir = system.join(format!("cpu/cpu{id}"));
    let topology = dir.join("topology");
    // The first sibling names the core: unlike core_id it is unique in the machine and always there with SMT.
    let siblings = read_text(&topology.join("thread_siblings_list")).and_then(|t| parse_cpu_set(&t).ok());
    let core = siblings.and_then(|s| s.first().copied()).unwrap_or(id);
    let package = read_number(&topology.join("physical_package_id")).unwrap_or(0) as usize;
    // capacity first: it counts instructions per cycle too, which frequency does not
    let speed =
        read_number(&dir.join("cpu_capacity")).or_else(|| read_number(&dir.join("cpufreq/cpuinfo_max_freq")));
    let node = nodes.iter().find(|(_, cpus)| cpus.contains(&id)).map_or(0, |(node, _)| *node);
    Cpu { id, package, core, speed, node }
}

fn read_nodes(dir: &Path) -> Vec<(usize, BTreeSet<usize>)> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let mut nodes: Vec<(usize, BTreeSet<usize>)> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cpus = parse_cpu_set(&read_text(&entry.path().join("cpulist"))?).ok()?;
            Some((number, cpus))
        })
        .collect();
    nodes.sort();
    nodes
}

fn meminfo(root: &Path, name: &str) -> Option<u64> {
    let text = read_text(&root.join("proc/meminfo"))?;
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn has_nvidia_gpu(root: &Path) -> bool {
    let has_driver = root.join("proc/driver/nvidia/version").exists() || root.join("dev/nvidiactl").exists();
    // /dev/nvidia0 and so on; nvidiactl and nvidia-uvm are the driver's own.
    let is_device =
        |name: &str| name.strip_prefix("nvidia").is_some_and(|number| number.parse::<u32>().is_ok());
    let mut nodes = std::fs::read_dir(root.join("dev")).into_iter().flatten().flatten();
    has_driver && nodes.any(|node| node.file_name().to_str().is_some_and(is_device))
}

fn read_quota(root: &Path) -> Option<usize> {
    control_groups(root, "cpu").iter().filter_map(|group| quota_of(group)).min()
}

/// cgroup 2 writes `quota period` or `max period`; cgroup 1 has a file for each and −1 for no limit.
fn quota_of(group: &Path) -> Option<usize> {
    let (quota, period) = match read_text(&group.join("cpu.max")) {
        Some(text) => {
            let (quota, period) = text.split_once(' ')?;
            (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?)
        }
        None => {
            (read_number(&group.join("cpu.cfs_quota_us"))?, read_number(&group.join("cpu.cfs_period_us"))?)
        }
    };
    // Rounded down: a thread more than the quota grants is a thread that gets throttled in mid-step.
    Some((quota.checked_div(period)? as usize).max(1))
}

/// What /proc/cpuinfo says of the first CPU under `key`; empty if it says nothing.
fn cpuinfo<'a>(text: &'a str, key: &str) -> &'a str {
    let values = text.lines().filter_map(|line| line.split_once(':'));
    values.into_iter().find(|(name, _)| name.trim() == key).map_or("", |(_, value)| value.trim())
}
