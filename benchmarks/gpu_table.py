#!/usr/bin/env python3
"""The short of a run of gpu.sh: gpu_table.py OUT PART prints the table of a part against its bounds, and what of the part was
left out; `next` what to look at first; `results` writes OUT/results.jsonl, every figure with its stage; `manifest` lists
OUT/profiles with where it comes from. Needs nothing but Python."""
import csv
import json
import math
import os
import re
import sys

# One row's step in ms, output tokens per second, ms at the 99th percentile for arrivals at 0.4 of the trace's times,
# seconds from start to ready.
STEP_MS, OFFLINE_TOKENS_S, TTFT_P99_MS, TPOT_P99_MS, READY_S = 0.35, 60_000, 6.0, 0.8, 3.0
STEPS = ["steps", "steps_bf16", "steps_sampled", "steps_nucleus", "steps_logprobs", "steps_logprobs_on_host", "steps_masked",
         "steps_masked_on_host", "steps_penalised", "steps_penalised_on_host"]
ONLINE = ["online", "online_trace_0.4", "online_trace_0.8", "online_trace_1.6"]
FAMILIES = ["qwen3", "llama"]
PARTS = ["equality", "gpt2", "families", "ablations", "profiles"]
# A winner takes this number of paired rounds, and of runs of the default again in each, which show the noise: as in
# `pinion bench ablate`.
ROUNDS_MIN, CONTROLS_MIN = 5, 3
# How gpu_parts.sh names those.
CONTROL = re.compile(r"again\d+$")
# Lines of `next` for one question.
FIRST = 5
# Times of an emulated device have no target.
IS_REAL = True


def lines(out, stage):
    """The JSON lines that a stage printed. A stage that was stopped may have left half of one."""
    found = []
    try:
        with open(os.path.join(out, stage + ".jsonl")) as file:
            for line in file:
                try:
                    found.append(json.loads(line) if line.startswith("{") else {})
                except ValueError:
                    pass
    except OSError:
        pass
    return [line for line in found if line]


def runs(out, stage):
    """The measurements of pinion-bench under this name."""
    folder = os.path.join(out, stage, "runs")
    if not os.path.isdir(folder):
        return []
    records = []
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".json")):
        with open(os.path.join(folder, name)) as file:
            records.append(json.load(file))
    return sorted(records, key=lambda record: (record["scale"], record["round"]))


def results(out):
    """Every figure that there is, with its stage, into one file."""
    stages = sorted(name[: -len(".jsonl")] for name in os.listdir(out) if name.endswith(".jsonl") and name != "results.jsonl")
    with open(os.path.join(out, "results.jsonl"), "w") as file:
        for stage in stages:
            for line in lines(out, stage):
                file.write(json.dumps({"stage": stage, **line}) + "\n")
            for record in runs(out, stage):
                kept = {key: record[key] for key in ("scale", "round", "offered_per_s", "figures")}
                file.write(json.dumps({"stage": stage, **kept}) + "\n")


def stages(out):
    """(part, stage, outcome, why) of every stage's last run."""
    with open(os.path.join(out, "stages.txt")) as file:
        return [tuple(line.rstrip("\n").split(" ", 3)) for line in file]


def left_out(out, part):
    """What has no figures in the table above, and why."""
    found = [stage for stage in stages(out) if stage[0] == part]
    print(f"{part}: {sum(stage[2] == 'passed' for stage in found)} stages passed")
    for _, name, outcome, why in found:
        if outcome != "passed":
            print(f"  {name} {outcome}: {why}")


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None


def against(value, target, unit, least=False):
    if not IS_REAL:
        return "no target here"
    met = value >= target if least else value <= target
    return f"{'met' if met else 'missed'}: {'at least' if least else 'at most'} {target:g} {unit}"


def aligned(rows):
    """Columns as wide as their widest cell; an empty cell is a dash."""
    rows = [[cell or "-" for cell in row] for row in rows]
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths)))


def device(out):
    global IS_REAL
    for line in lines(out, "device")[:1]:
        IS_REAL = line["device"] != "emulated device"
        major, minor = divmod(line["capability"], 10)
        print(f"{line['device']}: {line['multiprocessors']} multiprocessors, sm_{major}{minor}, "
              f"{line['free_bytes'] / 1e9:.1f} of {line['memory_bytes'] / 1e9:.1f} GB free")


