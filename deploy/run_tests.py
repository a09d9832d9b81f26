#!/usr/bin/env python3
"""Runs the tests of the workspace, three test programs at a time:

    deploy/run_tests.py [NAME ...]      all of them, or those with these names (a file of a `tests` folder, or a crate)

Cargo runs one test program after another, and while one waits for the processes that it starts, a core has nothing to do.
Here two workers take the programs that start processes, one those that compute; a worker that has none left takes the
others'. The programs that tests start are built before: `cargo build --workspace --bins`.

Cargo says what there is to run: it runs all tests with a runner that notes each command, with its folder and environment, and
starts nothing. A crate with many files of tests links them into one program (`tests/suite.rs`), which runs once for each file,
with that file's tests: no file shares a process with another. The examples in the documentation are one more command. The
output of a program is printed whole when the program has ended, and is in target/test-logs/tests/. At the end stand the tests
that failed. The exit code is 1 if a program failed or hung.
"""
import collections
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
CARGO = ["cargo", "test", "--locked", "--workspace"]
# $0 is the folder of the notes, the arguments are the command. Each value ends with a NUL.
NOTE = r"""{ printf '%s\0' "$PWD" "$#" "$@" && env -0; } >"$(mktemp "$0/XXXXXX")" """
# Packages whose tests start processes.
STARTING = ("pinion-bench", "pinion-testkit")
# Programs of half a minute and more begin first: a worker that is left with one of them at the end works alone.
LONGEST = (
    "corrupt",
    "cuda",
    "cuda_families",
    "cuda_launch",
    "families",
    "operator_kernels",
    "operators",
    "restart",
    "speculation",
    "speculation_families",
    "stall",
    "torch",
    "window_families",
)
# For each worker, whether it takes the programs that start processes first.
WORKERS = (True, False, True)
# Run before all others, alone: it uses every core.
ALONE = ("seeds",)
# A program that takes longer hangs: the longest takes a minute on two idle cores.
SECONDS_MAX = 1800

# Processes of the programs that run now; each leads a session of its own.
LEADERS = set()

Program = collections.namedtuple("Program", "package name command folder environment")
Outcome = collections.namedtuple("Outcome", "program status seconds cpu_seconds output")


def build():
    """The programs that tests start, and everything that `cargo test` builds, the examples too."""
    for command in (["cargo", "build", "--locked", "--workspace", "--bins"], [*CARGO, "--no-run"]):
        status = subprocess.run(command, cwd=ROOT).returncode
        if status != 0:
            sys.exit(status)


def programs():
    """What Cargo would run now, by package and name, and the examples in the documentation."""
    with tempfile.TemporaryDirectory() as notes:
        # A list of strings is written in TOML as in JSON.
        runner = json.dumps(["sh", "-c", NOTE, notes])
        command = [*CARGO, "--tests", "--no-fail-fast", "--color", "never", "--config", f"target.'cfg(unix)'.runner={runner}"]
        noted = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        found = [program_of(path.read_bytes()) for path in pathlib.Path(notes).iterdir()]
    announced = len(re.findall(r"^ *Running ", noted.stderr, re.M))
    different = len({program.command[0] for program in found})
    if noted.returncode != 0 or not announced == different == len(found):
        what = f"cargo runs {announced} programs, {len(found)} were noted, {different} of them different"
        sys.exit(f"run_tests: {what}:\n{noted.stderr}")
    found = [part for program in found for part in files_of(program)]
    found.sort(key=lambda program: (program.package, program.name))
    return [*found, Program("workspace", "doc", [*CARGO, "--doc", "--no-fail-fast"], ROOT, dict(os.environ))]


def program_of(note):
    folder, count, *values = os.fsdecode(note).split("\0")[:-1]
    command, variables = values[: int(count)], values[int(count) :]
    environment = dict(variable.split("=", 1) for variable in variables)
    # Without the hash that Cargo appends.
    name = pathlib.Path(command[0]).name.rsplit("-", 1)[0]
    return Program(environment["CARGO_PKG_NAME"], name, command, folder, environment)


