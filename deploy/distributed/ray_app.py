"""`pinion serve` under Ray Serve: each replica of the deployment starts one on its node and passes requests to it. On a cluster whose
nodes have Pinion and the model, and this file in PYTHONPATH:

    serve run ray_app:app program=/opt/pinion/bin/pinion model=/models/NAME flags="--max-num-seqs 32"

Serve chooses a replica by its open requests; a request that has begun stays with its replica.
"""
import shlex
import subprocess
import sys
import threading

import httpx
from ray import serve
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse

READY = "pinion is ready: "
# They are of one connection, or made anew.
NOT_PASSED_ON = {"connection", "content-length", "host", "keep-alive", "transfer-encoding", "upgrade"}
DRAIN_S = 30


def passed_on(headers):
    return [(name, value) for name, value in headers.items() if name.lower() not in NOT_PASSED_ON]


@serve.deployment(max_ongoing_requests=64, health_check_period_s=2, health_check_timeout_s=10,
                  graceful_shutdown_timeout_s=DRAIN_S + 10)
class Pinion:
    """One service of this machine, on a port of its own."""

    def __init__(self, command):
        # It must not outlive this process, however that ends.
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command, "--host", "127.0.0.1", "--port", "0"],
                                        stderr=subprocess.PIPE, text=True)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if line.startswith(READY):
                break
        else:
            raise RuntimeError(f"pinion ended with {self.process.wait()}: {''.join(said[-20:])}")
        url = said[-1].removeprefix(READY).split()[0]
        # Into the log of this replica. An unread pipe would stop the service.
        threading.Thread(target=lambda: sys.stderr.writelines(self.process.stderr), daemon=True).start()
        # Answers may take minutes; --keep-alive and the health check see to those that never come.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        # What a client did not ask for is not asked for here.
        headers = {"accept-encoding": "identity"}
        self.client = httpx.AsyncClient(base_url=url, headers=headers, timeout=httpx.Timeout(None, connect=5), limits=limits)
        self.name = serve.get_replica_context().replica_id.unique_id

    async def __call__(self, request: Request):
        path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        asked = self.client.build_request(request.method, path, headers=passed_on(request.headers), content=await request.body())
        answer = await self.client.send(asked, stream=True)
        headers = {**dict(passed_on(answer.headers)), "x-replica": self.name}
        # A client that leaves ends the stream, and with it the connection: Pinion sees that and stops.
        return StreamingResponse(answer.aiter_raw(), answer.status_code, headers, background=BackgroundTask(answer.aclose))

    async def check_health(self):
        """Pinion restarts its own roles while streams go on, so only a service that does not answer is replaced."""
        (await self.client.get("/live", timeout=5)).raise_for_status()

    def __del__(self):
        self.process.terminate()
        try:
            self.process.wait(DRAIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()


def app(arguments: dict):
    """For `serve run`: `program`, `model`, and `flags` of `pinion serve` in one text."""
    command = [arguments.get("program", "pinion"), "serve", arguments["model"], *shlex.split(arguments.get("flags", ""))]
    return Pinion.bind(command)
