#!/usr/bin/env python3
"""A sizing sheet by simulation: how many replicas what arrives needs, and what their clients see.

    deploy/distributed/sizing.py --pinion PROGRAM [--rates R,..] [--lengths IN:OUT,..] [--replicas N,..] [--routing NAME,..]
        [--slo ttft=MS,tpot=MS] [--requests N] [--out FILE] [-- FLAGS]

FLAGS go to `pinion bench scheduler --simulate`: what a step costs (step_costs.py says it of a running service), the limits of a
replica, --prefixes, --gamma-shape. Nothing is measured: the same flags give the same sheet anywhere.
"""
import argparse
import pathlib
import shlex
import sys

from simulation import simulate

# A p99 takes 1000 requests; the slowest of a longer run are slower where a queue grows.
LONGER, GROWTH = 2, 1.5


def numbers(text):
    return [float(part) for part in text.split(",")]


def lengths(text):
    return [tuple(int(part) for part in pair.split(":")) for pair in text.split(",")]


def targets(text):
    found = {name: float(value) for name, value in (part.split("=") for part in text.split(","))}
    if set(found) != {"ttft", "tpot"}:
        raise ValueError(text)
    return found


class Line:
    """One simulated service: its record, and that of a run that is twice as long."""

    def __init__(self, record, longer):
        self.record, self.longer = record, longer
        self.replicas, self.routing = record["replicas"], record["routing"]

    def keeps_up(self):
        """Whether waiting does not grow with the length of the run."""
        short, long = (one["figures"]["ttft_ms"]["p99"] for one in (self.record, self.longer))
        return self.refused() == 0 and long <= GROWTH * short

    def refused(self):
        return max(one["figures"]["requests"] - one["figures"]["completed"] for one in (self.record, self.longer))

    def meets(self, slo):
        worst = {kind: max(one["figures"][f"{kind}_ms"]["p99"] for one in (self.record, self.longer)) for kind in slo}
        return self.keeps_up() and all(worst[kind] <= most for kind, most in slo.items())

    def cells(self, slo):
        figures = self.record["figures"]
        times = [f"{show(figures[kind]['p50'])} / {show(figures[kind]['p99'])}" for kind in ("ttft_ms", "tpot_ms")]
        said = "yes" if self.meets(slo) else "no" if self.keeps_up() else "**the queue grows**"
        return [str(self.replicas), self.routing if self.replicas > 1 else "", *times, f"{100 * self.record['cached_share']:.0f} %",
                f"{100 * self.record['busy_share']:.0f} %", f"{self.record['rows_per_step']:.1f}", said]


def show(ms):
    return f"{ms:.1f}" if ms < 10 else f"{ms:.0f}"


def row(cells):
    return f"| {' | '.join(cells)} |"


def rows_of(header, lines):
    return [row(header), "|---" * len(header) + "|", *(row(cells) for cells in lines)]


def run(arguments, rate, length):
    flags = ["--poisson", rate, "--input-len", length[0], "--output-len", length[1], "--routing", arguments.routing,
             "--replicas", arguments.replicas, *arguments.flags]
    short, long = (simulate(arguments.pinion, *flags, "--requests", factor * arguments.requests) for factor in (1, LONGER))
    return [Line(*pair) for pair in zip(short, long)]


def fewest(lines, routing, slo):
    """One replica has no router, so it counts for all of them."""
    found = [line.replicas for line in lines if line.routing == routing or line.replicas == 1]
    good = [line.replicas for line in lines if (line.routing == routing or line.replicas == 1) and line.meets(slo)]
    return str(min(good)) if good else f"> {max(found)}"


def sheet(arguments):
    slo, routings = arguments.slo, arguments.routing.split(",")
    yield "By simulation, nothing is measured. Flags of `pinion bench scheduler --simulate`:"
    yield f"`{shlex.join(arguments.flags) or 'its defaults'}`."
    yield f"Requests: {arguments.requests}, and {LONGER * arguments.requests} to see whether a queue grows."
    yield f"Targets: TTFT p99 {slo['ttft']:g} ms, TPOT p99 {slo['tpot']:g} ms."
    details, summary = [], []
    for length in arguments.lengths:
        for rate in arguments.rates:
            lines = run(arguments, rate, length)
            name = f"{length[0]} → {length[1]}"
            summary.append([name, f"{rate:g}", *(fewest(lines, routing, slo) for routing in routings)])
            details += [[name, f"{rate:g}", *line.cells(slo)] for line in lines]
            print(f"{name} at {rate:g}/s: {' '.join(summary[-1][2:])}", file=sys.stderr)
    yield from ["", "Fewest replicas that meet the targets:", ""]
    yield from rows_of(["tokens in → out", "arrivals/s", *routings], summary)
    yield from ["", "All of them:", ""]
    header = ["tokens in → out", "arrivals/s", "replicas", "routing", "TTFT p50 / p99 ms", "TPOT p50 / p99 ms", "KV hit", "busy",
              "rows/step", "meets"]
    yield from rows_of(header, details)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pinion", required=True)
    parser.add_argument("--rates", type=numbers, default="2,4,8,16,32")
    parser.add_argument("--lengths", type=lengths, default="256:64,512:256")
    parser.add_argument("--replicas", default="1,2,4,8")
    parser.add_argument("--routing", default="round-robin,least-requests,cache-aware")
    parser.add_argument("--slo", type=targets, default="ttft=500,tpot=50")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("flags", nargs="*", metavar="FLAGS")
    arguments = parser.parse_args()
    text = "\n".join(sheet(arguments)) + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
