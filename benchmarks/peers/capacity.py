#!/usr/bin/env python3
"""Requests a second of the best server in a result of `pinion bench compare`: capacity.py COMPARE.json.

A server's figure is the median of all its runs. The base and the variants that cannot act are one server: the best of several
draws of the same one would be above what it sustains.
"""
import json
import statistics
import sys


def capacity(result):
    rates = {}
    for run in result["runs"]:
        label = result["base"] if run["label"] in result["inert"] else run["label"]
        rates.setdefault(label, []).append(run["figures"]["requests_per_s"])
    return max(statistics.median(of_one) for of_one in rates.values())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        print(capacity(json.load(file)))
