"""Replicas of Pinion on loopback, requests to them or to a router, and clients that ask without a pause. Nothing is measured here."""
import atexit
import dataclasses
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from checks import free_port

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent / "demo-model"

# What this program started and has not ended. Whatever goes wrong, nothing is left running.
STARTED = set()


def spawn(command, **options):
    process = subprocess.Popen(command, **options)
    STARTED.add(process)
    return process


def family(pid):
    """The process and all below it."""
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parents.setdefault(int(text[text.rindex(")") + 2:].split()[1]), []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += parents.get(found[-1], [])
    return found


def kill_all(pids):
    """As when a host is gone: all processes at once, without a signal that they could act on. Returns when that was."""
    killed = time.monotonic()
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    return killed


def kill(process):
    killed = kill_all(family(process.pid))
    process.wait(timeout=60)
    STARTED.discard(process)
    return killed


atexit.register(lambda: [kill(process) for process in list(STARTED)])
# Else this signal ends the program without the line above.
signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class Replica:
    """One `pinion serve`, on a port that stays the same over restarts."""

    def __init__(self, program, *flags, backend="fake"):
        self.program, self.port = program, free_port()
        self.flags = ("--backend", backend, *flags)
        self.start()

    def start(self):
        self.process = spawn(
            [self.program, "serve", str(MODEL), "--port", str(self.port), "--no-pin", "--no-spare-engine",
             "--log", "error", *self.flags], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while True:
            try:
                if get(self.port, "/ready")[0] == 200:
                    return
            except (OSError, http.client.HTTPException):
                pass
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit("a replica did not start")
            time.sleep(0.05)

    def stop(self):
        """Leaves well: within --drain-delay and --drain-timeout."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        STARTED.discard(self.process)
        if code != 0:
            raise SystemExit(f"a replica ended with {code}")

    def kill(self):
        return kill(self.process)

    def answered(self):
        page = get(self.port, "/metrics")[1]
        return int(re.search(r'^pinion_http_responses_total\{route="/v1/completions",class="2xx"\} (\d+)$', page, re.M).group(1))


@dataclasses.dataclass
class Answer:
    """One streamed completion. Times are of time.monotonic; `wrong` says what is missing of a stream that is not whole."""
    begun: float
    first: float | None = None
    ended: float | None = None
    wrong: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    # The answer's header of the name that `ask` was given.
    note: str | None = None


def ask(port, prompt, tokens, note=""):
    """Asks for exactly that number of tokens. A stream is whole with all of them and [DONE]."""
    body = json.dumps({"model": "demo-model", "prompt": prompt, "max_tokens": tokens, "min_tokens": tokens, "stream": True,
                       "stream_options": {"include_usage": True}})
    answer = Answer(time.monotonic())
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        answer.note = response.getheader(note)
        text = response.readline().decode()
        answer.first = time.monotonic()
        text += response.read().decode()
    except (OSError, http.client.HTTPException) as error:
        answer.wrong = repr(error)
        return answer
    finally:
        connection.close()
        answer.ended = time.monotonic()
    if response.status != 200:
        answer.wrong = f"{response.status} {text[:200]}"
    elif not text.endswith("data: [DONE]\n\n") or f'"completion_tokens":{tokens}' not in text:
        answer.wrong = f"cut: {text[-200:]}"
    else:
        answer.prompt_tokens = int(re.search(r'"prompt_tokens":(\d+)', text).group(1))
        answer.cached_tokens = int(re.search(r'"cached_tokens":(\d+)', text).group(1))
    return answer


class Load:
    """Clients that ask without a pause until they are told to end."""

    def __init__(self, port, clients, tokens, note=""):
        self.answers, self.done = [], False
        # Daemons: a program that ends while they ask would wait for them before it ends what it started.
        self.threads = [threading.Thread(target=self.client, args=(port, tokens, number, note), daemon=True) for number in range(clients)]
        for thread in self.threads:
            thread.start()

    def client(self, port, tokens, number, note):
        count = 0
        while not self.done:
            begun = time.monotonic()
            try:
                answer = ask(port, f"stream {number} {count}", tokens, note)
            except Exception as error:
                # Whatever `ask` does not foresee is a failure too: else the client would end, and nothing would count it.
                answer = Answer(begun, ended=time.monotonic(), wrong=repr(error))
            self.answers.append(answer)
            count += 1
            if self.answers[-1].wrong:
                # Else a router that refuses is asked as fast as it can.
                time.sleep(0.05)

    def wrong(self):
        return [answer.wrong for answer in self.answers if answer.wrong]

    def end(self):
        self.done = True
        for thread in self.threads:
            thread.join()
        return self.answers
