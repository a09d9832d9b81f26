#!/usr/bin/env python3
"""How long a costly request takes to be refused, and what a stream of them does to the pace of others.

    attack.py [URL] [--phases 8] [--seconds 6] [--streams 32] [--pause 0.05]

32 streams run all the time. Quiet phases and phases with an attacker take turns; each gives the 99th percentile of the
time between two chunks of a stream. Printed: each bomb with its status, the field it names, and its slowest refusal in ms;
then the ratio of the two percentiles for each pair of phases, and their median. The attacker sends one bomb after the
other, from a process of its own, with a pause between two.

Run it on a machine with nothing else to do, against for instance: pinion serve DIR --backend fake --fake-step-us 10000
"""

import argparse
import http.client
import json
import multiprocessing
import selectors
import socket
import statistics
import time
import urllib.parse

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def bombs():
    """(name, path, body)"""
    def plain(**fields):
        return json.dumps({"prompt": "x", "max_tokens": 1, **fields})

    def chat(**fields):
        return json.dumps({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, **fields})

    part = {"type": "text", "text": "0123456789"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    nested = "(" * 200 + "a*" * 200 + ")*" * 200
    schema = {"type": "string"}
    for _ in range(12):
        schema = {"type": "object", "properties": {f"p{n}": schema for n in range(2)}}
    return [
        ("100 000 levels", COMPLETIONS, '{"prompt":"x","x":' + "[" * 100_000 + "]" * 100_000 + "}"),
        ("10 000 stop strings", COMPLETIONS, plain(stop=[f"stop {n}" for n in range(10_000)])),
        ("n = 10^6", COMPLETIONS, plain(n=10**6)),
        ("best_of = 10^6", COMPLETIONS, plain(best_of=10**6)),
        ("logprobs = 10^9", COMPLETIONS, plain(logprobs=10**9)),
        ("prompt_logprobs = 10^9", COMPLETIONS, plain(prompt_logprobs=10**9)),
        ("top_logprobs = 10^9", CHAT, chat(logprobs=True, top_logprobs=10**9)),
        ("10^6 biases", COMPLETIONS, plain(logit_bias={str(n): 1 for n in range(10**6)})),
        ("40 000 biases", COMPLETIONS, plain(logit_bias={str(n): 1 for n in range(40_000)})),
        ("top_k = 2^40", COMPLETIONS, plain(top_k=2**40)),
        ("max_tokens = 2^40", COMPLETIONS, plain(max_tokens=2**40)),
        ("max_tokens = 2^31 - 1", COMPLETIONS, plain(max_tokens=2**31 - 1)),
        ("150 000 ids", COMPLETIONS, plain(prompt=[1] * 150_000)),
        ("500 kB of text", COMPLETIONS, plain(prompt="x" * 500_000)),
        ("10 MB of parts", CHAT, chat(messages=[{"role": "user", "content": [part] * 240_000}])),
        ("10 000 parts", CHAT, chat(messages=[{"role": "user", "content": [part] * 10_000}])),
        ("10 000 tools", CHAT, chat(tools=[tool] * 6_000)),
        ("a regex bomb", COMPLETIONS, plain(guided_regex=nested)),
        ("a schema bomb", COMPLETIONS, plain(guided_json=schema)),
    ]


def attack(url, seconds, pause, out):
    """Sends bombs one after another; puts {name: (status, param, [ms])} into `out`."""
    told, all_bombs = {}, bombs()
    end, at = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        name, path, body = all_bombs[at % len(all_bombs)]
        at += 1
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=30)
        begin = time.monotonic()
        try:
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            status, answer = response.status, response.read()
        except (BrokenPipeError, ConnectionResetError):
            status, answer = 0, b"{}"
        ms = (time.monotonic() - begin) * 1e3
        connection.close()
        param = (json.loads(answer).get("error") or {}).get("param")
        told.setdefault(name, (status, param, []))[2].append(ms)
        time.sleep(pause)
    out.put(told)


class Streams:
    """Streams that begin anew when they end, read by one thread."""

    def __init__(self, url, count):
        self.url, self.selector = url, selectors.DefaultSelector()
        body = json.dumps({"prompt": "pace", "max_tokens": 200, "stream": True, "ignore_eos": True})
        self.request = (
            f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}"
        ).encode()
        for _ in range(count):
            self.begin()

    def begin(self):
        stream = socket.create_connection((self.url.hostname, self.url.port))
        stream.sendall(self.request)
        stream.setblocking(False)
        self.selector.register(stream, selectors.EVENT_READ, [0.0, 0])

    def gaps(self, seconds):
        """Times between the chunks that come in this time."""
        gaps, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                data, now = key.fileobj.recv(1 << 16), time.monotonic()
                if not data:
                    self.selector.unregister(key.fileobj)
                    key.fileobj.close()
                    self.begin()
                elif b'"text"' in data:
                    if key.data[0]:
                        gaps.append(now - key.data[0])
                    key.data[0] = now
        return gaps


def p99(gaps):
    return statistics.quantiles(gaps, n=100)[98] * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000")
    parser.add_argument("--phases", type=int, default=8, help="quiet and attacked ones together")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--pause", type=float, default=0.05)
    options = parser.parse_args()
    url = urllib.parse.urlsplit(options.url)
    streams, told, pairs = Streams(url, options.streams), {}, []
    streams.gaps(2)
    for _ in range(options.phases // 2):
        quiet = p99(streams.gaps(options.seconds))
        out = multiprocessing.Queue()
        attacker = multiprocessing.Process(target=attack, args=(url, options.seconds, options.pause, out))
        attacker.start()
        attacked = p99(streams.gaps(options.seconds))
        for name, (status, param, times) in out.get(timeout=60).items():
            told.setdefault(name, (status, param, []))[2].extend(times)
        attacker.join()
        pairs.append((quiet, attacked))
        streams.gaps(1)
    print(f"{'bomb':24} status  slowest ms  median ms  param")
    for name, (status, param, times) in told.items():
        print(f"{name:24} {status:6}  {max(times):10.1f}  {statistics.median(times):9.1f}  {param}")
    ratios = [attacked / quiet for quiet, attacked in pairs]
    for quiet, attacked in pairs:
        print(f"p99 of the gaps: quiet {quiet:7.2f} ms, attacked {attacked:7.2f} ms, ratio {attacked / quiet:.2f}")
    print(f"median ratio {statistics.median(ratios):.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
