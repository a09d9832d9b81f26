#!/usr/bin/env python3
"""Whether requests with a seed get the same text alone, again, and among others; where not, how near the draw was.

    same_text.py URL MODEL_DIR [--requests 60] [--tokens 120] [--at-once 16] [--temperature 0.7] [--strict]

Sends the same requests to a running server three times: one after the other, the same again, then this number at once. Printed,
for the second and the third time against the first: how many texts differ, how many tokens have a logprob that is not equal
to the last bit, and the largest difference of a logprob. For instance, where none and where many differ:

    pinion serve deploy/demo-model --dtype fp32
    pinion serve deploy/demo-model --dtype fp32 --linear plain

Each difference is traced: MODEL_DIR (a GPT-2 folder) is computed in numpy in double precision up to the token, and the
request's draw, which depends on its seed and the token's number alone, is laid beside the cumulated probabilities. The rule:
it was rounding if each of the two tokens' intervals is no further from the draw than the largest difference of a logprob,
over the temperature: by so much the borders may move. The exit code is 1 if a difference is not explained so; with --strict
also if any logprob is not bit-equal. Tracing needs numpy, as in the environment that benchmarks/checks/lm_eval.sh makes.
"""

import argparse
import json
import pathlib
import random
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

NAMES = "ROMEO JULIET HENRY MENENIUS CORIOLANUS BRUTUS GLOUCESTER QUEEN LADY DUKE".split()
WORDS = ("the and my thou art lord good king shall will not with his her what is this for love death night day come go speak "
         "hear men world heart hand sword crown").split()
PROMPT_WORDS = [0, 1, 3, 10, 40, 60, 150]


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


def body(number, options):
    draw = random.Random(number)
    words = " ".join(draw.choice(WORDS) for _ in range(draw.choice(PROMPT_WORDS)))
    return {"prompt": f"{draw.choice(NAMES)}:\n{words}", "max_tokens": options.tokens, "temperature": options.temperature,
            "seed": number, "logprobs": 1}


def generate(bodies, options, at_once):
    """(text, logprob) of each token of each request."""
    def one(request):
        told = post(options.url + "/v1/completions", request)["choices"][0]["logprobs"]
        return list(zip(told["tokens"], told["token_logprobs"]))

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(one, bodies))


def uniform(seed, place):
    """The draw of a token, as crates/model/src/sampler.rs has it."""
    mask = (1 << 64) - 1

    def mix(x):
        x = (x + 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    return (mix(mix(seed) ^ (place * 0xD6E8FEB86659FD93 & mask)) >> 11) / (1 << 53)


class Tracer:
    """The model in numpy."""

    def __init__(self, folder):
        sys.path.insert(0, str(pathlib.Path(__file__).parent / "lm_eval"))
        import compare
        import numpy
        self.numpy, self.logprobs = numpy, compare.logprobs
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {name: value.astype(numpy.float64)
                        for name, value in compare.tensors(folder / "model.safetensors").items()}
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        others = [byte for byte in range(256) if byte not in printable]
        byte_of = {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
        self.ids = {}
        for token, id in json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"].items():
            text = bytes(byte_of[char] for char in token if char in byte_of).decode("utf-8", "replace")
            self.ids.setdefault(text, []).append(id)

    def id_of(self, text):
        """None for a part of a character, which others look like."""
        ids = self.ids.get(text, [])
        return ids[0] if len(ids) == 1 else None

    def distances(self, ids, tokens, temperature, draw):
        """How far the draw is from the interval of each of the tokens behind `ids`, and how likely each is."""
        numpy = self.numpy
        scaled = self.logprobs(self.weights, self.config, ids)[-1] / temperature
        weights = numpy.exp(scaled - scaled.max())
        shares = weights / weights.sum()
        ends = numpy.cumsum(shares)
        return [(max(ends[token] - shares[token] - draw, draw - ends[token], 0.0), shares[token]) for token in tokens]


def trace(tracer, options, request, place, before, tokens, largest):
    """Prints one difference; whether it was rounding."""
    ids = post(options.url + "/tokenize", {"prompt": request["prompt"]})["tokens"]
    drawn = [tracer.id_of(text) for text, _ in before]
    pair = [tracer.id_of(text) for text in tokens]
    name = f"  request {request['seed']}, token {place}: {tokens[0]!r} and {tokens[1]!r}"
    if None in drawn or None in pair:
        print(f"{name}: cannot be traced, a token is a part of a character")
        return False
    draw, bound = uniform(request["seed"], place), largest / options.temperature
    (own, own_share), (other, other_share) = tracer.distances(ids + drawn, pair, options.temperature, draw)
    is_rounding = max(own, other) <= bound
    print(f"{name} (ids {pair[0]} and {pair[1]}, probabilities {own_share:.1e} and {other_share:.1e}): the draw {draw:.9f} is "
          f"{own:.1e} and {other:.1e} from their intervals, {bound:.1e} is explained: {'rounding' if is_rounding else 'NOT ROUNDING'}")
    return is_rounding


def compare_runs(name, first, again, bodies, options):
    """Prints what differs; gives (texts that rounding does not explain, tokens that are not bit-equal)."""
    unequal, largest, parted = 0, 0.0, []
    for number, (a, b) in enumerate(zip(first, again)):
        for place, (x, y) in enumerate(zip(a, b)):
            if x[0] != y[0]:
                parted.append((number, place))
                unequal += len(a) - place
                break
            unequal += x != y
            largest = max(largest, abs(x[1] - y[1]))
        else:
            if len(a) != len(b):
                sys.exit(f"request {number} ended after {len(a)} and {len(b)} tokens, all alike")
    print(f"{name}: {len(parted)} of {len(first)} texts differ; {unequal} of {sum(map(len, first))} tokens are not bit-equal or stand "
          f"behind a difference; logprobs differ by {largest:.1e} at most")
    if not parted:
        return 0, unequal
    tracer = Tracer(options.model)
    explained = [trace(tracer, options, bodies[number], place, first[number][:place],
                       (first[number][place][0], again[number][place][0]), largest) for number, place in parted]
    return explained.count(False), unequal


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--strict", action="store_true", help="fail if a logprob is not equal to the last bit")
    options = parser.parse_args()
    options.url = options.url.rstrip("/")
    bodies = [body(number, options) for number in range(options.requests)]
    first = generate(bodies, options, 1)
    not_explained = unequal = 0
    for name, at_once in [("again, one after the other", 1), (f"{options.at_once} at once", options.at_once)]:
        faults, tokens = compare_runs(name, first, generate(bodies, options, at_once), bodies, options)
        not_explained, unequal = not_explained + faults, unequal + tokens
    if not_explained:
        sys.exit(f"{not_explained} texts differ by more than rounding explains")
    if options.strict and unequal:
        sys.exit(f"{unequal} tokens are not bit-equal")


if __name__ == "__main__":
    main()
