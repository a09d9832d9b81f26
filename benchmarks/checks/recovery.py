#!/usr/bin/env python3
"""How long streams stand still when a role is killed under them, and whether their texts are whole.

    recovery.py [--rounds 5] [--streams 64] [--tokens 400] [--pause 2] [--roles engine-0,detokenizer-0,tokenizer-0] -- COMMAND...

COMMAND starts the server, with {port} where its port stands, for instance:

    recovery.py -- pinion serve DIR --port {port} --backend fake --fake-step-us 2000

Each round begins after a pause of this number of seconds, in which a spare engine is started where there is one: a death that comes
within a second and a half after the one before, or after the start, finds none. It starts this number of streams, kills a role with
SIGKILL when all of them run, and reads them to their ends. A stream's interruption is the longest time between two of its
chunks from the death on, or from a chunk soon after it. A text is whole if it is the one that the same request gave before
a role died. Printed, for each role: the median, the 99th percentile and the longest interruption in ms over all rounds, the
ordinary gap between two chunks, and how many texts were not whole (exit code 1).
"""

import argparse
import json
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

READY_S = 180
ON_ITS_WAY_S = 0.1


def request(index, tokens):
    """A stream's bytes, whose answer ends with its connection."""
    body = json.dumps({"prompt": f"stream {index} of those that go on", "max_tokens": tokens, "stream": True,
                       "ignore_eos": True, "temperature": 0})
    return (f"POST /v1/completions HTTP/1.0\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}").encode()


def parsed(reads):
    """The (time, text) of each chunk in the (time, bytes) of an answer, and what was wrong, or None."""
    head, chunks, waiting = None, [], b""
    for at, data in reads:
        waiting += data
        if head is None:
            head, found, rest = waiting.partition(b"\r\n\r\n")
            if not found:
                head = None
                continue
            waiting = rest
            if head.split()[1] != b"200":
                return chunks, f"status {head.split()[1].decode()}: {waiting[:300]!r}"
        *lines, waiting = waiting.split(b"\n")
        for line in lines:
            if line.strip() == b"data: [DONE]":
                return chunks, None
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                if "error" in event:
                    return chunks, event["error"]["message"]
                chunks.append((at, event["choices"][0]["text"]))
    return chunks, "cut"


def streams(port, count, tokens, disturb):
    """Runs the streams in one thread, which reads and notes times and leaves the parsing for later: it must not be what
    they wait for. `disturb` is called once all of them run. Gives their chunks and faults, and what `disturb` gave."""
    waiting, reads, at = selectors.DefaultSelector(), [[] for _ in range(count)], None
    for index in range(count):
        connection = socket.create_connection(("127.0.0.1", port), timeout=120)
        connection.sendall(request(index, tokens))
        waiting.register(connection, selectors.EVENT_READ, index)
    deadline = time.monotonic() + 60
    while waiting.get_map():
        for key, _ in waiting.select(1):
            try:
                data = key.fileobj.recv(1 << 16)
            except OSError:
                data = b""
            if data:
                reads[key.data].append((time.monotonic(), data))
            else:
                waiting.unregister(key.fileobj)
                key.fileobj.close()
        if at is None and (all(len(own) > 3 for own in reads) or time.monotonic() > deadline):
            at = disturb()
    chunks, faults = zip(*map(parsed, reads))
    return chunks, faults, at or disturb()


def role_pid(server, role):
    """The process of a role by its program's name; of several of one role, one after the other by process id. A spare is none."""
    name, index = role.rsplit("-", 1)
    children = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
            program = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
            with open(f"/proc/{pid}/cmdline") as file:
                spare = file.read().split("\0")[0].endswith("-spare")
        except (OSError, ValueError):
            continue
        if parent == server.pid and program == f"pinion-{name}" and not spare:
            children.append(int(pid))
    return sorted(children)[int(index)]


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def start(command):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([word.replace("{port}", str(port)) for word in command], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + READY_S
    for line in server.stderr:
        if re.match("pinion is ready", line):
            break
        if time.monotonic() > deadline:
            sys.exit("the server does not serve")
    else:
        sys.exit("the server ended")
    threading.Thread(target=lambda: [print(line, end="", file=sys.stderr) for line in server.stderr if "ERROR" in line],
                     daemon=True).start()
    return server, port


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--pause", type=float, default=2)
    parser.add_argument("--roles", default="engine-0,detokenizer-0,tokenizer-0")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    server, port = start(options.command)
    broken = 0
    try:
        undisturbed, faults, _ = streams(port, options.streams, options.tokens, time.monotonic)
        if any(faults):
            sys.exit(f"streams fail without a death: {faults}")
        wanted = ["".join(text for _, text in own) for own in undisturbed]
        gaps = [b - a for own in undisturbed for (a, _), (b, _) in zip(own, own[1:])]
        print(f"ordinary gap: p50 {1e3 * statistics.median(gaps):.2f} ms, p99 {1e3 * quantile(gaps, 0.99):.2f} ms")
        for role in options.roles.split(","):
            interruptions, not_whole = [], 0
            for _ in range(options.rounds):
                time.sleep(options.pause)

                def kill():
                    os.kill(role_pid(server, role), signal.SIGKILL)
                    return time.monotonic()

                chunks, faults, at = streams(port, options.streams, options.tokens, kill)
                for own, fault, text in zip(chunks, faults, wanted):
                    whole = fault is None and "".join(text for _, text in own) == text
                    not_whole += not whole
                    if not whole:
                        print(f"{role}: not whole: {fault or 'another text'}", file=sys.stderr)
                    # What was on its way when the role died still arrives.
                    after = [b - a for (a, _), (b, _) in zip(own, own[1:]) if b >= at and a <= at + ON_ITS_WAY_S]
                    interruptions.extend([max(after)] if whole and after else [])
            broken += not_whole
            if interruptions:
                p50, p99, most = statistics.median(interruptions), quantile(interruptions, 0.99), max(interruptions)
                print(f"{role}: interruption p50 {1e3 * p50:.0f} ms, p99 {1e3 * p99:.0f} ms, longest {1e3 * most:.0f} ms; "
                      f"{len(interruptions)} streams of {options.rounds} deaths; {not_whole} texts not whole")
            else:
                print(f"{role}: {not_whole} texts not whole")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
