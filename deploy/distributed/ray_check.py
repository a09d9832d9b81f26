#!/usr/bin/env python3
"""Measures Pinion under Ray Serve (ray_app.py): a head and three nodes on one machine, each with room for one replica.

    deploy/distributed/ray_check.py --pinion PROGRAM [--only MEASURE ...]

Run it by ray_serve.sh, which installs Ray. The clients, the fake backend and what is printed are those of check.py.
"""
import argparse
import atexit
import logging
import os
import pathlib
import shutil
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
# Ray reads these when it is imported; its processes inherit them. Its folder must have a short name: sockets are in it.
FOLDER = tempfile.mkdtemp(prefix="ray-")
# Of the exits the first one registered is the last: Ray has ended.
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
os.environ.update(RAY_TMPDIR=FOLDER, RAY_USAGE_STATS_ENABLED="0", RAY_raylet_start_wait_time_s="120", PYTHONPATH=str(HERE),
                  RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S="1", RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S="1")

import ray
from ray import serve
from ray.cluster_utils import Cluster

from check import CLIENTS, STEP_US, TOKENS, heading, say
from ray_app import Pinion
from replicas import MODEL, Load, ask, family, free_port, kill_all

NODES = 3
REPLICA = "x-replica"
# How long another replica is waited for.
PATIENCE_S = 120


class Ray:
    """A cluster with the deployment on it, and the port of its proxy."""

    def __init__(self, pinion, **options):
        # By this name processes that were left are found.
        self.mark = f"ray-{os.getpid()}"
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for _ in range(NODES):
            self.cluster.add_node(num_cpus=1, resources={"pinion": 1})
        ray.init(self.cluster.address, log_to_driver=False, logging_level="error")
        self.port = free_port()
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": self.port},
                    logging_config={"log_level": "ERROR"})
        command = [pinion, "serve", str(MODEL), "--backend", "fake", "--fake-step-us", STEP_US, "--no-pin", "--no-spare-engine",
                   "--log", "error", "--served-model-name", "demo-model", "--root-path", f"/{self.mark}"]
        placed = Pinion.options(max_ongoing_requests=32, ray_actor_options={"num_cpus": 1, "resources": {"pinion": 1}}, **options)
        serve.run(placed.bind(command))
        end = time.monotonic() + 60
        while ask(self.port, "first", 1).wrong:
            if time.monotonic() > end:
                raise SystemExit("Ray Serve does not answer")
            time.sleep(0.2)

    def services(self):
        """Processes of the replicas' services."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found

    def node_of_a_replica(self):
        """A node that serves: all its processes."""
        services = set(self.services())
        for node in self.cluster.worker_nodes:
            pids = family(node.all_processes["raylet"][0].process.pid)
            if services & set(pids):
                return node, pids
        raise SystemExit("no node has a replica")

    def running(self):
        states = serve.status().applications["default"].deployments["Pinion"].replica_states
        return states.get("RUNNING", 0), sum(states.values())

    def end(self):
        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()
        end = time.monotonic() + 10
        while (left := self.services()) and time.monotonic() < end:
            time.sleep(0.1)
        kill_all([pid for service in left for pid in family(service)])
        if left:
            raise SystemExit(f"{len(left)} processes of Pinion were left")


def gone(pinion):
    """A node with a replica is killed under load, with all its processes. The third node has room for another replica."""
    at = Ray(pinion, num_replicas=2)
    load = Load(at.port, CLIENTS, TOKENS, REPLICA)
    time.sleep(8)
    node, pids = at.node_of_a_replica()
    killed = kill_all(pids)
    at.cluster.remove_node(node, allow_graceful=False)
    known = {answer.note for answer in load.answers}
    while time.monotonic() < killed + PATIENCE_S and {answer.note for answer in load.answers if not answer.wrong} <= known:
        time.sleep(0.1)
    time.sleep(5)
    answers = load.end()
    at.end()
    before = [answer for answer in answers if answer.begun < killed]
    after = [answer for answer in answers if answer.begun >= killed]
    cut = [answer for answer in before if answer.ended >= killed]
    whole = [answer for answer in after if not answer.wrong]
    failed = [answer for answer in after if answer.wrong]
    other = [answer.first for answer in whole if answer.note not in known]
    if not whole or not other:
        raise SystemExit("ray: no answer after a node was killed" if not whole else "ray: no replica came for the one that was killed")
    say(f"node killed: {len(before)} streams before it, of the {len(cut)} open ones {sum(answer.wrong is not None for answer in cut)} "
        f"cut; {len(after)} requests after it, {len(failed)} failed; first answer to one of them after "
        f"{1000 * (min(answer.first for answer in whole) - killed):.0f} ms, slowest first token "
        f"{1000 * max(answer.first - answer.begun for answer in whole):.0f} ms; first answer of a new replica on the other node after "
        f"{min(other) - killed:.1f} s")
    for text in sorted({answer.wrong for answer in failed})[:3]:
        say(f"  {sum(answer.wrong == text for answer in failed)} times: {text.strip()[:160]}")
    if any(answer.wrong for answer in before if answer.ended < killed):
        raise SystemExit("ray: a stream failed before a node was killed")


def scale(pinion):
    """From one replica to three by the number of open and waiting requests, and back. All is well if no stream is lost."""
    wanted = {"min_replicas": 1, "max_replicas": NODES, "target_ongoing_requests": 6, "upscale_delay_s": 1, "downscale_delay_s": 3,
              "look_back_period_s": 2, "metrics_interval_s": 1}
    at = Ray(pinion, autoscaling_config=wanted)
    begun = time.monotonic()
    load = Load(at.port, CLIENTS, TOKENS, REPLICA)
    while time.monotonic() < begun + PATIENCE_S and len({answer.note for answer in load.answers}) < NODES:
        time.sleep(0.1)
    time.sleep(3)
    answers = load.end()
    firsts = {}
    for answer in sorted((answer for answer in answers if not answer.wrong), key=lambda answer: answer.first):
        firsts.setdefault(answer.note, answer.first - begun)
    less = Load(at.port, 2, TOKENS, REPLICA)
    calm = time.monotonic()
    while at.running() != (1, 1) and time.monotonic() < calm + PATIENCE_S:
        time.sleep(0.1)
    took, left = time.monotonic() - calm, at.running()
    answers += less.end()
    at.end()
    wrong = [answer.wrong for answer in answers if answer.wrong]
    say(f"autoscaling, {CLIENTS} clients, then 2: {len(answers)} streams, {len(wrong)} lost; first answers of the replicas after "
        f"{', '.join(f'{first:.1f}' for first in firsts.values())} s; one replica again after {took:.1f} s")
    for text in sorted(set(wrong))[:3]:
        say(f"  {wrong.count(text)} times: {text.strip()[:160]}")
    if len(firsts) < NODES or left != (1, 1):
        raise SystemExit(f"ray: {len(firsts)} of {NODES} replicas answered, {left} at the end")


MEASURES = {"gone": gone, "scale": scale}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pinion", required=True)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES))
    arguments = parser.parse_args()
    logging.getLogger("ray.serve").setLevel("ERROR")
    heading(f"ray {ray.__version__}")
    for measure in arguments.only:
        MEASURES[measure](arguments.pinion)


if __name__ == "__main__":
    main()
