#!/usr/bin/env python3
"""The short of a run of gpu.sh: gpu_table.py OUT. Steps against the bandwidth that a copy reached, throughput and tails
against docs/PERFORMANCE.md's targets, and what each switch does. Needs nothing but Python."""
import json
import os
import sys

# One row's step in ms, output tokens per second, and ms at the 99th percentile for arrivals at 0.4 of the trace's times.
STEP_MS, OFFLINE_TOKENS_S, TTFT_P99_MS, TPOT_P99_MS = 0.35, 60_000, 6.0, 0.8


def lines(out, stage):
    try:
        with open(os.path.join(out, stage + ".jsonl")) as file:
            return [json.loads(line) for line in file if line.startswith("{")]
    except OSError:
        return []


def runs(out, stage):
    """The measurements of pinion-bench under this name."""
    folder = os.path.join(out, stage, "runs")
    if not os.path.isdir(folder):
        return []
    names = sorted(name for name in os.listdir(folder) if name.endswith(".json"))
    records = []
    for name in names:
        with open(os.path.join(folder, name)) as file:
            records.append(json.load(file))
    return records


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else None


def against(value, target, least=False):
    met = value >= target if least else value <= target
    return f"{'met' if met else 'missed'}: {'at least' if least else 'at most'} {target:g}"


def steps(out):
    copy = next((line["copy_TB_s"] for line in lines(out, "copy") if "copy_TB_s" in line), None)
    if copy:
        print(f"a copy on the device moves {copy:.2f} TB/s")
    variants = ["steps", "steps_fused", "steps_no_graphs", "steps_no_fused", "steps_plain_prefill", "steps_first_algorithm", "steps_bf16"]
    times = {name: {(line["rows"], line["query"]): line for line in lines(out, name) if "step_ms" in line} for name in variants}
    times = {name: found for name, found in times.items() if found}
    if not times:
        return
    print("step in ms, context 320: " + ", ".join(times))
    for shape in sorted({shape for found in times.values() for shape in found}, key=lambda shape: (shape[1], shape[0])):
        cells = []
        for found in times.values():
            line = found.get(shape)
            share = f" ({line['TB_s'] / copy:.0%})" if line and copy and shape[1] == 1 else ""
            cells.append(f"{line['step_ms']:.3f}{share}" if line else "-")
        print(f"  {shape[0]:>4} rows of {shape[1]:>3}: " + "  ".join(cells))
    one = times.get("steps", {}).get((1, 1))
    if one:
        print(f"  one row: {against(one['step_ms'], STEP_MS)} ms")


def served(out):
    for name in ["offline", "offline_no_overlap", "offline_no_graphs", "offline_fused"]:
        speed = median([run["figures"]["output_tokens_per_s"] for run in runs(out, name)])
        if speed:
            print(f"{name}: {speed:.0f} output tokens/s ({against(speed, OFFLINE_TOKENS_S, least=True)})")
    for name in ["online", "online_no_overlap", "online_fused"]:
        for run in runs(out, name):
            figures, scale = run["figures"], run["scale"]
            ttft, tpot = figures["ttft_ms"]["p99"], figures["tpot_ms"]["p99"]
            verdict = f" ({against(ttft, TTFT_P99_MS)}; {against(tpot, TPOT_P99_MS)})" if scale == 0.4 else ""
            print(f"{name} at scale {scale:g}: TTFT p99 {ttft:.2f} ms, TPOT p99 {tpot:.3f} ms, "
                  f"E2E p99/p50 {figures['e2e_p99_over_p50']:.2f}, {figures['completed']} of {figures['requests']} done{verdict}")


def others(out):
    for line in lines(out, "greedy_reference") + lines(out, "baseline"):
        print(json.dumps(line))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for part in (steps, served, others):
        part(sys.argv[1])


if __name__ == "__main__":
    main()
