#!/usr/bin/env python3
"""Measures one recipe: two replicas behind a router. Every figure is printed; a claim of docs/SCALING.md that fails ends it with 1.

    deploy/distributed/check.py ROUTER --router PROGRAM --pinion PROGRAM [--streams N] [--only MEASURE ...]

Run it by the script of its router (envoy.sh, haproxy.sh, smg.sh), which installs the router. Replicas are on loopback with the fake
backend, whose steps take as long as they are told; --drain-delay is 3 s where nothing else is said.
"""
import argparse
import concurrent.futures
import json
import pathlib
import random
import subprocess
import sys
import time

from replicas import Load, Replica, ask, get
from routers import ROUTERS, smg

CLIENTS, TOKENS, STEP_US = 16, 100, "5000"
# Prefixes, requests for each, words of a prefix and of what follows it.
PREFIXES, REPEATS, PREFIX_WORDS, OWN_WORDS = 24, 6, 300, 2
PERFECT = (REPEATS - 1) / REPEATS
DRAIN = ("--drain-delay", "3s")
WORDS = "the king and all his men had seen it come to this before the night was gone".split()


def say(text):
    print(text, flush=True)


class Recipe:
    def __init__(self, name, program, pinion, streams):
        self.name, self.program, self.pinion, self.streams = name, program, pinion, streams

    def replicas(self, *flags, drain=DRAIN, steps=(STEP_US, STEP_US)):
        return [Replica(self.pinion, "--fake-step-us", step, *drain, *flags) for step in steps]

    def router(self, replicas, *flags):
        return ROUTERS[self.name](self.program, replicas, *flags)

    def end(self, router, replicas):
        router.end()
        for replica in replicas:
            replica.stop()


def roll(recipe, delay, streams):
    """Restarts both replicas in turn, again until there were that many streams. Returns what was lost."""
    replicas = recipe.replicas(drain=("--drain-delay", delay))
    router = recipe.router(replicas)
    load, restarts = Load(router.port, CLIENTS, TOKENS), 0
    while len(load.answers) < streams:
        for replica in replicas:
            replica.stop()
            time.sleep(0.5)
            replica.start()
            restarts += 1
            # Until every router has seen that it is back.
            time.sleep(4)
    answers = load.end()
    recipe.end(router, replicas)
    wrong = load.wrong()
    say(f"rolling restart, --drain-delay {delay}: {len(answers)} streams of {TOKENS} tokens, {len(answers) - len(wrong)} whole, "
        f"{len(wrong)} not, {restarts} restarts, {CLIENTS} clients")
    for text in sorted(set(wrong))[:3]:
        say(f"  {wrong.count(text)} times: {text.strip()[:160]}")
    return wrong