def step_cell(line, copy):
    """A step's time; of a decode step also the part of it that its bytes alone take at the copy's bandwidth."""
    if not line:
        return ""
    floor = line["least_bytes"] / copy / 1e9 if copy else None
    return f"{line['step_ms']:.3f}" + (f" ({floor / line['step_ms']:.0%})" if floor and line["query"] == 1 else "")


def copied(out):
    """TB/s of a copy on the device, read and written: of the part that looked last."""
    found = [line["copy_TB_s"] for stage in ("copy", "copy_families") for line in lines(out, stage) if "copy_TB_s" in line]
    return found[-1] if found else None


def steps(out, stages_of=STEPS):
    copy = copied(out)
    if copy:
        print(f"bound: a copy on the device moves {copy:.3f} TB/s, bytes read and written")
    times = {name: {(line["rows"], line["query"]): line for line in lines(out, name) if "step_ms" in line} for name in stages_of}
    times = {name: found for name, found in times.items() if found}
    if not times:
        return
    contexts = sorted({line["context"] for found in times.values() for line in found.values()})
    print(f"step in ms, context {', '.join(map(str, contexts))}; of decode steps, the share that their bytes take at the copy's bandwidth")
    rows = [["rows x tokens"] + [name.removeprefix("steps_") if name != "steps" else "graph" for name in times]]
    for shape in sorted({shape for found in times.values() for shape in found}, key=lambda shape: (shape[1], shape[0])):
        rows.append([f"{shape[0]} x {shape[1]}"] + [step_cell(found.get(shape), copy) for found in times.values()])
    aligned(rows)
    one = times.get("steps", {}).get((1, 1))
    if one:
        print(f"  one row: {one['step_ms']:.3f} ms ({against(one['step_ms'], STEP_MS, 'ms')})")


def rates(out):
    """Kernels by themselves: microseconds a launch, and the share of the copy's bandwidth; of large products TFLOP/s."""
    copy = copied(out)
    found = [line for line in lines(out, "rates") if "us" in line]
    if not found or not copy:
        return
    print("kernels by themselves, us a launch (share of the copy's bandwidth; TFLOP/s where that says more)")
    by_kernel = {}
    for line in found:
        by_kernel.setdefault((line["kernel"], line["by"]), {})[line["rows"]] = line
    columns = sorted({line["rows"] for line in found})
    rows = [["kernel", "by"] + [f"{count} rows" for count in columns]]
    for (kernel, by), of_rows in by_kernel.items():
        rows.append([kernel, by] + [rate_cell(of_rows.get(count), copy) for count in columns])
    aligned(rows)


def rate_cell(line, copy):
    if not line:
        return ""
    rate = f"{line['TB_s'] / copy:.0%}" if line["flops"] < 100 * line["bytes"] else f"{line['TFLOP_s']:.0f} T"
    return f"{line['us']:.2f} ({rate})"


def phases(out):
    """Inside the fused step: means over blocks and layers."""
    found = [line for line in lines(out, "phases") if "phase" in line]
    for line in lines(out, "phases"):
        if "step_ms" in line:
            print(f"fused step of {line['fused_rows']} rows, contexts in {line['splits']} parts: {line['step_ms'] * 1e3:.1f} us, "
                  f"{line['step_with_stamps_ms'] * 1e3:.1f} with stamps, {line['blocks']} blocks, {32 * line['group_slots']} KB of weights ahead")
    if not found:
        return
    print("its phases, us: rows to shared memory + the block's part + barrier (of the block that came last)")
    names = list(dict.fromkeys(line["phase"] for line in found))
    rows = [["rows", "parts"] + [f"{name} x {next(line['times'] for line in found if line['phase'] == name)}" for name in names]]
    for count, splits in sorted({(line["fused_rows"], line["splits"]) for line in found}):
        of_rows = {line["phase"]: line for line in found if (line["fused_rows"], line["splits"]) == (count, splits)}
        rows.append([str(count), str(splits)] + [phase_cell(of_rows.get(name)) for name in names])
    aligned(rows)


def phase_cell(line):
    if not line:
        return ""
    return f"{line['rows_us']:.2f} + {line['work_us']:.2f} + {line['barrier_us']:.2f} ({line['barrier_least_us']:.2f})"


def offline(out, name):
    """Output tokens per second of each round."""
    return [run["figures"]["output_tokens_per_s"] for run in runs(out, name)]


