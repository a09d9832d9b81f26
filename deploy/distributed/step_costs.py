#!/usr/bin/env python3
"""What a step of a running service costs, as flags of the simulation (`pinion bench scheduler --simulate`):

    deploy/distributed/step_costs.py URL

It reads the engine's steps that the service still remembers (`POST /debug/trace`: some thousands) and fits them by least squares as
step + rows × row + prompt tokens × prefill. So let the service work as it will have to, then ask. PINION_API_KEY is its key.
"""
import bisect
import json
import os
import sys
import urllib.request

MODEL_SPANS = {"pinion.prefill", "pinion.decode", "pinion.decode.graph_replay"}
# With fewer the fit says nothing.
STEPS_MIN = 100


def steps_of(trace):
    """(µs, rows, prompt tokens) of each step. A step lasts as long as the turn of the engine's loop around it, if there is one."""
    turns, found = [], []
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event["name"] == "pinion.engine.step":
            turns.append((event["ts"], event["dur"]))
    turns.sort()
    for event in trace["traceEvents"]:
        if event.get("ph") != "X" or event["name"] not in MODEL_SPANS:
            continue
        begin, took = event["ts"], event["dur"]
        at = bisect.bisect_right(turns, (begin, float("inf"))) - 1
        if at >= 0 and begin + took <= turns[at][0] + turns[at][1]:
            took = turns[at][1]
        found.append((took, event["args"]["rows"], event["args"]["prefill_tokens"]))
    return found


def solve(matrix, right):
    """By elimination with pivots. None where a column says nothing of its own."""
    rows = [[*line, value] for line, value in zip(matrix, right)]
    size = len(rows)
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(rows[row][at]))
        rows[at], rows[pivot] = rows[pivot], rows[at]
        if abs(rows[at][at]) <= 1e-9 * max(abs(value) for value in matrix[at]):
            return None
        for row in range(size):
            if row != at:
                share = rows[row][at] / rows[at][at]
                rows[row] = [value - share * other for value, other in zip(rows[row], rows[at])]
    return [rows[at][size] / rows[at][at] for at in range(size)]


def fit(steps):
    """µs of a step, of a row and of a prompt token: least squares, none below 0."""
    if len(steps) < STEPS_MIN:
        raise SystemExit(f"{len(steps)} steps are too few for a fit: send requests first")
    factors = [(1, rows, prompts) for _, rows, prompts in steps]
    # What never changes cannot be told from the step itself.
    kept = [0] + [at for at in (2, 1) if len({line[at] for line in factors}) > 1]
    while True:
        matrix = [[sum(line[a] * line[b] for line in factors) for b in kept] for a in kept]
        found = solve(matrix, [sum(line[a] * took for line, (took, *_) in zip(factors, steps)) for a in kept])
        if found and min(found) >= 0:
            costs = dict(zip(kept, found))
            return tuple(costs.get(at, 0.0) for at in range(3))
        kept.pop(found.index(min(found)) if found else -1)


def error_of(costs, steps):
    """Mean difference of a step from the fit, as a share of the mean step."""
    step, row, prefill = costs
    wrong = sum(abs(took - (step + row * rows + prefill * prompts)) for took, rows, prompts in steps)
    return wrong / sum(took for took, _, _ in steps)


def read(url):
    """The steps of a service."""
    headers = {"content-type": "application/json"}
    if key := os.environ.get("PINION_API_KEY"):
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{url.rstrip('/')}/debug/trace", b"{}", headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return steps_of(json.load(answer))


def flags_of(costs):
    return [word for name, cost in zip(("--step-us", "--row-us", "--prefill-us"), costs) for word in (name, f"{cost:.2f}")]


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise SystemExit(__doc__)
    steps = read(sys.argv[1])
    costs = fit(steps)
    print(" ".join(flags_of(costs)))
    print(f"from {len(steps)} steps; a step is {100 * error_of(costs, steps):.1f} % from that in the mean", file=sys.stderr)


if __name__ == "__main__":
    main()
