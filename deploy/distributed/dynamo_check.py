#!/usr/bin/env python3
"""Measures Pinion behind NVIDIA Dynamo: two hosts on one machine, each a replica and its worker (dynamo_worker.py).

    deploy/distributed/dynamo_check.py --pinion PROGRAM [--streams N] [--only MEASURE ...]

Run it by dynamo.sh, which installs Dynamo. Prompts, clients and what is printed are those of check.py. A stream that is lost, or a text
that differs from that of an undisturbed run, ends it with 1.
"""
import argparse
import atexit
import concurrent.futures
import http.client
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="dynamo-"))
# Registered first, it runs last, when all processes have ended.
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
# Frontend and workers inherit them. They find each other by files: neither etcd nor NATS.
os.environ.update(DYN_DISCOVERY_BACKEND="file", DYN_REQUEST_PLANE="tcp", DYN_TCP_RPC_HOST="127.0.0.1", DYN_EVENT_PLANE="zmq",
                  DYN_EVENT_PLANE_HOST="127.0.0.1", DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS="2", DYN_LOG="error")

from check import PERFECT, PREFIXES, REPEATS, STEP_US, WORDS, Recipe, cached_share, heading, roll, say
from replicas import HERE, MODEL, STARTED, Replica, ask, family, free_port, get, kill_all, spawn
from routers import Router

# Streams while a host is killed, tokens of each, and how many chunks each of them has by then.
STREAMS, TOKENS, FLOWING = 64, 400, 40
# How long workers, and text of all streams, are waited for.
PATIENCE_S = 120
FRONTEND = [sys.executable, "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--migration-limit", "3"]
# With 1, Dynamo's own, a prompt leaves the replica that holds it for one with a request less.
BY_CACHE = ("--router-mode", "kv", "--router-prefill-load-scale", "8")


def workers():
    """As many as have made themselves known."""
    return len(list(pathlib.Path(os.environ["DYN_FILE_KV"]).glob("v1/instances/dynamo%2Fbackend%2Fgenerate%2F*")))


class Host(Replica):
    """A replica and its worker, which come and go together."""

    def __init__(self, program, *flags, **options):
        self.events = f"tcp://127.0.0.1:{free_port()}"
        super().__init__(program, "--kv-events", self.events, *flags, **options)

    def start(self):
        super().start()
        before = workers()
        self.worker = spawn([sys.executable, str(HERE / "dynamo_worker.py"), "--url", f"http://127.0.0.1:{self.port}",
                             "--kv-events", self.events, "--model", str(MODEL)], stdout=subprocess.DEVNULL)
        end = time.monotonic() + PATIENCE_S
        while workers() == before:
            if time.monotonic() > end or self.worker.poll() is not None:
                raise SystemExit("a worker did not start")
            time.sleep(0.05)

    def stop(self):
        """The worker leaves first, when its streams have ended."""
        self.worker.terminate()
        code = self.worker.wait(timeout=120)
        STARTED.discard(self.worker)
        if code != 0:
            raise SystemExit(f"a worker ended with {code}")
        super().stop()

    def kill(self):
        both = (self.process, self.worker)
        killed = kill_all([pid for process in both for pid in family(process.pid)])
        for process in both:
            process.wait(timeout=60)
            STARTED.discard(process)
        return killed

    def running(self):
        return int(re.search(r"^vllm:num_requests_running(?:\{.*\})? (\d+)", get(self.port, "/metrics/load")[1], re.M).group(1))


class Dynamo(Recipe):
    def replicas(self, *flags, drain=(), steps=(STEP_US, STEP_US)):
        return [Host(self.pinion, "--fake-step-us", step, *drain, *flags) for step in steps]

    def router(self, replicas, *flags):
        return Router([*FRONTEND, *(flags or BY_CACHE)], arguments=["--http-port", "PORT"])


def share(recipe):
    """Of as many tokens as are asked for, how many need not be computed."""
    def measure(*flags):
        hosts = recipe.replicas()
        router = recipe.router(hosts, *flags)
        found = cached_share(router.port)
        recipe.end(router, hosts)
        return found

    found = measure()
    say(f"tokens from the cache: {found:.3f} ({PREFIXES} prefixes × {REPEATS} requests; with every repeated prompt whole {PERFECT:.3f})")
    for mode in ("kv", "round-robin"):
        say(f"tokens from the cache with --router-mode {mode} alone: {measure('--router-mode', mode):.3f}")
    if found < 0.8:
        raise SystemExit(f"dynamo: {found:.3f} of the tokens came from the cache")