def files_of(program):
    """One program for each file of tests that is linked into it, or the program itself."""
    if not program.name.endswith("_suite"):
        return [program]
    listed = subprocess.run(
        [*program.command, "--list", "--format", "terse"],
        cwd=program.folder,
        env=program.environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    tests = collections.defaultdict(list)
    for name in re.findall(r"^(.+): test$", listed.stdout, re.M):
        tests[name.split("::")[0]].append(name)
    return [program._replace(name=file, command=[*program.command, "--exact", *tests[file]]) for file in tests]


class Queue:
    """The programs that no worker has taken yet."""

    def __init__(self, found):
        # The sort keeps the order of the others.
        ordered = sorted(found, key=lambda program: program.name not in LONGEST)
        self.lock = threading.Lock()
        self.starting = [program for program in ordered if program.package in STARTING]
        self.computing = [program for program in ordered if program.package not in STARTING]

    def take(self, prefers_starting):
        with self.lock:
            lanes = [self.starting, self.computing] if prefers_starting else [self.computing, self.starting]
            lane = lanes[0] or lanes[1]
            return lane.pop(0) if lane else None


def run(program, logs):
    # With the hash of the program: a library and a program of one package may have the same name.
    log = logs / f"{program.package}-{program.name}-{program.command[0].rsplit('-', 1)[-1]}.log"
    began = time.monotonic()
    # A file and no pipe: what a program leaves behind may hold its output open.
    with open(log, "wb") as output:
        running = subprocess.Popen(
            program.command,
            cwd=program.folder,
            env=program.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        LEADERS.add(running.pid)
        status, usage = wait(running.pid, SECONDS_MAX)
        LEADERS.discard(running.pid)
        # It was waited for here, and Popen need not look for it.
        running.returncode = 0
    seconds = time.monotonic() - began
    return Outcome(program, status, seconds, usage.ru_utime + usage.ru_stime, log.read_text(errors="replace"))


def wait(pid, seconds_max):
    """The exit status, None for one that took longer and was killed, and what it and the processes that it waited for used."""
    end = time.monotonic() + seconds_max
    while time.monotonic() < end:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), usage
        time.sleep(0.02)
    # The processes that it started, too.
    os.killpg(pid, signal.SIGKILL)
    return None, os.wait4(pid, 0)[2]


def how_it_ended(outcome):
    if outcome.status is None:
        return f"killed after {SECONDS_MAX} s"
    if outcome.status < 0:
        return f"killed by signal {-outcome.status}"
    return "passed" if outcome.status == 0 else f"failed with exit code {outcome.status}"


def work(queue, prefers_starting, logs, outcomes, printing):
    while program := queue.take(prefers_starting):
        outcome = run(program, logs)
        with printing:
            outcomes.append(outcome)
            took = f"{outcome.seconds:.1f} s ({outcome.cpu_seconds:.1f} s of CPU)"
            print(f"\n== {program.package} {program.name} {how_it_ended(outcome)}, {took}")
            print(outcome.output.strip(), flush=True)


def summary(outcomes, seconds, cpu_seconds):
    counts = collections.Counter()
    for outcome in outcomes:
        for number, what in re.findall(r"(\d+) (passed|failed|ignored);", outcome.output):
            counts[what] += int(number)
    longest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:10]
    print("\n== longest: " + ", ".join(f"{o.program.package} {o.program.name} {o.seconds:.0f} s" for o in longest))
    failed = [outcome for outcome in outcomes if outcome.status != 0]
    for outcome in failed:
        program = outcome.program
        print(f"== {program.package} {program.name} {how_it_ended(outcome)}; once more: deploy/run_tests.py {program.name}")
        for name in re.findall(r"^test (.+?) \.\.\. FAILED$", outcome.output, re.M):
            print(f"     {name}")
    what = ", ".join(f"{counts[what]} {what}" for what in ("passed", "failed", "ignored"))
    print(f"== {len(outcomes)} programs, {len(failed)} failed, {seconds:.0f} s ({cpu_seconds:.0f} s of CPU); tests: {what}")
    return len(failed)


def main(names):
    # Tests share the cores with what they start: no thread pool may size itself.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    build()
    found = programs()
    known = {program.name for program in found} | {program.package for program in found}
    if unknown := {*names, *LONGEST, *ALONE} - known:
        sys.exit(f"run_tests: there is no test program called {', '.join(sorted(unknown))}")
    if names:
        found = [program for program in found if program.name in names or program.package in names]
    logs = pathlib.Path(ROOT, os.environ.get("CARGO_TARGET_DIR", "target")) / "test-logs/tests"
    logs.mkdir(parents=True, exist_ok=True)
    alone = Queue([program for program in found if program.name in ALONE])
    queue, outcomes, printing = Queue([program for program in found if program.name not in ALONE]), [], threading.Lock()
    began, cpu_began = time.monotonic(), cpu_seconds()
    workers = [threading.Thread(target=work, args=(queue, first, logs, outcomes, printing), daemon=True) for first in WORKERS]
    # What ends this program ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        work(alone, False, logs, outcomes, printing)
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        for leader in list(LEADERS):
            os.killpg(leader, signal.SIGKILL)
    failed = summary(outcomes, time.monotonic() - began, cpu_seconds() - cpu_began)
    return 1 if failed or len(outcomes) != len(found) else 0


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
