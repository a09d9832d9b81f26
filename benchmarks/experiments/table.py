#!/usr/bin/env python3
"""The table of a measured experiment in Markdown, once it is sure that the experiment took place: table.py OUT.

OUT holds ablate.json and runs/. Refused, with exit code 1, is a result in which a hog did not run as long as the
requests that it ran beside, or took next to nothing; in which the memory limit was never reached; or in which memory
was locked where it should not be, or not where it should.
"""

import json
import os
import sys

TITLES = {
    "itl_p99_ms": "ITL p99, ms",
    "itl_max_ms": "ITL max, ms",
    "ttft_p50_ms": "TTFT p50, ms",
    "ttft_p99_ms": "TTFT p99, ms",
    "tpot_p50_ms": "TPOT p50, ms",
    "e2e_p50_ms": "E2E p50, ms",
    "e2e_p99_ms": "E2E p99, ms",
    "output_tok_s": "output tok/s",
}
# A hog of these kinds that got less of its CPU was hardly there.
CPU_SHARE_MIN = {"cpu": 0.2, "cache": 0.2, "bandwidth": 0.2}
# Above this share of a core the client is measured, too.
CLIENT_SHARE_MAX = 0.8
MARK = "[beside] "


def told(log, word):
    """The JSON objects that beside.py wrote behind this word."""
    lines = (line[len(MARK) :] for line in log.splitlines() if line.startswith(MARK))
    return [json.loads(line[len(word) + 1 :]) for line in lines if line.startswith(word + " {")]


def hog_faults(log, run):
    faults, hogs = [], told(log, "hog")
    faults += [line for line in log.splitlines() if line.startswith(f"{MARK}error")]
    if not hogs:
        faults.append("no hog told of itself")
    for hog in hogs:
        kind, seconds = hog["hog"], hog["seconds"]
        if seconds < run["figures"]["wall_s"]:
            faults.append(f"the hog {kind} ran for {seconds:.1f} s, the requests for {run['figures']['wall_s']:.1f} s")
        if not hog["done"] or hog["failed"]:
            faults.append(f"the hog {kind} did {hog['done']} {hog['unit']}, and failed {hog['failed']} times")
        if hog["cpu_seconds"] < CPU_SHARE_MIN.get(kind, 0) * seconds:
            faults.append(f"the hog {kind} had its CPU for {hog['cpu_seconds']:.1f} s of {seconds:.1f} s")
    faults += ["the memory limit was never reached" for one in told(log, "memory") if not one["limit_hits"]]
    return faults


def lock_faults(log, run):
    """In the experiment `jitter` each label says whether memory is locked."""
    locked = "memory locked" in log and "memory not locked" not in log
    wanted = {"not locked": False, "-jitter-control": False}.get(run["label"], True)
    return [] if locked == wanted else [f"memory was {'' if locked else 'not '}locked in a run of {run['label']}"]


def faults(result, folder):
    found = []
    for run in result["runs"]:
        path = os.path.join(folder, "runs", f"{run['key']}.server.log")
        with open(path, errors="replace") as file:
            log = file.read()
        own = hog_faults(log, run) if "beside.py" in run["server"]["command"] else []
        if "--memory-mib" in result["scenario"]:
            own += lock_faults(log, run)
        found += [f"{run['key']}: {fault}" for fault in own]
    return found


def number(value):
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def cell(row, base):
    if row["hidden"]:
        return "too few samples"
    if row["label"] == base:
        return number(row["median"])
    words = {"base": f"{base} wins", "variant": f"{row['label']} wins", "same": "same"}
    verdict = "cannot act" if row["inert"] else words.get(row["better"], "no verdict")
    return f"×{row['ratio']:.3f} ({row['low']:.3f}–{row['high']:.3f}), {verdict}"


def table(result):
    rows, base = result["compared"], result["base"]
    metrics = [name for name in TITLES if any(row["metric"] == name for row in rows)]
    labels = list(dict.fromkeys(row["label"] for row in rows))
    by_place = {(row["label"], row["metric"]): row for row in rows}
    lines = [f"| | {' | '.join(TITLES[name] for name in metrics)} |", "|---" * (len(metrics) + 1) + "|"]
    for label in labels:
        cells = [cell(by_place[label, name], base) if (label, name) in by_place else "-" for name in metrics]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    bands = [by_place[base, name]["band"] for name in metrics]
    noise = [f"×{band['low']:.3f}–{band['high']:.3f}" if band else "no band" for band in bands]
    return "\n".join([*lines, f"| noise | {' | '.join(noise)} |"])


def notes(result):
    origin, runs = result["origin"], result["runs"]
    hardware, share = origin["hardware"], max(run["figures"]["client"]["cpu_share_of_one_core"] for run in runs)
    yield (
        f"{len({run['round'] for run in runs})} rounds, commit {origin['commit'][:12]}, {origin['time_utc']}, "
        f"{hardware['logical_cpus']} CPUs ({hardware['cpu']}); the client took up to {share:.2f} of a core."
    )
    if share > CLIENT_SHARE_MAX:
        yield "The client was near the end of its core: its own share is in these latencies."
    yield from sorted({row["reason"] for row in result["compared"] if row["reason"]})


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(os.path.join(sys.argv[1], "ablate.json")) as file:
        result = json.load(file)
    found = faults(result, sys.argv[1])
    if found:
        sys.exit("\n".join(["this is no result:", *found]))
    print(table(result), *notes(result), sep="\n\n")


if __name__ == "__main__":
    main()
