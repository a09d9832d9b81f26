//! Reading a machine from made-up /sys and /proc trees.

use crate::tree::Tree;
use pinion_config::{Cpu, Machine};

const GIB: u64 = 1 << 30;

fn cpu_files(tree: &Tree, id: usize, package: usize, siblings: &str) {
    let topology = format!("sys/devices/system/cpu/cpu{id}/topology");
    tree.file(&format!("{topology}/physical_package_id"), &format!("{package}\n"));
    tree.file(&format!("{topology}/thread_siblings_list"), &format!("{siblings}\n"));
}

#[test]
fn two_sockets_with_smt() {
    let tree = Tree::new();
    for id in 0..8 {
        let first = id % 4;
        cpu_files(&tree, id, first / 2, &format!("{first},{}", first + 4));
        let frequency = if first == 0 { "3000000\n" } else { "2500000\n" };
        tree.file(&format!("sys/devices/system/cpu/cpu{id}/cpufreq/cpuinfo_max_freq"), frequency);
    }
    tree.file("sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
    tree.file("sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
    tree.file("sys/devices/system/cpu/online", "0-7\n");
    tree.file("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\n");
    tree.file("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu avx512_bf16 arat\n");
    let machine = Machine::from_sysfs(tree.path(), &[]);
    assert_eq!(machine.cpus.len(), 8);
    assert_eq!(machine.cpus[4], Cpu { id: 4, package: 0, core: 0, speed: Some(3_000_000), node: 0 });
    assert_eq!(machine.cpus[7], Cpu { id: 7, package: 1, core: 3, speed: Some(2_500_000), node: 1 });
    assert_eq!((machine.memory_bytes, machine.quota_cpus), (Some(16 * GIB), None));
    let part = Machine::from_sysfs(tree.path(), &[2, 6]);
    assert_eq!(part.cpus.iter().map(|c| (c.id, c.core)).collect::<Vec<_>>(), [(2, 2), (6, 2)]);
}

#[test]
fn bf16_is_preferred_where_it_is_the_faster_one() {
    // (vendor, flags, has, prefers)
    for (vendor, flags, has, prefers) in [
        ("GenuineIntel", "fpu avx512f", false, false),
        ("GenuineIntel", "fpu avx512_bf16 arat", true, false),
        ("GenuineIntel", "avx512_bf16 amx_bf16", true, true),
        ("AuthenticAMD", "fpu avx512_bf16", true, true),
        ("AuthenticAMD", "fpu avx512_bf16x", false, false),
    ] {
        let tree = Tree::new();
        let text = format!("processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n\nprocessor\t: 1\n");
        tree.file("proc/cpuinfo", &text);
        let machine = Machine::from_sysfs(tree.path(), &[]);
        assert_eq!((machine.has_bf16, machine.prefers_bf16), (has, prefers), "{vendor} {flags}");
    }
}

#[test]
fn capacity_tells_the_speed_before_frequency_does() {
    let tree = Tree::new();
    tree.file("sys/devices/system/cpu/cpu0/cpu_capacity", "1024\n");
    tree.file("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "5000000\n");
    assert_eq!(Machine::from_sysfs(tree.path(), &[0]).cpus[0].speed, Some(1024));
}

#[test]
fn an_empty_tree_is_one_plain_cpu() {
    let tree = Tree::new();
    let machine = Machine::from_sysfs(tree.path(), &[]);
    assert_eq!(machine, Machine::uniform(1, 1));
    let three = Machine::from_sysfs(tree.path(), &[0, 1, 2]);
    assert_eq!(three, Machine::uniform(3, 1));
}

#[test]
fn cgroup_limits() {
    // (files under the cgroup, CPUs, bytes)
    type Case = (&'static [(&'static str, &'static str)], Option<usize>, Option<u64>);
    let cases: &[Case] = &[
        (&[("cpu.max", "max 100000"), ("memory.max", "max")], None, Some(8 * GIB)),
        (&[("cpu.max", "250000 100000"), ("memory.max", "1073741824")], Some(2), Some(GIB)),
        (&[("cpu.max", "50000 100000")], Some(1), Some(8 * GIB)),
        (&[("cpu/cpu.cfs_quota_us", "-1"), ("cpu/cpu.cfs_period_us", "100000")], None, Some(8 * GIB)),
        (&[("cpu/cpu.cfs_quota_us", "400000"), ("cpu/cpu.cfs_period_us", "100000")], Some(4), Some(8 * GIB)),
        (&[("memory/memory.limit_in_bytes", "9223372036854771712")], None, Some(8 * GIB)),
        (&[("memory/memory.limit_in_bytes", "2147483648")], None, Some(2 * GIB)),
        (&[("cpu.max", "garbage"), ("memory.max", "-5")], None, Some(8 * GIB)),
        (&[("cpu.max", "5 0")], None, Some(8 * GIB)),
    ];
    for (files, quota, memory) in cases {
        let tree = Tree::new();
        tree.file("proc/meminfo", "MemTotal:        8388608 kB\n");
        for (name, text) in *files {
            tree.file(&format!("sys/fs/cgroup/{name}"), &format!("{text}\n"));
        }
        let machine = Machine::from_sysfs(tree.path(), &[0]);
        assert_eq!((machine.quota_cpus, machine.memory_bytes), (*quota, *memory), "{files:?}");
    }
}

#[test]
fn limits_of_the_groups_above_hold_too() {
    // (/proc/self/cgroup, files under the cgroup, CPUs, bytes)
    type Case = (&'static str, &'static [(&'static str, &'static str)], Option<usize>, u64);
    const UNIT: &str = "0::/system.slice/pinion.service\n";
    const OLD: &str = "5:cpu,cpuacct:/system.slice/a.service\n4:memory:/user.slice\n0::/unified\n";
    let cases: &[Case] = &[
        // systemd's CPUQuota= and MemoryMax= of the service.
        (
            UNIT,
            &[
                ("system.slice/pinion.service/cpu.max", "200000 100000"),
                ("system.slice/pinion.service/memory.max", "2147483648"),
                ("system.slice/cpu.max", "max 100000"),
            ],
            Some(2),
            2 * GIB,
        ),
        // Of the slice, where that is tighter.
        (
            UNIT,
            &[
                ("system.slice/pinion.service/cpu.max", "800000 100000"),
                ("system.slice/pinion.service/memory.max", "max"),
                ("system.slice/cpu.max", "300000 100000"),
                ("system.slice/memory.max", "1073741824"),
                ("system.slice/other.service/memory.max", "1048576"),
            ],
            Some(3),
            GIB,
        ),
        // A container that is told the host's path and sees its own group as the root.
        (UNIT, &[("cpu.max", "100000 100000"), ("memory.max", "1073741824")], Some(1), GIB),
        ("0::/../outside\n", &[("cpu.max", "100000 100000")], Some(1), 8 * GIB),
        // Version 1: a hierarchy for each controller.
        (
            OLD,
            &[
                ("cpu/system.slice/cpu.cfs_quota_us", "600000"),
                ("cpu/system.slice/cpu.cfs_period_us", "100000"),
                ("memory/user.slice/memory.limit_in_bytes", "1073741824"),
                ("memory/memory.limit_in_bytes", "9223372036854771712"),
                ("cpu.max", "100000 100000"),
            ],
            Some(6),
            GIB,
        ),
    ];
    for (groups, files, quota, memory) in cases {
        let tree = Tree::new();
        tree.file("proc/meminfo", "MemTotal:        8388608 kB\n");
        tree.file("proc/self/cgroup", groups);
        for (name, text) in *files {
            tree.file(&format!("sys/fs/cgroup/{name}"), &format!("{text}\n"));
        }
        let machine = Machine::from_sysfs(tree.path(), &[0]);
        assert_eq!((machine.quota_cpus, machine.memory_bytes), (*quota, Some(*memory)), "{groups}{files:?}");
    }
}

#[test]
fn this_computer_has_a_cpu() {
    assert!(!Machine::detect().cpus.is_empty());
}
