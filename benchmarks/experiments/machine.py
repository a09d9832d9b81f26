#!/usr/bin/env python3
"""What an experiment needs of a machine, and its cores.

    machine.py check [--cores N] [--files N] [--lock] [--cgroup] [--busy-max SHARE]
    machine.py neighbour     two lists of CPUs: those that are left to the server, and the neighbour's

`check` prints every fault and ends with exit code 1 if there is one. The neighbour gets a quarter of the cores that
this process may run on, and at least one: the highest-numbered, which the engine prefers.
"""

import argparse
import os
import resource
import sys
import time

import cgroup

CAP_IPC_LOCK = 14
BUSY_LOOK_S = 2
NEIGHBOUR_SHARE = 4


def cpu_set(text):
    """`0,2-3` as numbers."""
    spans = (part.split("-") for part in text.strip().split(",") if part)
    return {cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1)}


def cores():
    """The CPUs of each physical core that this process may run on, lowest first."""
    allowed, found = os.sched_getaffinity(0), []
    for cpu in sorted(allowed):
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings = cpu_set(cgroup.read(path)) & allowed if os.path.exists(path) else {cpu}
        if siblings not in found:
            found.append(siblings)
    return found


def split(all_cores):
    """(the server's cores, the neighbour's)"""
    count = max(1, len(all_cores) // NEIGHBOUR_SHARE)
    return all_cores[:-count], all_cores[-count:]


def as_list(some_cores):
    return ",".join(str(cpu) for cpu in sorted(cpu for core in some_cores for cpu in core))


def busy_share():
    """Share of all CPUs' time that something took, the host's share of a virtual machine included."""

    def look():
        fields = [int(field) for field in cgroup.read("/proc/stat").splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    before = look()
    time.sleep(BUSY_LOOK_S)
    total, idle = (after - first for after, first in zip(look(), before))
    return 1 - idle / max(total, 1)


def may_lock():
    lines = cgroup.read("/proc/self/status").splitlines()
    effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
    unlimited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY
    return unlimited or bool(effective >> CAP_IPC_LOCK & 1)


def faults(args):
    found = []
    if len(cores()) < args.cores:
        found.append(f"{args.cores} cores are needed, and this process may run on {len(cores())}")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files != resource.RLIM_INFINITY and files < args.files:
        found.append(f"{args.files} open files are needed, and the hard limit is {files} (`ulimit -Hn`)")
    if args.lock and not may_lock():
        found.append("memory cannot be locked: `ulimit -l unlimited`, or start this as root")
    if args.cgroup:
        try:
            cgroup.Cgroup().remove()
        except (cgroup.Refused, OSError) as error:
            found.append(f"a memory cgroup is needed: {error}")
    busy = busy_share() if args.busy_max < 1 else 0
    if busy > args.busy_max:
        found.append(f"{busy:.0%} of the CPUs' time went to other programs during {BUSY_LOOK_S} s; end them first")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["check", "neighbour"])
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--lock", action="store_true")
    parser.add_argument("--cgroup", action="store_true")
    parser.add_argument("--busy-max", type=float, default=0.1)
    args = parser.parse_args()
    if args.what == "neighbour":
        own, neighbour = split(cores())
        print(as_list(own), as_list(neighbour))
        return 0
    found = faults(args)
    for fault in found:
        print(f"[experiments] error: {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
