#!/usr/bin/env python3
"""Registers and spills of each CUDA kernel, from ptxas's report.

    kernels/registers.py PTXAS_LOG              prints the table
    kernels/registers.py PTXAS_LOG README.md    and fails if a kernel spills more than the table there allows

A kernel's figures are the largest of its variants (element types, head sizes, rows).
"""
import re
import sys

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a")


def read_report(path):
    """{kernel: {architecture: (registers, spilled bytes)}}"""
    kernels, name, architecture, spilled = {}, None, None, 0
    for line in open(path, encoding="utf-8"):
        if found := re.search(r"Compiling entry function '(\w+)' for '(sm_\w+)'", line):
            architecture = found[2]
            # A mangled name holds each part behind its length.
            name = re.search(r"\d([a-z_]+_kernel)", found[1])[1].removesuffix("_kernel")
        elif found := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            spilled = max(int(found[1]), int(found[2]))
        elif (found := re.search(r"Used (\d+) registers", line)) and name:
            registers, before = kernels.setdefault(name, {}).get(architecture, (0, 0))
            kernels[name][architecture] = (max(registers, int(found[1])), max(before, spilled))
            name, spilled = None, 0
    return kernels


def read_allowed(path):
    """{kernel: allowed spilled bytes} from the table whose first column is a kernel in backquotes and last one a number."""
    allowed = {}
    for line in open(path, encoding="utf-8"):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) >= 5 and (found := re.fullmatch(r"`(\w+)`", cells[0])) and cells[-1].isdigit():
            allowed[found[1]] = int(cells[-1])
    return allowed


def main():
    kernels = read_report(sys.argv[1])
    if not kernels:
        sys.exit("the report names no kernel")
    print(f"{'kernel':<12}" + "".join(f"{a:>10} spill" for a in ARCHITECTURES))
    for name, figures in sorted(kernels.items()):
        columns = (figures.get(a, (0, 0)) for a in ARCHITECTURES)
        print(f"{name:<12}" + "".join(f"{registers:>10} {spill:>5}" for registers, spill in columns))
    if len(sys.argv) < 3:
        return
    allowed, faults = read_allowed(sys.argv[2]), []
    for name, figures in sorted(kernels.items()):
        if name not in allowed:
            faults.append(f"{name} is not in the table")
            continue
        for architecture, (_, spill) in sorted(figures.items()):
            if spill > allowed[name]:
                faults.append(f"{name} spills {spill} bytes on {architecture}, the table allows {allowed[name]}")
    faults += [f"{name} is in the table but not in the report" for name in sorted(allowed) if name not in kernels]
    if faults:
        sys.exit(f"{sys.argv[2]}:\n  " + "\n  ".join(faults))


if __name__ == "__main__":
    main()
