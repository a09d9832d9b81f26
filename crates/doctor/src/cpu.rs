//! The processor: what it can, and how much of it is ours.

use crate::check::Check;
use pinion_config::Machine;
use std::collections::BTreeSet;

/// A feature: the flags of /proc/cpuinfo that are all needed, its name, and what it gives here.
const FEATURES: [(&[&str], &str, &str); 5] = [
    (&["avx2", "fma"], "AVX2", "vector kernels"),
    (&["avx512f", "avx512bw", "avx512vl"], "AVX-512", "wider vector kernels"),
    (&["avx512_vnni"], "VNNI", "faster int8 and int4 weights"),
    (&["avx512_bf16"], "bf16", "bf16 products and attention"),
    (&["amx_bf16", "amx_tile"], "AMX", "bf16 products several times as fast; --dtype auto takes bf16"),
];

/// What the first CPU in the text of /proc/cpuinfo has.
pub(crate) fn features(cpuinfo: &str) -> Check {
    let id = "cpu.features";
    let value = |key: &str| {
        let pairs = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        pairs.into_iter().find(|(name, _)| name.trim() == key).map_or("", |(_, value)| value.trim())
    };
    let flags: BTreeSet<&str> = value("flags").split_whitespace().collect();
    if flags.is_empty() {
        return Check::note(
            id,
            "/proc/cpuinfo names no features of this CPU",
            "Mount /proc to have them checked.",
        );
    }
    let has = |needed: &[&str]| needed.iter().all(|flag| flags.contains(flag));
    let (here, missing): (Vec<_>, Vec<_>) = FEATURES.into_iter().partition(|(needed, ..)| has(needed));
    let gives = |(_, name, gives): &(&[&str], &str, &str)| format!("{name} ({gives})");
    let mut found = here.iter().map(gives).collect::<Vec<_>>().join(", ");
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter().map(|(_, name, _)| *name).collect();
        found += &format!("{}no {}", if found.is_empty() { "" } else { "; " }, names.join(", "));
    }
    if has(FEATURES[0].0) {
        return Check::ok(id, found);
    }
    let remedy = "Use a CPU with AVX2, or give the virtual machine its host's CPU model: without AVX2 the kernels are \
                  scalar and many times slower.";
    Check::warning(id, found, remedy)
}

/// The CPUs of the allowed set.
pub(crate) fn cores(machine: &Machine) -> Check {
    let count = |keys: BTreeSet<(usize, usize)>| keys.len();
    let cores = count(machine.cpus.iter().map(|cpu| (cpu.package, cpu.core)).collect());
    let nodes = count(machine.cpus.iter().map(|cpu| (cpu.node, 0)).collect());
    let found = format!("CPUs allowed: {}; cores: {cores}; NUMA nodes: {nodes}", machine.cpus.len());
    if cores >= 2 {
        return Check::ok("cpu.cores", found);
    }
    let remedy =
        "Allow at least two cores (taskset, cpuset, docker --cpuset-cpus): on one, all processes take turns.";
    Check::warning("cpu.cores", found, remedy)
}

/// The cgroup's share of CPU time.
pub(crate) fn quota(machine: &Machine) -> Check {
    let id = "cpu.quota";
    match machine.quota_cpus {
        None => Check::ok(id, "no cgroup quota on CPU time"),
        Some(quota) if quota >= machine.cpus.len() => {
            Check::ok(id, format!("a cgroup quota of {quota} CPUs, no less than the allowed set"))
        }
        Some(quota) => {
            let found = format!(
                "a cgroup quota of {quota} of {} CPUs: nothing is pinned, and steps may be throttled",
                machine.cpus.len()
            );
            Check::warning(
                id,
                found,
                "Give whole CPUs instead (docker --cpuset-cpus, a static CPU manager policy).",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Status;

    #[test]
    fn features_are_named_with_what_they_give() {
        for (flags, status, says, not) in [
            ("avx2 fma sse", Status::Ok, "AVX2 (vector kernels); no AVX-512, VNNI, bf16, AMX", "wider"),
            ("avx2", Status::Warning, "no AVX2, AVX-512", "vector kernels"),
            (
                "avx2 fma avx512f avx512bw avx512vl avx512_vnni avx512_bf16 amx_bf16 amx_tile",
                Status::Ok,
                "--dtype auto takes bf16",
                "no ",
            ),
        ] {
            let check = features(&format!("processor\t: 0\nflags\t\t: {flags}\nprocessor : 1\nflags : x\n"));
            assert!(check.found.contains(says) && !check.found.contains(not), "{check:?}");
            assert_eq!((check.status, check.remedy.is_some()), (status, status != Status::Ok), "{check:?}");
        }
        assert_eq!(features("").status, Status::Note);
    }

    #[test]
    fn one_core_and_a_small_quota_are_warnings() {
        assert_eq!(cores(&Machine::uniform(2, 2)).found, "CPUs allowed: 4; cores: 2; NUMA nodes: 1");
        assert_eq!(cores(&Machine::uniform(1, 2)).status, Status::Warning);
        for (quota_cpus, status) in
            [(None, Status::Ok), (Some(4), Status::Ok), (Some(8), Status::Ok), (Some(3), Status::Warning)]
        {
            assert_eq!(
                quota(&Machine { quota_cpus, ..Machine::uniform(4, 1) }).status,
                status,
                "{quota_cpus:?}"
            );
        }
    }
}
