#!/usr/bin/env python3
"""How near the simulation of several replicas comes to real ones:

    deploy/distributed/simulated.py --pinion PROGRAM --smg PROGRAM --haproxy PROGRAM [--rounds N] [--out FILE]

Run it by simulated.sh, which installs the routers. The same arrivals are sent to one replica, and at twice the rate to two behind
SMG (round_robin, cache_aware) and HAProxy (leastconn). What a step costs is fitted from the first of these runs alone; with that the
simulation says what the clients of all of them would have seen. Printed is how far it is from what they saw.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile

from check import heading
from replicas import MODEL, Replica
from routers import haproxy, smg
from simulation import simulate
from step_costs import error_of, fit, flags_of, read

# Of each replica. The cache is smaller than what all prefixes take, so what a router does shows in it.
LIMITS = ("--max-num-seqs", "16", "--max-num-batched-tokens", "512", "--kv-cache-tokens", "12288")
FAKE = ("--fake-step-us", "10000", "--fake-prefill-us-per-token", "100")
CONTEXT, BLOCK = 512, 16
# Blocks of a prefix; tokens of a prompt after it, and of an answer, at least and at most.
PREFIXES, PREFIX_BLOCKS, OWN, OUTPUT = 64, 12, (16, 96), (16, 96)
# Name, replicas, the simulation's routing, the real router.
CASES = [("one replica", 1, "round-robin", None),
         ("two, SMG round_robin", 2, "round-robin", lambda at, replicas: smg(at.smg, replicas, "--policy", "round_robin")),
         ("two, HAProxy leastconn", 2, "least-requests", lambda at, replicas: haproxy(at.haproxy, replicas)),
         ("two, SMG cache_aware", 2, "cache-aware", lambda at, replicas: smg(at.smg, replicas, "--policy", "cache_aware"))]
FIGURES = ["TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "TPOT p99 ms", "KV hit %"]


def write_trace(path, rate, requests, seed):
    """Poisson arrivals, one of the prefixes each, in the form of Qwen's traces: seconds, blocks of 16 tokens."""
    draw, at, own = random.Random(seed), 0.0, PREFIXES * PREFIX_BLOCKS
    with open(path, "w") as file:
        for _ in range(requests):
            at += draw.expovariate(rate)
            prefix, tail = draw.randrange(PREFIXES), draw.randint(*OWN)
            blocks = [prefix * PREFIX_BLOCKS + index for index in range(PREFIX_BLOCKS)]
            count = -(-tail // BLOCK)
            blocks += range(own, own + count)
            own += count
            line = {"chat_id": 0, "timestamp": at, "input_length": PREFIX_BLOCKS * BLOCK + tail, "output_length": draw.randint(*OUTPUT),
                    "hash_ids": blocks}
            file.write(json.dumps(line) + "\n")


def figures_of(record):
    times = [record[kind][at] for kind in ("ttft_ms", "tpot_ms") for at in ("p50", "p99")]
    return [*times, 100 * record["cached_tokens"] / record["input_tokens"]]


class Rig:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, pathlib.Path(folder)
        self.trace = self.folder / "trace.jsonl"
        # Flags of both tools.
        self.traffic = ["--trace", self.trace, "--trace-format", "bailian", "--requests", arguments.requests, "--context", CONTEXT]

    def measure(self, case):
        """What clients saw, and the steps of the replicas."""
        name, count, _, route = case
        fake = FAKE if self.arguments.backend == "fake" else ("--engine-threads", "1")
        replicas = [Replica(self.arguments.pinion, *LIMITS, *fake, backend=self.arguments.backend) for _ in range(count)]
        router = route(self.arguments, replicas) if route else None
        port = router.port if router else replicas[0].port
        out = tempfile.mkdtemp(dir=self.folder)
        command = [self.arguments.pinion, "bench", "online", "--url", f"http://127.0.0.1:{port}", "--model", "demo-model",
                   "--tokenizer", MODEL, "--prompt-form", "text", "--scales", 1 / count, "--out", out, *self.traffic]
        run = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if run.returncode != 0:
            raise SystemExit(f"{name}: {run.stderr.strip()}")
        steps = [step for replica in replicas for step in read(f"http://127.0.0.1:{replica.port}")]
        if router:
            router.end()
        for replica in replicas:
            replica.stop()
        figures = json.loads((pathlib.Path(out) / "online.json").read_text())["runs"][0]["figures"]
        if figures["completed"] != self.arguments.requests:
            raise SystemExit(f"{name}: {figures['requests'] - figures['completed']} requests failed")
        return figures_of(figures), steps

    def simulate(self, case, costs):
        _, count, routing, _ = case
        lines = simulate(self.arguments.pinion, *self.traffic, "--scale", 1 / count, "--replicas", count, "--routing", routing,
                         *LIMITS, *flags_of(costs))
        return figures_of(lines[0]["figures"])

    def round(self, number):
        """The figures of all cases, measured and simulated."""
        write_trace(self.trace, self.arguments.rate, self.arguments.requests, number)
        costs, found = None, []
        for case in CASES:
            measured, steps = self.measure(case)
            if costs is None:
                costs = fit(steps)
                print(f"round {number}: {' '.join(flags_of(costs))}, from {len(steps)} steps, {100 * error_of(costs, steps):.1f} % off "
                      f"in the mean; load {os.getloadavg()[0]:.1f}", flush=True)
            found.append((measured, self.simulate(case, costs)))
        return found


def spread(values, form):
    middle, low, high = statistics.median(values), min(values), max(values)
    return form(middle) if len(values) == 1 else f"{form(middle)} ({form(low)} to {form(high)})"


def table(rounds):
    """Medians of the rounds, with least and greatest. Errors are of a round; those of the hit share are in points."""
    lines = ["| | figure | measured | simulated | error |", "|---|---|---|---|---|"]
    for at, (name, *_) in enumerate(CASES):
        for index, figure in enumerate(FIGURES):
            pairs = [(one[at][0][index], one[at][1][index]) for one in rounds]
            if figure.endswith("%"):
                errors, form = [said - saw for saw, said in pairs], lambda value: f"{value:+.1f}"
            else:
                errors, form = [100 * (said / saw - 1) for saw, said in pairs], lambda value: f"{value:+.1f} %"
            cells = [spread([pair[side] for pair in pairs], lambda value: f"{value:.1f}") for side in (0, 1)]
            lines.append(f"| {'' if index else name} | {figure} | {cells[0]} | {cells[1]} | {spread(errors, form)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("pinion", "smg", "haproxy", "version"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    # A p99 takes 1000.
    parser.add_argument("--requests", type=int, default=1200)
    parser.add_argument("--rate", type=float, default=12.0, help="arrivals per second and replica")
    parser.add_argument("--backend", choices=["fake", "native"], default="fake")
    arguments = parser.parse_args()
    heading(arguments.version)
    print(f"{arguments.backend} backend, {os.cpu_count()} CPUs; {arguments.requests} requests, {arguments.rate:g} per second and replica",
          flush=True)
    with tempfile.TemporaryDirectory() as folder:
        rig = Rig(arguments, folder)
        rounds = [rig.round(number) for number in range(1, arguments.rounds + 1)]
    print(table(rounds))


if __name__ == "__main__":
    main()
