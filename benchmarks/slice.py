#!/usr/bin/env python3
"""First honest table: TTFT and output tokens/s of a running server at several numbers of streams.

Closed loop on loopback: S clients each send their next request as soon as the last one ended. Every
request is a streaming /v1/completions call with `--input` token ids (fresh random ids each time) and
exactly `--output` tokens (ignore_eos). TTFT runs from the first byte sent to the first chunk that
carries text; tokens come from the usage chunk. Only the standard library is needed, and any
OpenAI-compatible server that takes id prompts can be measured.

    benchmarks/slice.py --url http://127.0.0.1:8000 --streams 1 8 32 --input 256 --output 64
"""
import argparse
import http.client
import json
import random
import statistics
import sys
import threading
import time
import urllib.parse


def one_request(host, port, body):
    """Returns (ttft_s, e2e_s, output_tokens, gaps_s)."""
    connection = http.client.HTTPConnection(host, port, timeout=600)
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {response.read()[:300]!r}")
    first = last = None
    tokens, gaps = 0, []
    for line in response:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        now = time.perf_counter()
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise RuntimeError(chunk["error"])
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
        if chunk["choices"] and chunk["choices"][0]["finish_reason"] is None:
            if first is None:
                first = now
            else:
                gaps.append(now - last)
            last = now
    connection.close()
    if first is None:
        raise RuntimeError("no token came")
    return first - start, time.perf_counter() - start, tokens, gaps


def round_of(args, host, port, streams, seed):
    """One closed-loop round; every stream sends `--requests` requests."""
    results, errors, lock = [], [], threading.Lock()

    def client(index):
        rng = random.Random(seed * 10_000 + index)
        for _ in range(args.requests):
            body = {
                "model": args.model,
                "prompt": [rng.randrange(1, args.vocab) for _ in range(args.input)],
                "max_tokens": args.output,
                "temperature": 0,
                "stream": True,
                "ignore_eos": True,
                "stream_options": {"include_usage": True},
            }
            try:
                result = one_request(host, port, body)
                with lock:
                    results.append(result)
            except Exception as error:  # every failure is counted and shown
                with lock:
                    errors.append(repr(error))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(streams)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - start
    return results, errors, wall


def percentile(values, p):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(p / 100 * len(ordered)))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", help="default: what /v1/models names")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=3, help="requests per stream and round")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, interleaved over the stream counts")
    parser.add_argument("--input", type=int, default=256)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=50257)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="also write the raw figures to this file")
    args = parser.parse_args()
    url = urllib.parse.urlparse(args.url)
    host, port = url.hostname, url.port or 80
    if not args.model:
        connection = http.client.HTTPConnection(host, port, timeout=30)
        connection.request("GET", "/v1/models")
        args.model = json.loads(connection.getresponse().read())["data"][0]["id"]
    round_of(args, host, port, 1, 0)  # warm-up, not counted
    rows = {streams: [] for streams in args.streams}
    for number in range(args.rounds):
        for streams in args.streams:
            rows[streams].append(round_of(args, host, port, streams, args.seed + number))
    print(f"model {args.model}, {args.input} in, {args.output} out, {args.rounds} rounds x {args.requests} requests a stream")
    print("| streams | TTFT p50 ms | TTFT p99 ms | gap p50 ms | gap p99 ms | E2E p50 s | output tok/s (median; min-max of rounds) | errors |")
    print("|---|---|---|---|---|---|---|---|")
    record = []
    for streams, rounds in rows.items():
        flat = [result for results, _, _ in rounds for result in results]
        errors = [error for _, errors, _ in rounds for error in errors]
        if not flat:
            print(f"| {streams} | every request failed: {errors[:1]} |", file=sys.stderr)
            return 1
        ttft = [result[0] * 1e3 for result in flat]
        e2e = [result[1] for result in flat]
        gaps = [gap * 1e3 for result in flat for gap in result[3]] or [0.0]
        rates = [sum(result[2] for result in results) / wall for results, _, wall in rounds]
        print(
            f"| {streams} | {percentile(ttft, 50):.1f} | {percentile(ttft, 99):.1f} | {percentile(gaps, 50):.2f} | "
            f"{percentile(gaps, 99):.2f} | {percentile(e2e, 50):.2f} | "
            f"{statistics.median(rates):.0f}; {min(rates):.0f}-{max(rates):.0f} | {len(errors)} |"
        )
        record.append({"streams": streams, "ttft_ms": ttft, "e2e_s": e2e, "tokens_per_s": rates, "errors": errors})
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"arguments": vars(args), "rows": record}, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
