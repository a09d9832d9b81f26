"""The routers of the recipes, as they are started in front of replicas."""
import pathlib
import subprocess
import tempfile
import threading
import time

from replicas import HERE, STARTED, ask, free_port, spawn

# SMG looks at most once a second; what it is told here is its quickest. Without the last two, ten refusals take a replica away for
# a minute.
SMG = ["launch", "--host", "127.0.0.1", "--log-level", "error",
       "--health-check-endpoint", "/ready", "--health-check-interval-secs", "1", "--health-check-timeout-secs", "1",
       "--health-failure-threshold", "1", "--health-success-threshold", "1",
       "--cb-timeout-duration-secs", "1", "--cb-success-threshold", "1"]


class Router:
    """A program in front of replicas, on a port of its own. Started when it answers a request."""

    def __init__(self, command, config=None, replicas=(), arguments=()):
        self.port = free_port()
        command = [*command]
        if config:
            text = (HERE / config).read_text()
            for old, new in [("8100", self.port), ("8101", replicas[0].port), ("8102", replicas[1].port)]:
                text = text.replace(old, str(new))
            self.file = tempfile.NamedTemporaryFile("w", suffix=pathlib.Path(config).suffix)
            self.file.write(text)
            self.file.flush()
            command.append(self.file.name)
        self.process = spawn([*command, *(str(argument).replace("PORT", str(self.port)) for argument in arguments)],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()
        end = time.monotonic() + 60
        while ask(self.port, "first", 1).wrong:
            if time.monotonic() > end or self.process.poll() is not None:
                raise SystemExit(f"{command[0]} does not answer:\n{''.join(self.log[-20:])}")
            time.sleep(0.1)
        # The first answer came from one replica: the other may not be known yet.
        time.sleep(2)

    def end(self):
        self.process.terminate()
        self.process.wait(timeout=60)
        STARTED.discard(self.process)


def envoy(program, replicas):
    return Router([program, "--log-level", "error", "--concurrency", "1", "--use-dynamic-base-id", "-c"], "envoy.yaml", replicas)


def haproxy(program, replicas):
    return Router([program, "-f"], "haproxy.cfg", replicas)


def smg(program, replicas, *flags):
    urls = [f"http://127.0.0.1:{replica.port}" for replica in replicas]
    policy = flags or ("--policy", "cache_aware")
    return Router([program, *SMG, *policy], arguments=["--port", "PORT", "--prometheus-port", free_port(), "--worker-urls", *urls])


ROUTERS = {"envoy": envoy, "haproxy": haproxy, "smg": smg}