def show_offline(out, name, target=None):
    speeds = offline(out, name)
    if speeds:
        bound = f" ({against(median(speeds), target, 'tokens/s', least=True)})" if target else ""
        print(f"{name}: {median(speeds):.0f} output tokens/s, {min(speeds):.0f} to {max(speeds):.0f} in {len(speeds)} rounds{bound}")


def served(out):
    for line in lines(out, "server_graph"):
        print(f"server: ready after {line['ready_s']:.2f} s ({against(line['ready_s'], READY_S, 's')})")
    show_offline(out, "offline", OFFLINE_TOKENS_S)
    rows = [["arrivals", "scale", "arrivals/s", "done", "TTFT p50 ms", "p99", "TPOT p50 ms", "p99", "ITL p99 ms", "E2E p50 ms", "p99", "p99/p50"]]
    for name in ONLINE:
        for run in runs(out, name):
            figures = run["figures"]
            cells = [f"{figures[key][part]:.3f}" for key, part in
                     (("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("tpot_ms", "p99"), ("itl_ms", "p99"), ("e2e_ms", "p50"), ("e2e_ms", "p99"))]
            rows.append([name, f"{run['scale']:g}", f"{run['offered_per_s']:.1f}", f"{figures['completed']} of {figures['requests']}",
                         *cells, f"{figures['e2e_p99_over_p50']:.2f}"])
    if len(rows) > 1:
        aligned(rows)
    for name, value, target in tails(out):
        print(f"  {name}: {value:.3f} ms ({against(value, target, 'ms')})")


def tails(out):
    """Times at the 99th percentile for the heaviest arrivals, which have targets."""
    found = []
    for name in ("online_trace_0.4", "online"):
        for run in runs(out, name):
            if run["scale"] == 0.4:
                for key, target in (("ttft_ms", TTFT_P99_MS), ("tpot_ms", TPOT_P99_MS)):
                    found.append((f"{name} at 0.4, {key[:4].upper()} p99", run["figures"][key]["p99"], target))
    return found


def compared(out):
    for model in ["gpt2"] + FAMILIES:
        for line in lines(out, "greedy_read_" + model):
            print(f"greedy {model} {line['dtype']}: {line['equal_alone_and_together']} of {line['tokens']} tokens the same alone and in a batch")
        for line in lines(out, "greedy_reference_" + model):
            print(f"greedy {model} {line['dtype']} {line['prompts']}: {line['likeliest']} of {line['tokens']} tokens are the likeliest of "
                  f"{line['against']}, the furthest {line['furthest_behind']:.1e} behind (at most {line['tolerance']:g})")
    worst = {}
    for line in lines(out, "parity"):
        key = (line["parity"], line["decode"])
        worst[key] = max(worst.get(key, (0.0, 0.0))[0], line["relative_error"]), line["tolerance"]
    for (dtype, decode), (error, tolerance) in worst.items():
        print(f"logits {dtype} {decode}: {error:.1e} from the CPU engine's in fp32 (at most {tolerance:g})")
    operators(out, "operators_")
    for line in lines(out, "launches"):
        print(f"launches, {line['launches']}: the tokens of plain ones; {line['differing_logits']} logits differ in "
              f"{line['repeats']} runs, by {line['relative_error']:.1e} (at most {line['tolerance']:g})")


def operators(out, prefix):
    """libtorch's operators, alone and with the object's kernels, beside the native backend: tokens, and steps one by one."""
    rows = [["model", "dtype", "rows x tokens", "native ms", "torch", "torch with kernels"]]
    for model in ["gpt2"] + FAMILIES:
        found = lines(out, prefix + model)
        for line in found:
            if "operators" in line and line["operators"] != "native":
                print(f"greedy {model} {line['dtype']}, {line['operators']}: {line['equal_at_first']} of {line['tokens']} tokens are the native "
                      "backend's, up to a prompt's first other one")
        times = {}
        for line in found:
            if "by" in line:
                times.setdefault((line["query"], line["rows"], line["dtype"]), {})[line["by"]] = line["step_ms"]
        for (query, count, dtype), of in sorted(times.items()):
            rows.append([model, dtype, f"{count} x {query}"] + [f"{of[by]:.3f}" if by in of else "" for by in ("native", "torch", "torch with kernels")])
    if len(rows) > 1:
        print("steps one by one, each with its tokens on the host, in ms")
        aligned(rows)


def baseline(out):
    for line in lines(out, "baseline"):
        if "step_ms" in line:
            print(f"{line['by']}: {line['step_ms']:.2f} ms a step of {line['rows']} rows, context {line['context']}")
        else:
            print(f"{line['by']}: {line['output_tokens_per_s']:.0f} output tokens/s, {line['offline']}")


def families(out):
    steps(out, ["steps_" + name for name in FAMILIES])
    operators(out, "operators_bf16_")
    for name in FAMILIES:
        show_offline(out, "offline_" + name)


def ablated(out):
    """What each switch does to steps and to offline throughput: (of what, switch, ratios of the rounds; below 1 the switch wins)."""
    found = {}
    for name in sorted(name[: -len(".jsonl")] for name in os.listdir(out) if name.startswith("ablate_steps_") and name.endswith(".jsonl")):
        switch, number = name.removeprefix("ablate_steps_").rsplit("_", 1)
        base = {(line["rows"], line["query"]): line["step_ms"] for line in lines(out, f"ablate_steps_base_{number}") if "step_ms" in line}
        for line in lines(out, name):
            shape = line.get("rows"), line.get("query")
            if switch != "base" and "step_ms" in line and shape in base:
                found.setdefault((f"step {shape[0]} x {shape[1]}", switch), []).append(line["step_ms"] / base[shape])
    for name in sorted(name for name in os.listdir(out) if name.startswith("ablate_offline_") and os.path.isdir(os.path.join(out, name))):
        switch, number = name.removeprefix("ablate_offline_").rsplit("_", 1)
        speeds, base = median(offline(out, name)), median(offline(out, f"ablate_offline_base_{number}"))
        if switch != "base" and speeds and base:
            found.setdefault(("offline", switch if CONTROL.match(switch) else "--" + switch), []).append(base / speeds)
    return [(of, switch, ratios) for (of, switch), ratios in found.items()]


def noises(found):
    """Of what, and how far from the default the default itself was found, at most, when it ran again; nothing without enough runs."""
    widths = {}
    for of, switch, ratios in found:
        if CONTROL.match(switch) and len(ratios) >= ROUNDS_MIN:
            widths.setdefault(of, []).append(abs(math.log(median(ratios))))
    return {of: math.exp(max(effects)) for of, effects in widths.items() if len(effects) >= CONTROLS_MIN}


def verdict(ratios, noise):
    """Beyond the noise in every round, or the same; empty where too little ran for either."""
    if noise is None or len(ratios) < ROUNDS_MIN:
        return ""
    if max(ratios) < 1 / noise:
        return "default loses"
    return "default wins" if min(ratios) > noise else "same"


def ablations(out):
    found = ablated(out)
    if not found:
        return
    noise = noises(found)
    print("time with the switch / time without, of the same round; beyond the noise in every round one of them wins")
    rows = [["what", "switch", "median", "least", "most", "rounds", "noise", "verdict"]]
    for of, switch, ratios in sorted(found, key=lambda entry: (entry[1], entry[0])):
        band = f"{1 / noise[of]:.3f} to {noise[of]:.3f}" if of in noise else ""
        said = "control" if CONTROL.match(switch) else verdict(ratios, noise.get(of))
        rows.append([of, switch, f"{median(ratios):.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}", str(len(ratios)), band, said])
    aligned(rows)
    if any(not row[-1] for row in rows):
        print(f"  a verdict takes {ROUNDS_MIN} rounds, and the default again {CONTROLS_MIN} times in each of them, which is the noise")


def profiles(out):
    """Kernels by the time that nsys saw, and the files to open."""
    folder = os.path.join(out, "profiles")
    found = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in found:
        if name.endswith("cuda_gpu_kern_sum.csv"):
            with open(os.path.join(folder, name)) as file:
                for row in list(csv.DictReader(file))[:12]:
                    print(f"  {row['Time (%)']:>5} %  {row['Instances']:>7} x {row['Avg (ns)']:>10} ns  {row['Name'][:80]}")
    for name in found:
        print(f"  profiles/{name}: {os.path.getsize(os.path.join(folder, name))} bytes")


def manifest(out):
    """Where the profiles come from."""
    folder = os.path.join(out, "profiles")
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "commit")) as file:
        commit = file.read().strip()
    try:
        with open(os.path.join(out, "machine.txt")) as file:
            driver = re.search(r"Driver Version: *(\S+)", file.read())
    except OSError:
        driver = None
    files = {name: os.path.getsize(os.path.join(folder, name)) for name in sorted(os.listdir(folder)) if name != "manifest.json"}
    facts = {"commit": commit, "card": next((line["device"] for line in lines(out, "device")), None),
             "driver": driver.group(1) if driver else None, "commands": {
                 "steps.nsys-rep": "nsys profile of cuda_check steps on GPT-2", "transformers.json": "gpu_reference.py --trace"}, "files": files}
    with open(os.path.join(folder, "manifest.json"), "w") as file:
        json.dump(facts, file, indent=1)
    print(json.dumps(facts))


def head(number, text, found):
    print(f"{number}. {text}" + ("" if found else ": none"))
    for line in found[:FIRST]:
        print(f"   {line}")
    if len(found) > FIRST:
        print(f"   and {len(found) - FIRST} more")


def look_next(out):
    """What is wrong comes before what is slow."""
    have = stages(out)
    failed = [f"{part}: {name}: {why}" for part in ["start"] + PARTS for of, name, outcome, why in have if of == part and outcome == "failed"]
    head(1, "what fails (OUT/STAGE.log)", failed)
    missing = [part for part in PARTS if not any(of == part for of, *_ in have)]
    cut = [f"{of}: {name}: {why}" for of, name, outcome, why in have if outcome == "skipped"]
    head(2, "what has not run", [f"{part}: no stage of it" for part in missing] + cut)
    found = ablated(out)
    noise = noises(found)
    lost = sorted((median(ratios), of, switch, len(ratios)) for of, switch, ratios in found
                  if not CONTROL.match(switch) and verdict(ratios, noise.get(of)) == "default loses")
    head(3, "which default loses", [f"{switch}: {of} takes {ratio:.3f} of the default's time, in each of {count} rounds" for ratio, of, switch, count in lost])
    far = sorted(kernels_by_distance(out), key=lambda entry: entry[0], reverse=True)
    head(4, "which kernel is furthest from its bound", [f"{name}: {us:.2f} us, {share:.0%} of the copy's bandwidth, {over:.2f} us over" for over, share, us, name in far])
    head(5, "which target is missed", missed(out))


def kernels_by_distance(out):
    """Kernels that memory bounds: us over what their bytes take at the copy's bandwidth, share, us, name. Of ways to do the same
    the quickest counts, and of the numbers of rows the one that is furthest."""
    copy, quickest, worst = copied(out), {}, {}
    for line in lines(out, "rates"):
        # Where arithmetic may be the bound, the bytes say nothing.
        if "us" in line and copy and line["flops"] < 100 * line["bytes"]:
            is_way = line["by"] in ("own", "library") or line["by"].endswith(" parts")
            key = (line["kernel"] if is_way else f"{line['kernel']} {line['by']}", line["rows"])
            quickest[key] = min(quickest.get(key, line), line, key=lambda other: other["us"])
    for (kernel, rows), line in quickest.items():
        share = line["TB_s"] / copy
        entry = (line["us"] * (1 - share), share, line["us"], f"{line['kernel']} by {line['by']}, {rows} rows")
        worst[kernel] = max(worst.get(kernel, entry), entry)
    return [entry for entry in worst.values() if entry[0] > 0]


def missed(out):
    found = []
    one = next((line["step_ms"] for line in lines(out, "steps") if (line.get("rows"), line.get("query")) == (1, 1)), None)
    speeds = median(offline(out, "offline"))
    ready = next((line["ready_s"] for line in lines(out, "server_graph")), None)
    values = [("a step of one row", one, STEP_MS, "ms", False), ("offline", speeds, OFFLINE_TOKENS_S, "tokens/s", True), ("ready", ready, READY_S, "s", False)]
    values += [(name, value, target, "ms", False) for name, value, target in tails(out)]
    for name, value, target, unit, least in values:
        if IS_REAL and value is not None and (value < target if least else value > target):
            found.append(f"{name}: {value:.3g} {unit}, target {'at least' if least else 'at most'} {target:g}")
    return found


TABLES = {"equality": [compared], "gpt2": [steps, rates, phases, served, baseline], "families": [families], "ablations": [ablations],
          "profiles": [profiles]}


def main():
    if len(sys.argv) != 3 or sys.argv[2] not in [*TABLES, "next", "results", "manifest"]:
        sys.exit(__doc__)
    out, what = sys.argv[1:]
    if what == "results":
        results(out)
    elif what == "manifest":
        manifest(out)
    elif what == "next":
        device(out)
        look_next(out)
    else:
        device(out)
        for table in TABLES[what]:
            table(out)
        left_out(out, what)


if __name__ == "__main__":
    main()
