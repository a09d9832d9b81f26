#!/usr/bin/env python3
"""Whether Pinion and llama-server draw the same greedy tokens from the same weights.

    same_as_llama.py PINION_URL LLAMA_URL [--prompts 24] [--shortest 8] [--longest 300] [--tokens 64] [--at-once 1]
                     [--vocab 50256] [--seed 1] [--tolerance 0.005]

Both servers with GPT-2 124M in fp32. A deviation of 0.05 makes random weights repeat themselves less; llama-server keeps
K and V as fp16 if it is not told otherwise:

    cargo xtask make-model gpt2 --deviation 0.05 --out target/models/gpt2-wide
    benchmarks/peers/llama_server.sh build
    benchmarks/peers/llama_server.sh convert target/models/gpt2-wide target/models/gpt2-wide.gguf f32
    pinion serve target/models/gpt2-wide --dtype fp32 --port 8000
    benchmarks/peers/llama_server.sh serve target/models/gpt2-wide.gguf 8001 2 8 \\
        --cache-type-k f32 --cache-type-v f32 --flash-attn off
    benchmarks/checks/same_as_llama.py http://127.0.0.1:8000 http://127.0.0.1:8001

Prompts are random token ids, sent as ids; both servers generate the same number of tokens with temperature 0. Then
Pinion gets each prompt with llama-server's tokens behind it and says which token it holds to be the likeliest at each
place, so that a text that parted early is compared to its end, too.

Where the first token differs, each server prefers its own by a gap in logprobs, and the sum of the two gaps is what the
servers disagree by. The rule: it is a near-tie if that sum is at most twice the largest disagreement on the gap of the two
likeliest tokens at the places where the texts are still the same. The exit code is 1 if a difference is no near-tie, or
if a logprob differs by more than the tolerance: then the servers do not compute the same model, and nothing is near.

Logprobs are some 2e-4 apart, and it is llama-server that rounds: of 60 computed in double precision its are up to 6e-4 away
(median 1.7e-4), Pinion's up to 2e-6. A part of that is GELU, which llama.cpp takes from a table of fp16 values (with such a
table in the computation the median is 1.2e-4). The check fails, as it should, with Pinion in bf16 and with another
layer_norm_epsilon.
"""

import argparse
import json
import math
import random
import statistics
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor

NOT_WHOLE = "\ufffd"  # a token that is a part of a character shows so, and so do others
LIKELIEST = 5  # tokens that the servers show at each place


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)


def llama(url, ids, count):
    """(ids, the likeliest as {id: logprob} at each place) of what llama-server generates. It shows no logprobs of a token
    that leaves a character incomplete: None."""
    answer = post(url + "/completion", {"prompt": ids, "n_predict": count, "temperature": 0, "ignore_eos": True,
                                        "n_probs": LIKELIEST, "cache_prompt": False, "return_tokens": True})
    places, tops = iter(answer["completion_probabilities"]), []
    place = next(places, None)
    for id in answer["tokens"]:
        is_shown = place is not None and place["id"] == id
        tops.append({top["id"]: top["logprob"] for top in place["top_logprobs"]} if is_shown else None)
        place = next(places, None) if is_shown else place
    if place is not None:
        sys.exit("llama-server's logprobs are not those of its tokens")
    return answer["tokens"], tops


def pinion(url, ids, count):
    """(texts, the likeliest as {text: logprob} at each place) of what Pinion generates."""
    answer = post(url + "/v1/completions", {"prompt": ids, "max_tokens": count, "temperature": 0, "ignore_eos": True,
                                            "logprobs": LIKELIEST})
    told = answer["choices"][0]["logprobs"]
    return told["tokens"], told["top_logprobs"]


def forced(url, ids, behind):
    """What Pinion holds to follow at each place of `behind`: {id: (text, logprob)}, with the token that does follow."""
    answer = post(url + "/v1/completions", {"prompt": ids + behind, "max_tokens": 0, "echo": True,
                                            "prompt_logprobs": LIKELIEST})
    places = answer["choices"][0]["prompt_logprobs"][len(ids):]
    return [{int(id): (entry["decoded_token"], entry["logprob"]) for id, entry in place.items()} for place in places]


def gap(tops):
    """Between the likeliest two."""
    first, second = sorted(tops, reverse=True)[:2]
    return first - second


def llama_ahead(tops, others):
    """How far llama-server's own token is before the likeliest of `others`; 0 where it shows nothing."""
    return max(tops.values()) - max((tops[id] for id in others if id in tops), default=-math.inf) if tops else 0.0