def rolling(recipe):
    if wrong := roll(recipe, "3s", recipe.streams):
        raise SystemExit(f"{recipe.name}: {len(wrong)} streams lost")
    # For comparison only.
    roll(recipe, "0s", recipe.streams // 2)


def gone(recipe):
    """One replica's processes are killed under load, as when its host is gone."""
    replicas = recipe.replicas()
    router = recipe.router(replicas)
    load = Load(router.port, CLIENTS, TOKENS)
    time.sleep(5)
    killed = replicas[0].kill()
    time.sleep(10)
    answers = load.end()
    recipe.end(router, replicas[1:])
    before = [answer for answer in answers if answer.begun < killed]
    after = [answer for answer in answers if answer.begun >= killed]
    cut = [answer for answer in before if answer.ended >= killed]
    failed = [answer for answer in after if answer.wrong]
    firsts = [(answer.first, answer.first - answer.begun) for answer in after if not answer.wrong]
    if not firsts:
        raise SystemExit(f"{recipe.name}: no answer after a replica was killed")
    say(f"replica killed: {len(before)} streams before it, of the {len(cut)} open ones {sum(answer.wrong is not None for answer in cut)} "
        f"cut; {len(after)} requests in the 10 s after it, {len(failed)} failed; first answer to one of them after "
        f"{1000 * (min(firsts)[0] - killed):.0f} ms, slowest first token {1000 * max(wait for _, wait in firsts):.0f} ms")
    for text in sorted({answer.wrong for answer in failed})[:3]:
        say(f"  {sum(answer.wrong == text for answer in failed)} times: {text.strip()[:160]}")
    if any(answer.wrong for answer in before if answer.ended < killed):
        raise SystemExit(f"{recipe.name}: a stream failed before a replica was killed")


def cached_share(port):
    """Share of the prompts' tokens that came from a cache. What can be shared at most is what all but the first request of a
    prefix have in common with it."""
    draw = random.Random(1)
    prefixes = [" ".join(draw.choice(WORDS) for _ in range(PREFIX_WORDS)) for _ in range(PREFIXES)]
    answers = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for turn in range(REPEATS):
            # As they come: no order from which a router could gain.
            draw.shuffle(prefixes)
            own = [" ".join(draw.choice(WORDS) for _ in range(OWN_WORDS)) for _ in prefixes]
            answers += pool.map(lambda pair: ask(port, f"{pair[0]} {turn} {pair[1]}", 4), zip(prefixes, own))
    if wrong := [answer.wrong for answer in answers if answer.wrong]:
        raise SystemExit(f"{len(wrong)} requests failed: {wrong[0]}")
    return sum(answer.cached_tokens for answer in answers) / sum(answer.prompt_tokens for answer in answers)


def share(recipe):
    """Of as many tokens as are asked for, how many need not be computed."""
    def measure(count, *flags):
        replicas = recipe.replicas(steps=[STEP_US] * count)
        if count == 1:
            found = cached_share(replicas[0].port)
            replicas[0].stop()
            return found
        router = recipe.router(replicas, *flags)
        found = cached_share(router.port)
        recipe.end(router, replicas)
        return found

    alone, found = measure(1), measure(2)
    say(f"tokens from the cache: {found:.3f} ({PREFIXES} prefixes × {REPEATS} requests; one replica without a router {alone:.3f}, "
        f"with every repeated prompt whole {PERFECT:.3f})")
    if recipe.name == "smg":
        say(f"tokens from the cache with --policy round_robin: {measure(2, '--policy', 'round_robin'):.3f}")
        if found < 0.8:
            raise SystemExit(f"smg: {found:.3f} of the tokens came from the cache")


def split(recipe):
    """One replica is four times as slow. A balancer that sees the load sends it less."""
    replicas = recipe.replicas("--max-num-seqs", "16", steps=("2000", "8000"))
    router = recipe.router(replicas)
    load = Load(router.port, 12, 40)
    time.sleep(6)
    before = [replica.answered() for replica in replicas]
    time.sleep(15)
    after = [replica.answered() for replica in replicas]
    load.end()
    recipe.end(router, replicas)
    fast, slow = (new - old for new, old in zip(after, before))
    say(f"by load: {fast} requests to a replica, {slow} to one that is four times as slow")
    if load.wrong() or fast < 1.5 * slow:
        raise SystemExit(f"{recipe.name} does not choose by load; {len(load.wrong())} failed: {load.wrong()[:1]}")


def loads(recipe):
    """SMG reads /v1/loads: it knows each replica's capacity in tokens."""
    replicas = recipe.replicas()
    router = smg(recipe.program, replicas)
    end = time.monotonic() + 30
    while True:
        seen = [load["max_total_num_tokens"] for load in json.loads(get(router.port, "/get_loads")[1])["loads"]]
        told = [json.loads(get(replica.port, "/v1/loads")[1])["loads"][0]["max_total_num_tokens"] for replica in replicas]
        if seen == told or time.monotonic() > end:
            break
        time.sleep(0.5)
    recipe.end(router, replicas)
    say(f"/v1/loads: replicas of {seen} tokens")
    if seen != told or min(told) < 1:
        raise SystemExit(f"smg knows {seen} where /v1/loads says {told}")


MEASURES = {"rolling": rolling, "gone": gone, "share": share, "split": split, "loads": loads}
OF = {"envoy": ["rolling", "gone", "split", "share"], "haproxy": ["rolling", "gone", "share"],
      "smg": ["rolling", "gone", "share", "loads"]}


def heading(versions):
    """What a result must name to be repeated."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True).stdout.strip()

    say(f"commit {git('rev-parse', 'HEAD')}{' with changes' if git('status', '--porcelain', '-uno') else ''}")
    say(f"{versions}; Python {sys.version.split()[0]}")
    say(f"date {time.strftime('%Y-%m-%d', time.gmtime())}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="ROUTER", choices=ROUTERS)
    parser.add_argument("--router", required=True)
    parser.add_argument("--version", required=True, help="of the router, for the result")
    parser.add_argument("--pinion", required=True)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--only", nargs="+", choices=MEASURES)
    arguments = parser.parse_args()
    heading(f"{arguments.name} {arguments.version}")
    recipe = Recipe(arguments.name, arguments.router, arguments.pinion, arguments.streams)
    for measure in arguments.only or OF[arguments.name]:
        MEASURES[measure](recipe)


if __name__ == "__main__":
    main()