class Stream:
    """A greedy answer as it comes. Whole with all its tokens and [DONE]."""

    def __init__(self):
        self.text, self.times, self.whole, self.wrong = "", [], False, None

    def read(self, port, prompt):
        body = json.dumps({"model": "demo-model", "prompt": prompt, "max_tokens": TOKENS, "min_tokens": TOKENS, "temperature": 0,
                           "stream": True, "stream_options": {"include_usage": True}})
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise OSError(f"{response.status} {response.read(200).decode()}")
            self.lines(response)
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            self.wrong = repr(error)
        finally:
            connection.close()
        return self

    def lines(self, response):
        count = None
        for line in response:
            if line == b"data: [DONE]\n":
                self.whole = count == TOKENS
            elif line.startswith(b"data: "):
                event = json.loads(line[len(b"data: "):])
                count = (event.get("usage") or {}).get("completion_tokens", count)
                if text := "".join(choice["text"] for choice in event["choices"]):
                    self.text += text
                    self.times.append(time.monotonic())
        if not self.whole:
            self.wrong = f"{count} of {TOKENS} tokens, {self.text[-100:]!r}"


def prompts():
    """Each with a beginning of its own, so that all hosts get some."""
    return [f"{number} {WORDS[number % len(WORDS)]} {' '.join(WORDS[:number % 5])}" for number in range(STREAMS)]


def read_all(port, pool):
    streams = [Stream() for _ in range(STREAMS)]
    return streams, [pool.submit(stream.read, port, prompt) for stream, prompt in zip(streams, prompts())]


def gone(recipe):
    """A host is killed while it streams, with the real model: the other one goes on with each text where it was."""
    # In bf16 a text that is computed again may go another way where two tokens are nearly as likely.
    hosts = [Host(recipe.pinion, "--dtype", "fp32", backend="native") for _ in range(2)]
    router = recipe.router(hosts)
    with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
        calm, reads = read_all(router.port, pool)
        concurrent.futures.wait(reads)
        if wrong := [stream.wrong for stream in calm if stream.wrong]:
            raise SystemExit(f"dynamo: {len(wrong)} streams failed before a host was killed: {wrong[0]}")
        streams, reads = read_all(router.port, pool)
        end = time.monotonic() + PATIENCE_S
        while min(len(stream.times) for stream in streams) < FLOWING:
            if time.monotonic() > end or any(read.done() for read in reads):
                raise SystemExit("dynamo: the streams do not all flow at one time")
            time.sleep(0.01)
        held, ended = hosts[0].running(), sum(read.done() for read in reads)
        killed = hosts[0].kill()
        after = ask(router.port, "after", 8)
        concurrent.futures.wait(reads)
    moved = sum(map(int, re.findall(r"^\w+_model_migration_total\{.*\} (\d+)", get(router.port, "/metrics")[1], re.M)))
    recipe.end(router, hosts[1:])
    if after.wrong:
        raise SystemExit(f"dynamo: no answer after a host was killed: {after.wrong}")
    whole = sum(not stream.wrong for stream in streams)
    equal = sum(stream.text == other.text for stream, other in zip(streams, calm))
    silence = max((new - old for stream in streams for old, new in zip(stream.times, stream.times[1:]) if new >= killed), default=0)
    say(f"host killed: {held} of {STREAMS} open streams of {TOKENS} tokens on it, {ended} ended before; {moved} moved, {whole} whole, "
        f"{equal} with the text of an undisturbed run; first answer to a request after it {1000 * (after.first - killed):.0f} ms, "
        f"longest silence of a stream {1000 * silence:.0f} ms")
    for text in sorted({stream.wrong for stream in streams if stream.wrong})[:3]:
        say(f"  {text.strip()[:160]}")
    if not moved or min(whole, equal) < STREAMS:
        raise SystemExit(f"dynamo: {moved} streams moved, {STREAMS - whole} were lost, {STREAMS - equal} texts differ")


def rolling(recipe):
    """Workers leave before their replicas do, which need no --drain-delay then."""
    if wrong := roll(recipe, "0s", recipe.streams):
        raise SystemExit(f"dynamo: {len(wrong)} streams lost")


MEASURES = {"rolling": rolling, "gone": gone, "share": share}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pinion", required=True)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    arguments = parser.parse_args()
    heading(f"dynamo {importlib.metadata.version('ai-dynamo')}")
    recipe = Dynamo("dynamo", None, arguments.pinion, arguments.streams)
    for measure in arguments.only:
        # What was killed in one is not known in the next.
        folder = FOLDER / measure
        folder.mkdir()
        os.environ["DYN_FILE_KV"] = str(folder)
        MEASURES[measure](recipe)


if __name__ == "__main__":
    main()