class Compared:
    """One prompt at both servers."""

    def __init__(self, options, ids):
        self.prompt_len = len(ids)
        self.llama_ids, self.llama_tops = llama(options.llama, ids, options.tokens)
        self.texts, self.tops = pinion(options.pinion, ids, options.tokens)
        if not len(self.llama_ids) == len(self.texts) == options.tokens:
            sys.exit(f"{len(self.llama_ids)} tokens of llama-server, {len(self.texts)} of Pinion, not {options.tokens}")
        self.forced = forced(options.pinion, ids, self.llama_ids)
        alike = [self.is_alike(place, options.tolerance) for place in range(options.tokens)]
        self.same = alike.index(False) if False in alike else options.tokens

    def is_alike(self, place, tolerance):
        """Whether both drew the same token; it counts only where everything before is alike."""
        text, logprob = self.forced[place][self.llama_ids[place]]
        if text != self.texts[place]:
            return False
        return NOT_WHOLE not in text or abs(logprob - self.tops[place][text]) <= tolerance

    def logprob_differences(self):
        return [abs(self.tops[place][self.texts[place]] - tops[self.llama_ids[place]])
                for place, tops in enumerate(self.llama_tops[:self.same]) if tops]

    def gap_differences(self):
        return [abs(gap(self.tops[place].values()) - gap(tops.values()))
                for place, tops in enumerate(self.llama_tops[:self.same]) if tops]

    def gaps(self):
        """Where the texts part, how far each server's token was before the other's: (Pinion, llama-server). What llama-server
        does not show counts as nothing."""
        place = self.same
        text, _ = self.forced[place][self.llama_ids[place]]
        mine = [id for id, (other, _) in self.forced[place].items() if other == self.texts[place]]
        own, tops = self.tops[place], self.llama_tops[place]
        mine_ahead = max(own.values()) - own.get(text, -math.inf)
        return mine_ahead, llama_ahead(tops, mine)

    def forced_logprob_differences(self):
        return [abs(self.forced[place][id][1] - tops[id])
                for place, (id, tops) in enumerate(zip(self.llama_ids, self.llama_tops)) if tops]

    def forced_others(self):
        """Sums of both gaps where Pinion holds another token than llama-server's to be the likeliest."""
        out = []
        for place, (id, tops) in enumerate(zip(self.llama_ids, self.llama_tops)):
            mine = max(self.forced[place], key=lambda own: self.forced[place][own][1])
            if mine != id:
                out.append(self.forced[place][mine][1] - self.forced[place][id][1] + llama_ahead(tops, [mine]))
        return out


def table(rows, bound):
    """Prints a line for each prompt; gives how many of them part without a near-tie."""
    far = 0
    print("prompt  same  parts at: Pinion's gap  llama's gap      sum  verdict")
    for row in rows:
        line = f"{row.prompt_len:6}  {row.same:4}"
        if row.same == len(row.texts):
            print(line, " -")
            continue
        own, other = row.gaps()
        near = own + other <= bound
        far += not near
        print(f"{line}             {own:12.2e} {other:12.2e} {own + other:8.1e}  {'near-tie' if near else 'NOT A NEAR-TIE'}")
    return far


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pinion")
    parser.add_argument("llama")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--shortest", type=int, default=8)
    parser.add_argument("--longest", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--at-once", type=int, default=1, help="prompts that are under way at the same time")
    parser.add_argument("--vocab", type=int, default=50256, help="ids are drawn below this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tolerance", type=float, default=0.005, help="largest difference of a logprob")
    options = parser.parse_args()
    options.pinion, options.llama = options.pinion.rstrip("/"), options.llama.rstrip("/")
    draw = random.Random(options.seed)
    span = options.longest - options.shortest
    lengths = [options.shortest + span * index // max(options.prompts - 1, 1) for index in range(options.prompts)]
    prompts = [[draw.randrange(options.vocab) for _ in range(length)] for length in lengths]
    with ThreadPoolExecutor(options.at_once) as pool:
        rows = list(pool.map(lambda ids: Compared(options, ids), prompts))

    logprobs = [value for row in rows for value in row.logprob_differences()]
    gaps = [value for row in rows for value in row.gap_differences()]
    if not gaps:
        sys.exit("no two texts begin alike: the servers do not compute the same model")
    bound, places = 2 * max(gaps), options.prompts * options.tokens
    far = table(rows, bound)
    whole = sum(row.same == options.tokens for row in rows)
    print(f"{whole} of {options.prompts} texts are the same; {sum(row.same for row in rows)} of {places} tokens stand before a "
          f"difference; {len({id for row in rows for id in row.llama_ids})} different ones were drawn")
    print(f"before a difference logprobs differ by {statistics.median(logprobs):.1e} (median), {max(logprobs):.1e} (largest), and the gap of "
          f"the likeliest two by {statistics.median(gaps):.1e}, {max(gaps):.1e}")
    others = [value for row in rows for value in row.forced_others()]
    largest = max(value for row in rows for value in row.forced_logprob_differences())
    print(f"behind llama-server's tokens Pinion's likeliest is llama-server's at {places - len(others)} of {places} places; at the "
          f"others the gaps add up to {max(others, default=0):.1e} (largest); logprobs differ by {largest:.1e} (largest)")
    print(f"near-tie: the gaps add up to at most {bound:.1e}")
    if max(*logprobs, largest) > options.tolerance:
        sys.exit(f"a logprob differs by more than {options.tolerance}: the servers do not compute the same model")
    far_forced = sum(value > bound for value in others)
    if far or far_forced:
        sys.exit(f"{far} texts part, and at {far_forced} places the likeliest tokens differ, without a near-tie")


if __name__ == "__main__":
    main()
