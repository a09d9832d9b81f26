#!/usr/bin/env python3
"""The short of a run of gpu.sh: gpu_table.py OUT. Steps against the bandwidth that a copy reached, throughput and tails
against docs/PERFORMANCE.md's targets, and what each switch does. Writes OUT/results.jsonl, every figure with its stage.
Needs nothing but Python."""
import json
import os
import sys

# One row's step in ms, output tokens per second, ms at the 99th percentile for arrivals at 0.4 of the trace's times,
# seconds from start to ready.
STEP_MS, OFFLINE_TOKENS_S, TTFT_P99_MS, TPOT_P99_MS, READY_S = 0.35, 60_000, 6.0, 0.8, 3.0
STEPS = ["steps", "steps_fused", "steps_dependent", "steps_mixed_graphs", "steps_no_graphs", "steps_no_fused", "steps_plain_prefill", "steps_first_algorithm", "steps_bf16",
         "steps_sampled", "steps_nucleus", "steps_logprobs", "steps_logprobs_on_host", "steps_masked", "steps_masked_on_host",
         "steps_penalised", "steps_penalised_on_host"]
SERVERS = ["graph", "fused", "launches", "no_overlap", "no_graphs"]
OFFLINE = ["offline", "offline_fused", "offline_launches", "offline_no_overlap", "offline_no_graphs"]
# Times of an emulated device have no target.
IS_REAL = True
ONLINE = ["online", "online_trace", "online_fused", "online_launches", "online_no_overlap"]


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
        for stage in OFFLINE + ONLINE:
            for record in runs(out, stage):
                kept = {key: record[key] for key in ("scale", "round", "offered_per_s", "figures")}
                file.write(json.dumps({"stage": stage, **kept}) + "\n")


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


def steps(out):
    copy = next((line["copy_TB_s"] for line in lines(out, "copy") if "copy_TB_s" in line), None)
    if copy:
        print(f"a copy on the device moves {copy:.3f} TB/s, bytes read and written")
    times = {name: {(line["rows"], line["query"]): line for line in lines(out, name) if "step_ms" in line} for name in STEPS}
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
    copy = next((line["copy_TB_s"] for line in lines(out, "copy") if "copy_TB_s" in line), None)
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


def served(out):
    for name in SERVERS:
        for line in lines(out, "server_" + name):
            print(f"server {name}: ready after {line['ready_s']:.2f} s ({against(line['ready_s'], READY_S, 's')})")
    for name in OFFLINE:
        speeds = [run["figures"]["output_tokens_per_s"] for run in runs(out, name)]
        if speeds:
            print(f"{name}: {median(speeds):.0f} output tokens/s, {min(speeds):.0f} to {max(speeds):.0f} in {len(speeds)} rounds "
                  f"({against(median(speeds), OFFLINE_TOKENS_S, 'tokens/s', least=True)})")
    rows = [["arrivals", "scale", "arrivals/s", "done", "TTFT p50 ms", "p99", "TPOT p50 ms", "p99", "E2E p50 ms", "p99", "p99/p50"]]
    for name in ONLINE:
        for run in runs(out, name):
            figures = run["figures"]
            spreads = [figures["ttft_ms"], figures["tpot_ms"], figures["e2e_ms"]]
            cells = [f"{spread[part]:.3f}" for spread in spreads for part in ("p50", "p99")]
            rows.append([name, f"{run['scale']:g}", f"{run['offered_per_s']:.1f}", f"{figures['completed']} of {figures['requests']}",
                         *cells, f"{figures['e2e_p99_over_p50']:.2f}"])
    if len(rows) > 1:
        aligned(rows)
    for name in ("online_trace", "online"):
        for run in runs(out, name):
            if run["scale"] == 0.4:
                ttft, tpot = run["figures"]["ttft_ms"]["p99"], run["figures"]["tpot_ms"]["p99"]
                print(f"  {name} at 0.4, p99: TTFT {ttft:.2f} ms ({against(ttft, TTFT_P99_MS, 'ms')}), "
                      f"TPOT {tpot:.3f} ms ({against(tpot, TPOT_P99_MS, 'ms')})")


def compared(out):
    for line in lines(out, "greedy_read"):
        print(f"greedy {line['dtype']}: {line['equal_alone_and_together']} of {line['tokens']} tokens the same alone and in a batch")
    for line in lines(out, "greedy_reference"):
        print(f"greedy {line['dtype']} {line['prompts']}: {line['likeliest']} of {line['tokens']} tokens are the likeliest of "
              f"{line['against']}, the furthest {line['furthest_behind']:.1e} behind (at most {line['tolerance']:g})")
    worst = {}
    for line in lines(out, "parity"):
        key = (line["parity"], line["decode"])
        worst[key] = max(worst.get(key, (0.0, 0.0))[0], line["relative_error"]), line["tolerance"]
    for (dtype, decode), (error, tolerance) in worst.items():
        print(f"logits {dtype} {decode}: {error:.1e} from the CPU engine's in fp32 (at most {tolerance:g})")
    for line in lines(out, "launches"):
        print(f"launches, {line['launches']}: the tokens of plain ones; {line['differing_logits']} logits differ in "
              f"{line['repeats']} runs, by {line['relative_error']:.1e} (at most {line['tolerance']:g})")
    for line in lines(out, "baseline"):
        if "step_ms" in line:
            print(f"{line['by']}: {line['step_ms']:.2f} ms a step of {line['rows']} rows, context {line['context']}")
        else:
            print(f"{line['by']}: {line['output_tokens_per_s']:.0f} output tokens/s, {line['offline']}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for part in (results, device, steps, rates, phases, served, compared):
        part(sys.argv[1])


if __name__ == "__main__":
    main()
