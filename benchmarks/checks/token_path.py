#!/usr/bin/env python3
"""What a token costs between the engine and the socket, in a running service, from the spans that it records of itself:

    token_path.py [--streams 64] [--rounds 5] [--seconds 10] [--against "--ipc channel" ...] -- COMMAND...

COMMAND starts the server, with {port} where its port stands, for instance:

    token_path.py --against "--ipc channel" -- pinion serve DIR --port {port} --backend fake --fake-step-us 5000

In each round every variant serves this number of streams for some seconds, each in fresh processes: COMMAND as it stands, and with
the flags of each --against; a round goes forwards, the next one backwards. Now and then the rings of spans are read (`/debug/trace`),
and what was recorded while nothing read them counts: so reading disturbs nothing that is measured. Of the steps that have a row of every
stream and in which none ends, printed for each variant:

    publish   the engine's `pinion.engine.publish`: putting the step's tokens into the rings and waking who sleeps on them
    socket    for every token, from the beginning of that span to the end of the `pinion.frontend.write` that has it
    CPU       of the process for a token, by its threads' schedstat

each as the median over the rounds with the least and the most of them, and for each --against the ratio within a round. A step
whose writes are not one for each stream before the next step is published (`pinion.detokenize` held text back, or the path took
longer than a step) has no tokens under socket and is counted as left out. A figure with fewer than 1000 samples a round has no p99.
Needs Python alone.
"""
import argparse
import bisect
import json
import pathlib
import selectors
import shlex
import signal
import socket
import statistics
import sys
import threading
import time
import urllib.request

from recovery import quantile, role_pid, start

PROMPT = "a stream of the token path"
# Of a stream; the next one begins when it ends. Short enough for the smallest context.
TOKENS = 440
# Until all streams run, and after each reading of the rings.
SETTLE_S = 0.5
READ_EVERY_S = 2
SAMPLES_OF_P99 = 1000
ROLES = ("engine-0", "detokenizer-0", "frontend-0")
PUBLISH, WRITE = "pinion.engine.publish", "pinion.frontend.write"


class Streams(threading.Thread):
    """Keeps a number of streams open, and counts their events."""

    def __init__(self, port, count):
        super().__init__(daemon=True)
        self.port, self.count, self.events, self.ends = port, count, 0, False
        body = json.dumps({"prompt": PROMPT, "max_tokens": TOKENS, "stream": True, "ignore_eos": True, "temperature": 0})
        head = f"POST /v1/completions HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self.request = f"{head}\r\n\r\n{body}".encode()

    def run(self):
        waiting = selectors.EpollSelector()
        for _ in range(self.count):
            self.open(waiting)
        while not self.ends:
            for key, _ in waiting.select(0.1):
                data = key.fileobj.recv(1 << 16)
                self.events += data.count(b"\n\n")
                if not data:
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()
                    self.open(waiting)
        for key in list(waiting.get_map().values()):
            key.fileobj.close()

    def open(self, waiting):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(self.request)
        waiting.register(connection, selectors.EVENT_READ)


def cpu_ns(pid):
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def spans_between(port, begin, end):
    """Of the two names: (begin, end, arguments), in seconds of CLOCK_MONOTONIC, in order."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/debug/trace", b"{}", timeout=60) as answer:
        events = json.load(answer)["traceEvents"]
    found = {PUBLISH: [], WRITE: []}
    for event in events:
        if event["name"] in found and event["ph"] == "X":
            at = event["ts"] / 1e6
            if begin <= at and at + event["dur"] / 1e6 <= end:
                found[event["name"]].append((at, at + event["dur"] / 1e6, event["args"]))
    return sorted(found[PUBLISH], key=lambda span: span[0]), sorted(found[WRITE], key=lambda span: span[1])


def of_steps(publishes, writes, count):
    """Microseconds of each publish and of each token to its socket, and how many steps were left out of those."""
    taken, lags, left_out = [], [], 0
    ends = [end for _, end, _ in writes]
    for (begin, end, args), (following, _, _) in zip(publishes, publishes[1:]):
        if args["rows"] != count or args["ended"] != 0:
            continue
        taken.append(1e6 * (end - begin))
        own = ends[bisect.bisect_left(ends, begin) : bisect.bisect_left(ends, following)]
        if len(own) == count:
            lags.extend(1e6 * (at - begin) for at in own)
        else:
            left_out += 1
    return taken, lags, left_out


def measured(command, options):
    """One run: figures by name."""
    server, port = start(command)
    streams = Streams(port, options.streams)
    publishes, lags, left_out, cpu, tokens = [], [], 0, dict.fromkeys(ROLES, 0), 0
    try:
        streams.start()
        pids = {role: role_pid(server, role) for role in ROLES}
        time.sleep(SETTLE_S)
        until = time.monotonic() + options.seconds
        while time.monotonic() < until:
            time.sleep(SETTLE_S)
            begin, events, before = time.monotonic(), streams.events, {role: cpu_ns(pid) for role, pid in pids.items()}
            time.sleep(READ_EVERY_S - SETTLE_S)
            after, end = {role: cpu_ns(pid) for role, pid in pids.items()}, time.monotonic()
            tokens += streams.events - events
            cpu = {role: cpu[role] + after[role] - before[role] for role in ROLES}
            own = of_steps(*spans_between(port, begin, end), options.streams)
            publishes, lags, left_out = publishes + own[0], lags + own[1], left_out + own[2]
    finally:
        streams.ends = True
        streams.join()
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    if not publishes or not lags or not tokens:
        sys.exit(f"no step had all {options.streams} streams and a write for each: {len(publishes)} steps, {left_out} left out")
    figures = {"steps": len(publishes), "steps left out": left_out}
    for name, values in (("publish", publishes), ("socket", lags)):
        figures[f"{name} p50"], figures[f"{name} max"] = statistics.median(values), max(values)
        if len(values) >= SAMPLES_OF_P99:
            figures[f"{name} p99"] = quantile(values, 0.99)
    for role in ROLES:
        figures[f"CPU {role.split('-')[0]}"] = cpu[role] / 1e3 / tokens
    return figures


def spread(values):
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--against", action="append", default=[], help="flags for the same command, beside it in each round")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    rounds = {variant: [] for variant in ["", *options.against]}
    for number in range(options.rounds):
        for variant in list(rounds)[:: -1 if number % 2 else 1]:
            rounds[variant].append(measured([*options.command, *shlex.split(variant)], options))
            print(f"round {number + 1} of {options.rounds}: {variant or 'as it stands'}", file=sys.stderr)
    print(f"{options.streams} streams, {options.rounds} rounds; median (least to most), microseconds")
    for variant, own in rounds.items():
        print(f"\n{shlex.join(options.command)} {variant}".rstrip())
        names = [name for name in own[0] if all(name in figures for figures in own)]
        for name in names:
            line = f"  {name:<16} {spread([figures[name] for figures in own])}"
            if variant and "steps" not in name:
                pairs = zip(own, rounds[""])
                line += f", of the command as it stands {spread([a[name] / b[name] for a, b in pairs if name in b])}"
            print(line)


if __name__ == "__main__":
    main()
