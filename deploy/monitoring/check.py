#!/usr/bin/env python3
"""Asks a real Prometheus every query of the dashboard, against a served demo model:

    deploy/monitoring/check.py --pinion PROGRAM --prometheus PROGRAM --promtool PROGRAM

Each query must answer with a series, and each name in the alert rules must exist. promtool checks and tests the rules. The
load has streams, an error of a client, a repeated prompt and the death of a role.
"""
import argparse
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from checks import free_port

HERE = pathlib.Path(__file__).resolve().parent


def fail(what):
    raise SystemExit(f"monitoring: {what}")


def complete(url, body):
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        return urllib.request.urlopen(request, timeout=60).read()
    except urllib.error.HTTPError as error:
        return error.read()


def query(prometheus, expression):
    text = urllib.parse.urlencode({"query": expression})
    answer = json.load(urllib.request.urlopen(f"{prometheus}/api/v1/query?{text}", timeout=30))
    return [sample for sample in answer["data"]["result"] if sample["value"][1] != "NaN"]


def queries(board):
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            for name, value in [("$job", ".*"), ("$instance", ".*"), ("$__rate_interval", "30s")]:
                expression = expression.replace(name, value)
            if "$" in expression:
                fail(f"{panel['title']}: a variable is left in {expression}")
            yield panel["title"], expression


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for program in ("--pinion", "--prometheus", "--promtool"):
        parser.add_argument(program, required=True)
    arguments = parser.parse_args()
    for words in (["check", "rules", HERE / "alerts.yml"], ["check", "config", HERE / "prometheus.yml"], ["test", "rules", HERE / "alerts_test.yml"]):
        run = subprocess.run([arguments.promtool, *words], capture_output=True, text=True)
        if run.returncode != 0:
            fail(f"promtool: {run.stdout}{run.stderr}")
    rules = (HERE / "alerts.yml").read_text()
    tested = (HERE / "alerts_test.yml").read_text()
    alerts = re.findall(r"alert: (\w+)", rules)
    untested = [name for name in alerts if tested.count(name) < 2]
    if untested:
        fail(f"alerts without a test: {untested}")

    port, watcher = free_port(), free_port()
    url, prometheus = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{watcher}"
    with tempfile.TemporaryDirectory() as folder:
        config = (HERE / "prometheus.yml").read_text().replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("10s", "1s")
        (pathlib.Path(folder) / "prometheus.yml").write_text(config)
        (pathlib.Path(folder) / "alerts.yml").write_text(rules)
        log = open(pathlib.Path(folder) / "log", "w+")
        server = subprocess.Popen([arguments.pinion, "serve", str(HERE.parent / "demo-model"), "--backend", "fake", "--fake-step-us", "2000",
                                   "--port", str(port), "--no-pin"], stderr=log)
        watch = subprocess.Popen([arguments.prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                  f"--web.listen-address=127.0.0.1:{watcher}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        done = threading.Event()
        try:
            text = lambda: pathlib.Path(log.name).read_text()
            end = time.monotonic() + 120
            while "pinion is ready" not in text():
                if time.monotonic() > end or server.poll() is not None:
                    fail(f"the service did not start:\n{text()}")
                time.sleep(0.1)

            def load(number):
                while not done.is_set():
                    complete(url, {"prompt": "the same beginning of every prompt " * 4, "max_tokens": 20, "seed": number})
                    complete(url, {"prompt": "", "max_tokens": -2})
            threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(5)
            role = int(re.search(r"serving peer=detokenizer-0 pid=(\d+)", text()).group(1))
            subprocess.run(["kill", "-9", str(role)], check=True)
            time.sleep(10)
            board = json.loads((HERE / "dashboard.json").read_text())
            asked = list(queries(board))
            empty = [(title, expression) for title, expression in asked if not query(prometheus, expression)]
            # A rule whose condition does not hold answers with nothing: its names must exist.
            names = sorted(set(re.findall(r"\bpinion_\w+", rules)))
            absent = [name for name in names if not query(prometheus, f"count({name})")]
            loaded = json.load(urllib.request.urlopen(f"{prometheus}/api/v1/rules", timeout=30))["data"]["groups"][0]["rules"]
            broken = [rule["name"] for rule in loaded if rule["health"] != "ok"]
        finally:
            done.set()
            for process in (server, watch):
                process.send_signal(signal.SIGTERM)
                process.wait(timeout=60)
        if empty:
            fail(f"queries without an answer: {empty}")
        if absent or broken:
            fail(f"names in the rules that do not exist: {absent}; rules that fail: {broken}")
    print(f"monitoring: {len(asked)} queries of {sum('targets' in panel for panel in board['panels'])} panels answered, {len(alerts)} alerts tested")


if __name__ == "__main__":
    main()
