#!/usr/bin/env python3
"""Whether a build computes a prompt more slowly than another, to a few percent, on a machine that others use too:

    benchmarks/checks/prompt_turns.py MODEL --other ../before/target/release/pinion [--turns 40] [--tokens 256]

Three services stand side by side: this build, this build with a switch that cannot act (the noise), and the other.
They take turns: in each turn every service gets the same random token ids as one prompt, alone, and answers with one
token. So the three times of a turn lie within seconds, in which the machine changes little, and what is compared are
ratios within a turn. Processes are started once, so what differs between two starts of one program (where its memory
lies) is not averaged out: `pinion bench compare benchmarks/scenarios/builds.toml` starts new ones in each round.

Prints for both the median ratio over this build's time with the interval of 95 % that the order of the ratios gives.
Needs Python alone.
"""
import argparse
import json
import math
import pathlib
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

READY_S = 180


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Service:
    def __init__(self, binary, model, threads, flags):
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [binary, "serve", "--model", model, "--port", self.url.rsplit(":", 1)[1], "--no-prefix-cache",
                   "--engine-threads", str(threads), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self):
        end = time.monotonic() + READY_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                return urllib.request.urlopen(f"{self.url}/health", timeout=1).close()
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        sys.exit(f"{self.process.args[0]} is not ready: exit status {self.process.poll()}")

    def seconds(self, ids):
        """From the request until its whole answer of one token is here."""
        body = json.dumps({"prompt": ids, "max_tokens": 1, "temperature": 0, "ignore_eos": True}).encode()
        request = urllib.request.Request(f"{self.url}/v1/completions", body, {"content-type": "application/json"})
        began = time.perf_counter()
        with urllib.request.urlopen(request, timeout=600) as answer:
            usage = json.load(answer)["usage"]
        taken = time.perf_counter() - began
        if usage["prompt_tokens"] != len(ids):
            sys.exit(f"{self.process.args[0]} took {usage['prompt_tokens']} tokens of a prompt of {len(ids)}")
        return taken

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def interval(ratios):
    """The median and the ranks around it that hold the true median with 95 % at least (binomial)."""
    ordered, n = sorted(ratios), len(ratios)
    tail, low = 0.0, 0
    while (tail := tail + math.comb(n, low) / 2**n) <= 0.025:
        low += 1
    # Below rank `low` lies at most 2.5 %: the interval goes from that rank to its mirror.
    low = max(low - 1, 0)
    return statistics.median(ordered), ordered[low], ordered[n - 1 - low]


def measure(services, vocabulary, turns, tokens):
    """The times of each turn, by service. The first turn warms up and is left out."""
    chance = random.Random(1)
    times = {name: [] for name in services}
    for turn in range(turns + 1):
        ids = [chance.randrange(vocabulary) for _ in range(tokens)]
        order = list(services)
        chance.shuffle(order)
        for name in order:
            taken = services[name].seconds(ids)
            if turn > 0:
                times[name].append(taken)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--bin", default="target/release/pinion", help="this build (default: %(default)s)")
    parser.add_argument("--other", required=True, help="the program of the other build")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=256, help="of a prompt (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of each engine (default: %(default)s)")
    options = parser.parse_args()
    if options.turns < 6:
        parser.error("--turns: fewer than 6 give no interval of 95 %")
    config = json.loads((pathlib.Path(options.model) / "config.json").read_text())
    services = {}
    try:
        programs = {"this": (options.bin, []), "inert": (options.bin, ["--no-ui"]), "other": (options.other, [])}
        for name, (binary, flags) in programs.items():
            services[name] = Service(binary, options.model, options.threads, flags)
            services[name].wait()
        times = measure(services, config["vocab_size"], options.turns, options.tokens)
    finally:
        for service in services.values():
            service.stop()
    took = statistics.median(times["this"]) * 1e3
    print(f"this: {took:.0f} ms for a prompt of {options.tokens} (median of {options.turns})")
    for name in ("inert", "other"):
        median, low, high = interval([one / base for one, base in zip(times[name], times["this"])])
        print(f"{name}: {median:.3f} of this ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
