#!/usr/bin/env python3
"""A neighbour that takes something from a server, and says how much it took.

    hog.py cpu [--cpu N]                     spins
    hog.py cache [--cpu N]                   writes all over a region as large as the last-level cache
    hog.py bandwidth [--cpu N]               copies between regions that are far larger than the cache
    hog.py files --file FILE [--mib-s 400]   reads a file again and again, so that the page cache fills with it
    hog.py tenant --port N [--open 64]       keeps this number of requests of one `user` open at a server

It prints `ready` when all that it needs is there, begins at a line on standard input, and ends when standard input
ends, so it cannot outlive the program that started it. Then it prints one JSON object: its kind, the seconds from
begin to end, the CPU seconds that it used in them, what it did, with the unit, and how often it failed.
"""

import argparse
import http.client
import json
import os
import random
import signal
import sys
import threading
import time

MIB = 1 << 20
# Copied at once by `cache`: small enough to stay in the nearest cache.
CACHE_PIECE = 64 << 10
# Copied at once by `bandwidth`.
BANDWIDTH_PIECE = 4 * MIB
# Regions of `bandwidth` together, in sizes of the cache.
BEYOND_CACHE = 8
# Where the kernel does not tell the size of the cache.
CACHE_BYTES_DEFAULT = 32 * MIB
# A request of `tenant`.
TENANT_PROMPT, TENANT_OUTPUT = 256, 200


def cache_bytes():
    """The largest cache of the first CPU."""
    sizes, folder = [], "/sys/devices/system/cpu/cpu0/cache"
    for entry in os.listdir(folder) if os.path.isdir(folder) else []:
        try:
            with open(f"{folder}/{entry}/size") as file:
                text = file.read().strip()
        except OSError:
            continue
        unit = {"K": 1 << 10, "M": MIB}.get(text[-1:])
        if unit and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * unit)
    return max(sizes, default=CACHE_BYTES_DEFAULT)


class Hog:
    """A kind of work: `prepare` before the begin, then `turn` again and again.

    `done` counts in `unit`; `failed` counts what did not work.
    """

    unit = "turns"

    def __init__(self, args):
        self.args, self.done, self.failed = args, 0, 0

    def prepare(self):
        pass

    def turn(self):
        raise NotImplementedError

    def run(self, ended):
        while not ended.is_set():
            self.turn()


class Cpu(Hog):
    def turn(self):
        for _ in range(20_000):
            pass
        self.done += 1


class Cache(Hog):
    unit = "bytes"

    def prepare(self):
        size = cache_bytes()
        self.region, self.piece = memoryview(bytearray(size)), bytes(CACHE_PIECE)
        self.places = list(range(0, size - CACHE_PIECE + 1, CACHE_PIECE))
        random.Random(1).shuffle(self.places)

    def turn(self):
        for place in self.places:
            self.region[place : place + CACHE_PIECE] = self.piece
        self.done += len(self.places) * CACHE_PIECE


class Bandwidth(Hog):
    unit = "bytes"

    def prepare(self):
        # A bytearray's zeroes are pages that nothing has touched: written once, they are in memory.
        size = cache_bytes() * BEYOND_CACHE // 2
        self.source, self.target = memoryview(bytearray(b"\1") * size), memoryview(bytearray(b"\2") * size)

    def turn(self):
        for place in range(0, len(self.source), BANDWIDTH_PIECE):
            piece = slice(place, place + BANDWIDTH_PIECE)
            self.target[piece] = self.source[piece]
        self.done += 2 * len(self.source)


class Files(Hog):
    unit = "bytes"

    def prepare(self):
        self.file, self.buffer = open(self.args.file, "rb", buffering=0), bytearray(MIB)
        if not self.file.read(1):
            raise ValueError(f"{self.args.file} is empty")
        self.next_s = None

    def turn(self):
        """One MiB, no sooner than the rate allows: reading must take memory, and little of the CPUs."""
        now = time.monotonic()
        self.next_s = max(self.next_s or now, now - 0.1) + 1 / self.args.mib_s
        if self.next_s > now:
            time.sleep(self.next_s - now)
        count = self.file.readinto(self.buffer)
        if not count:
            self.file.seek(0)
        self.done += count


class Tenant(Hog):
    """A thread for each open request; an answer comes in one piece, so the client costs little."""

    unit = "requests"

    def run(self, ended):
        for number in range(self.args.open):
            threading.Thread(target=self.ask_on, args=(number,), daemon=True).start()
        ended.wait()

    def ask_on(self, number):
        draw = random.Random(number)
        while True:
            prompt = [draw.randrange(3, 200) for _ in range(TENANT_PROMPT)]
            body = {"prompt": prompt, "max_tokens": TENANT_OUTPUT, "ignore_eos": True, "user": "greedy"}
            connection = http.client.HTTPConnection("127.0.0.1", self.args.port, timeout=60)
            try:
                connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
                answer = connection.getresponse()
                text, status = answer.read(), answer.status
            except (OSError, http.client.HTTPException) as error:
                text, status = str(error).encode(), 0
            finally:
                connection.close()
            if status == 200:
                self.done += 1
                continue
            if not self.failed:
                print(f"hog tenant: {status} {text[:200]!r}", file=sys.stderr, flush=True)
            self.failed += 1
            time.sleep(0.1)


KINDS = {"cpu": Cpu, "cache": Cache, "bandwidth": Bandwidth, "files": Files, "tenant": Tenant}


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--cpu", type=int, help="the only CPU on which it runs")
    parser.add_argument("--file", help="files: what is read")
    parser.add_argument("--mib-s", type=float, default=400, help="files: how much of it in a second")
    parser.add_argument("--port", type=int, help="tenant: of the server, on this machine")
    parser.add_argument("--open", type=int, default=64, help="tenant: open requests")
    args = parser.parse_args(words)
    for kind, option in [("files", "file"), ("tenant", "port")]:
        if args.kind == kind and getattr(args, option) is None:
            parser.error(f"{kind} needs --{option}")
    return args


def main():
    args = parse(sys.argv[1:])
    # A signal to all of the terminal's programs leaves the end to the one that started this.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if args.cpu is not None:
        os.sched_setaffinity(0, {args.cpu})
    hog = KINDS[args.kind](args)
    hog.prepare()
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    ended = threading.Event()

    def wait_for_the_end():
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    began_s, cpu_s = time.monotonic(), time.process_time()
    hog.run(ended)
    told = {"hog": args.kind, "seconds": time.monotonic() - began_s, "cpu_seconds": time.process_time() - cpu_s}
    try:
        print(json.dumps(told | {"done": hog.done, "unit": hog.unit, "failed": hog.failed}), flush=True)
    except BrokenPipeError:
        pass  # the one that started this was killed
    # Threads of `tenant` still wait for answers.
    os._exit(0)


if __name__ == "__main__":
    main()
