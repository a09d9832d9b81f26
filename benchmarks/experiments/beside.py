#!/usr/bin/env python3
"""Runs a server with hogs beside it, and ends all of them together.

    beside.py [--hog "KIND OPTIONS"].. [--memory-mib N [--forget FILE]..] -- COMMAND..
    beside.py --weigh [--forget FILE].. -- COMMAND..

COMMAND is a server with `--port N`. The hogs (hog.py) stand ready before it starts and begin when it answers /health,
so its start is undisturbed and no request that is measured goes without them. `{port}` in a hog's options is the
server's port. At SIGTERM or SIGINT the hogs end first and tell what they took, then the server. A hog that dies ends
the server, with exit code 1: what was measured then is worth nothing.

With --memory-mib all of them are in a memory cgroup of this size. --forget drops a file from the page cache first, so
that its pages count there. --weigh starts the server in such a cgroup without a limit, prints the MiB that it cannot do
without when it is ready, and ends it.
"""

import argparse
import ctypes
import http.client
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time

import cgroup

# Between two looks at a server that starts, and at one that runs: looking takes CPU time, too.
START_LOOK_S, LOOK_S = 0.01, 0.1
HOG_READY_S, HOG_END_S = 60, 3
# Below the 20 s after which `pinion bench` kills what it has started.
SERVER_END_S = 15
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def say(text):
    print(f"[beside] {text}", flush=True)


class HogProcess:
    """A hog that has begun to prepare."""

    def __init__(self, words):
        self.words, self.has_begun = words, False
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hog.py")
        self.process = subprocess.Popen(
            [sys.executable, program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def wait_ready(self):
        """Errors: it did not become ready in time, or ended."""
        timer = threading.Timer(HOG_READY_S, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if line.strip() != "ready":
            raise RuntimeError(f"the hog {' '.join(self.words)} did not become ready")

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.has_begun = True

    def is_alive(self):
        return self.process.poll() is None

    def stop(self):
        """It ends when its input does."""
        self.process.stdin.close()
        self.process.stdin = None

    def end(self):
        """What it says of itself after `stop`, or `None`."""
        try:
            told, _ = self.process.communicate(timeout=HOG_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            told, _ = self.process.communicate()
        lines = told.strip().splitlines()
        return json.loads(lines[-1]) if self.process.returncode == 0 and lines else None


def end_with_parent():
    """In the child: a parent that is killed leaves no server behind."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def port_of(command):
    for at, word in enumerate(command):
        if word == "--port" and at + 1 < len(command):
            return int(command[at + 1])
        if word.startswith("--port="):
            return int(word.split("=", 1)[1])
    sys.exit("beside.py: the command has no --port N")


def serves(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Beside:
    """A server and its hogs; `run` gives the exit code."""

    def __init__(self, args, command):
        self.args, self.command, self.port = args, command, port_of(command)
        self.group, self.hogs, self.server = None, [], None
        self.told_to_end = False

    def on_signal(self, *_):
        self.told_to_end = True

    def run(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)
        try:
            self.start()
            if not self.wait_for(lambda: serves(self.port), START_LOOK_S):
                return self.server.poll() or 1
            if self.args.weigh:
                print(self.group.used_mib())
                return 0
            self.begin()
            if self.wait_for(lambda: not all(hog.is_alive() for hog in self.hogs), LOOK_S):
                died = [" ".join(hog.words) for hog in self.hogs if not hog.is_alive()]
                say(f"error: hogs died: {', '.join(died)}")
                return 1
            return self.server.poll() or 0
        finally:
            self.end()

    def start(self):
        if self.args.memory_mib or self.args.weigh:
            self.group = cgroup.Cgroup()
            cgroup.forget(self.args.forget)
            self.group.enter()
        words = [shlex.split(hog.replace("{port}", str(self.port))) for hog in self.args.hog]
        self.hogs = [HogProcess(own) for own in words]
        for hog in self.hogs:
            hog.wait_ready()
        # What --weigh prints stands alone.
        out = sys.stderr if self.args.weigh else None
        self.server = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=out, preexec_fn=end_with_parent
        )

    def begin(self):
        if self.args.memory_mib:
            self.group.limit(self.args.memory_mib)
        for hog in self.hogs:
            hog.go()
        say(f"{len(self.hogs)} hogs go")

    def wait_for(self, happened, look_s):
        """Whether it happened before the server ended or a signal came."""
        while not self.told_to_end and self.server.poll() is None:
            if happened():
                return True
            time.sleep(look_s)
        return False

    def end(self):
        for hog in self.hogs:
            hog.stop()
        for hog in self.hogs:
            told = hog.end()
            if hog.has_begun:
                name = " ".join(hog.words)
                say(f"hog {json.dumps(told)}" if told else f"error: the hog {name} told nothing")
        if self.server and self.server.poll() is None:
            self.server.send_signal(signal.SIGTERM)
            try:
                self.server.wait(SERVER_END_S)
            except subprocess.TimeoutExpired:
                say("the server did not end after SIGTERM; killing it")
                self.server.kill()
                self.server.wait()
        if self.group:
            self.tell_memory()
            self.group.leave()
            self.group.remove()

    def tell_memory(self):
        if self.args.memory_mib:
            told = {"limit_mib": self.args.memory_mib, "limit_hits": self.group.limit_hits()}
            say(f"memory {json.dumps(told | {'major_faults': self.group.stat()['pgmajfault']})}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hog", action="append", default=[], metavar="WORDS", help="kind and options of a hog")
    parser.add_argument("--memory-mib", type=int, help="size of the memory cgroup")
    parser.add_argument("--forget", action="append", default=[], metavar="FILE", help="dropped from the page cache")
    parser.add_argument("--weigh", action="store_true", help="print the MiB that the server cannot do without")
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    args, command = parser.parse_args(words[:at]), words[at + 1 :]
    if not command:
        parser.error("a command follows --")
    try:
        sys.exit(Beside(args, command).run())
    except (cgroup.Refused, RuntimeError, OSError) as error:
        say(f"error: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main()
