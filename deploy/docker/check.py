#!/usr/bin/env python3
"""Runs an image hardened and looks at it from inside its own network:

    DOCKER="docker -H unix:///..." deploy/docker/check.py IMAGE

Another uid, a read-only root and no writable folder, no capabilities, 64 MiB of /dev/shm, a limit on processes: it serves,
its health check passes, and `docker stop` under load loses no token. Containers are reached by the clients inside them.
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from checks import CLIENT, STREAMS, TOKENS

DOCKER = shlex.split(os.environ.get("DOCKER", "docker"))
HARDENED = ["--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--pids-limit", "64", "--user", "12345:12345"]


def docker(*words, **options):
    return subprocess.run([*DOCKER, *words], capture_output=True, text=True, **options)


def fail(what, container=None):
    log = docker("logs", "--tail", "40", container) if container else None
    raise SystemExit(f"image: {what}" + (f"\n{log.stdout}{log.stderr}" if log else ""))


def wait(what, container, look, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    return fail(f"{what}: not within {seconds} s", container)


def started(image, *options):
    run = docker("run", "--detach", *options, image, "serve", "/opt/pinion/demo-model", "--no-pin", "--drain-delay", "500ms")
    if run.returncode != 0:
        fail(run.stderr)
    container = run.stdout.strip()
    wait("ready", container, lambda: "pinion is ready" in docker("logs", container).stderr)
    return container


def state(container):
    return json.loads(docker("inspect", "--format", "{{json .State}}", container).stdout)


def check_stop(container):
    """Streams are open when the container is told to stop; each must be whole."""
    clients = subprocess.Popen([*DOCKER, "exec", container, "bash", "-c", CLIENT], stdout=subprocess.PIPE, text=True)
    # Said by the service: all of them are in it.
    used = "exec 3<>/dev/tcp/127.0.0.1/8000; printf 'GET /metrics/load HTTP/1.0\\r\\nhost: localhost\\r\\n\\r\\n' >&3; cat <&3"
    wait("streams", container, lambda: f"\npinion_requests_running {STREAMS}\n" in docker("exec", container, "bash", "-c", used).stdout, 30)
    began = time.monotonic()
    stop = subprocess.Popen([*DOCKER, "stop", "--time", "60", container], stdout=subprocess.DEVNULL)
    said, _ = clients.communicate(timeout=90)
    if said.split() != ["whole"] * STREAMS:
        fail(said, container)
    stop.wait(timeout=90)
    code = state(container)["ExitCode"]
    if code != 0:
        fail(f"exit code {code}", container)
    return time.monotonic() - began


def main():
    image = sys.argv[1]
    plain = started(image)
    hardened = None
    try:
        wait("health", plain, lambda: state(plain)["Health"]["Status"] == "healthy")
        config = json.loads(docker("inspect", "--format", "{{json .Config}}", image).stdout)
        if config["User"] != "65532:65532" or config["Labels"]["org.opencontainers.image.licenses"] != "Apache-2.0":
            fail(f"user or labels: {config}")
        docker("stop", "--time", "20", plain)
        if state(plain)["ExitCode"] != 0:
            fail("a stop without load", plain)
        hardened = started(image, *HARDENED)
        seconds = check_stop(hardened)
    finally:
        for container in filter(None, [plain, hardened]):
            docker("rm", "--force", container)
    print(f"image: healthy; hardened it ended {seconds:.1f} s after docker stop with {STREAMS} streams of {TOKENS} tokens, none cut")


if __name__ == "__main__":
    main()
