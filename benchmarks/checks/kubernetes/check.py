#!/usr/bin/env python3
"""Pinion's chart on the node that node.sh has made. Every figure is printed; what fails ends it with 1.

The chart is rendered by Helm and applied: both pods become ready, their hardening is read from the API and from inside
them, each answers. Rollouts under streams through SMG, which finds the pods itself, lose none; nor do deaths of the
engines. A container that is killed comes back.
"""
import argparse
import collections
import importlib.metadata
import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time
import urllib.request

import yaml
from helm_python import Chart

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "deploy/distributed"))
from replicas import Load, family, free_port
from routers import SMG, Router

DOCKER = shlex.split(os.environ["DOCKER"])
REPLICAS, CLIENTS, TOKENS = 2, 6, 100
# What a node of two cores has room for, while a third pod starts. All else is as the chart has it.
VALUES = {"image": {"repository": "pinion", "tag": "check", "pullPolicy": "Never"}, "replicaCount": REPLICAS,
          "config": {"pin": False},
          "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "3Gi"}}}
# What the chart's defaults have that is newer than this server.
UNKNOWN = {("policy/v1", "PodDisruptionBudget")}
# What the documentation tells an operator to give a router.
ROUTER_RIGHTS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: router, namespace: default}
rules: [{apiGroups: [""], resources: [pods], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: router, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: router}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: router}]
"""
# Says of every process in the container what it may, then what of the file system can be written.
LOOK = r"""
for file in /proc/[0-9]*/status; do
    while read -r name value; do
        case $name in Name: | Uid: | Gid: | CapInh: | CapPrm: | CapEff: | CapBnd: | CapAmb: | NoNewPrivs: | Seccomp:)
            printf '%s%s ' "$name" "${value//[[:space:]]/,}" ;;
        esac
    done 2>/dev/null <"$file"
    echo
done
for folder in / /opt/pinion /etc/pinion /usr/local/bin /var/cache/pinion; do
    if touch "$folder/try" 2>/dev/null; then echo "writable $folder"; rm "$folder/try"; fi
done
[ ! -e /var/run/secrets ] || echo "a token is mounted"
"""


def say(text):
    print(text, flush=True)


def expect(holds, what):
    if not holds:
        raise SystemExit(f"kubernetes: {what}")


def kubectl(*words, text=None, seconds=60):
    run = subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True, timeout=seconds)
    expect(run.returncode == 0, f"kubectl {' '.join(words)}: {run.stderr.strip()}")
    return run.stdout


def get(*words):
    return json.loads(kubectl("get", *words, "--output", "json"))


def wait(what, look, seconds):
    began = time.monotonic()
    while not (found := look()):
        expect(time.monotonic() - began < seconds, f"{what}: not within {seconds} s")
        time.sleep(0.1)
    return found


def pods():
    """Those that are not told to end. The objects of others stay for half a minute after their containers."""
    found = get("pods", "--selector", "app.kubernetes.io/name=pinion")["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def name_of(one):
    return one["metadata"]["name"]


def is_ready(pod):
    return any((one["type"], one["status"]) == ("Ready", "True") for one in pod["status"].get("conditions", []))


def settled():
    """The pods, once there are as many as wanted and all are ready."""
    found = pods()
    return found if len(found) == REPLICAS and all(map(is_ready, found)) else None


def heading():
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    server = json.loads(kubectl("get", "--raw", "/version"))["gitVersion"]
    docker = subprocess.run([*DOCKER, "version", "--format", "{{.Server.Version}}"], capture_output=True, text=True)
    say(f"commit {git('rev-parse', 'HEAD')}{' with changes' if git('status', '--porcelain', '-uno') else ''}")
    say(f"Kubernetes {server}, dockerd {docker.stdout.strip()}, SMG {importlib.metadata.version('smg')}, "
        f"Helm by helm-python-sdk {importlib.metadata.version('helm-python-sdk')}; Python {sys.version.split()[0]}")
    say(f"programs of the profile {pathlib.Path(os.environ['PINION']).parent.name}; {os.cpu_count()} CPUs")
    say(f"date {time.strftime('%Y-%m-%d', time.gmtime())}")


def install():
    """The chart as Helm renders it, less what this server does not know."""
    with Chart.load(str(ROOT / "deploy/helm/pinion")) as chart:
        files = chart.render(VALUES, name="pinion", namespace="default")
    texts = [text for path, text in files.items() if not path.endswith("NOTES.txt")]
    objects = [one for text in texts for one in yaml.safe_load_all(text) if one]
    known = kubectl("api-versions").split()
    left_out = {(one["apiVersion"], one["kind"]) for one in objects if one["apiVersion"] not in known}
    expect(left_out == UNKNOWN, f"the server does not know {sorted(left_out)}")
    for version, kind in sorted(left_out):
        say(f"left out, unknown to this server: {kind} of {version}")
    applied = [one for one in objects if (one["apiVersion"], one["kind"]) not in left_out]
    # As Helm does: first what the Deployment needs.
    applied.sort(key=lambda one: one["kind"] == "Deployment")
    began = time.monotonic()
    # The server publishes what it knows of each field, and kubectl refuses others.
    kubectl("apply", "--validate=true", "--filename", "-", text=yaml.safe_dump_all(applied))
    wait("pods", settled, 120)
    seconds = time.monotonic() - began
    say(f"{len(applied)} objects applied ({', '.join(sorted(one['kind'] for one in applied))}): "
        f"{REPLICAS} pods Ready {seconds:.1f} s after `kubectl apply` began")


def check_spec(pod):
    """As the server has stored it."""
    spec, container = pod["spec"], pod["spec"]["containers"][0]
    of_pod, of_container = spec["securityContext"], container["securityContext"]
    expect(of_pod == {"runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                      "seccompProfile": {"type": "RuntimeDefault"}}, f"the pod's rights: {of_pod}")
    expect(of_container == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]}}, f"the container's rights: {of_container}")
    expect((spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("pinion", False), "the pod's account")


def check_inside(pod):
    """Every process in the container. Returns how many there are."""
    lines = kubectl("exec", name_of(pod), "--", "bash", "-c", LOOK).splitlines()
    processes = [dict(word.split(":", 1) for word in line.split()) for line in lines if "Uid:" in line]
    rest = [line for line in lines if line and "Uid:" not in line]
    expect(rest == ["writable /var/cache/pinion"], f"inside {name_of(pod)}: {rest}")
    names = {one["Name"] for one in processes}
    expect("pinion" in names and any(name.startswith("pinion-engine") for name in names), f"processes {sorted(names)}")
    for one in processes:
        ids = {one[key] for key in ("Uid", "Gid")}
        capabilities = {int(one[key], 16) for key in one if key.startswith("Cap")}
        expect(ids == {"65532,65532,65532,65532"} and capabilities == {0}, f"a process with rights: {one}")
        expect((one["NoNewPrivs"], one["Seccomp"]) == ("1", "2"), f"a process without a filter: {one}")
    return len(processes)


def hardening():
    counts = []
    for pod in pods():
        check_spec(pod)
        counts.append(check_inside(pod))
    say(f"hardened, by the API and from inside: {' and '.join(map(str, counts))} processes, all with uid 65532, no "
        "capability, no_new_privs and a seccomp filter; nothing can be written but /var/cache/pinion, no token is mounted")


def answer(pod):
    body = {"model": "demo-model", "prompt": "ROMEO:", "max_tokens": 16, "temperature": 0}
    url = f"http://{pod['status']['podIP']}:8000/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        told = json.load(response)
    expect(told["usage"]["completion_tokens"] == 16, f"an answer of {told['usage']}")
    return told["choices"][0]["text"]


def answers():
    texts = {answer(pod) for pod in pods()}
    expect(len(texts) == 1, f"the pods differ: {texts}")
    say(f"each pod completes 'ROMEO:' with {texts.pop()!r}")
    endpoints = {one["ip"] for subset in get("endpoints", "pinion")["subsets"] for one in subset["addresses"]}
    expect(endpoints == {pod["status"]["podIP"] for pod in pods()}, f"the Service has the endpoints {endpoints}")


def start_router(smg):
    kubectl("apply", "--filename", "-", text=ROUTER_RIGHTS)
    os.environ["KUBECONFIG"], own = os.environ["ROUTER_CONFIG"], os.environ["KUBECONFIG"]
    router = Router([smg, *SMG, "--policy", "cache_aware", "--service-discovery", "--service-discovery-port", "8000",
                     "--service-discovery-namespace", "default", "--selector", "app.kubernetes.io/name=pinion"],
                    arguments=["--port", "PORT", "--prometheus-port", free_port()])
    os.environ["KUBECONFIG"] = own
    return router


def whole(load, what):
    """Ends the load. Every stream must have all its tokens and [DONE]."""
    answers = load.end()
    wrong = load.wrong()
    say(f"{what}: {len(answers)} streams of {TOKENS} tokens, {len(answers) - len(wrong)} whole, {len(wrong)} not, "
        f"{CLIENTS} clients")
    for text in sorted(set(wrong))[:3]:
        say(f"  {wrong.count(text)} times: {text.strip()[:200]}")
    expect(not wrong, f"{len(wrong)} streams lost")


def rollouts(port, streams):
    """Restarts all pods, again until there were that many streams."""
    load, took, replaced = Load(port, CLIENTS, TOKENS), [], 0
    try:
        # All clients are in it before anything happens.
        wait("streams", lambda: len(load.answers) >= 2 * CLIENTS, 60)
        end = time.monotonic() + 600
        while len(load.answers) < streams:
            expect(time.monotonic() < end, f"{len(load.answers)} streams in 600 s")
            before, began = {name_of(pod) for pod in pods()}, time.monotonic()
            kubectl("rollout", "restart", "deployment/pinion")
            kubectl("rollout", "status", "deployment/pinion", "--timeout", "120s", seconds=150)
            took.append(time.monotonic() - began)
            after = wait("pods", settled, 90)
            expect(not before & {name_of(pod) for pod in after}, "a pod was not replaced")
            replaced += len(before)
    except BaseException:
        load.end()
        raise
    whole(load, f"{len(took)} rollouts of {min(took):.1f} to {max(took):.1f} s, {replaced} pods replaced")


def main_pid(pod):
    """Of the container, as the node sees it."""
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("docker://")
    words = [*DOCKER, "inspect", "--format", "{{.State.Pid}}", container]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def restarts(pod):
    return pod["status"]["containerStatuses"][0]["restartCount"]


def engines_die(port):
    """The launcher replaces a role: the kubelet must not see it, nor a client."""
    load = Load(port, CLIENTS, TOKENS)
    try:
        wait("streams", lambda: len(load.answers) >= 2 * CLIENTS, 60)
        for pod in pods():
            engines = [pid for pid in family(main_pid(pod))
                       if b"pinion-engine-0" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
            expect(len(engines) == 1, f"{name_of(pod)} has {len(engines)} engines")
            os.kill(engines[0], signal.SIGKILL)
        count = len(load.answers)
        wait("streams after it", lambda: len(load.answers) >= count + 4 * CLIENTS, 60)
    except BaseException:
        load.end()
        raise
    whole(load, "the engine of each pod killed")
    expect(all(restarts(pod) == 0 for pod in pods()), "the kubelet has restarted a container")


def container_dies():
    pod = pods()[0]

    def back():
        now = get("pod", name_of(pod))
        return restarts(now) == 1 and is_ready(now) and now

    began = time.monotonic()
    os.kill(main_pid(pod), signal.SIGKILL)
    now = wait("the container", back, 120)
    seconds = time.monotonic() - began
    say(f"a container killed (SIGKILL): restarted by the kubelet, Ready again after {seconds:.1f} s")
    last = now["status"]["containerStatuses"][0]["lastState"]["terminated"]
    expect(last["exitCode"] == 137, f"it ended with {last}")
    answer(now)


def warnings():
    """Of the whole run: what the cluster complains of, and how often. Not of the node: it reads the kernel's log, which has
    what was before it."""
    counts = collections.Counter()
    for one in get("events")["items"]:
        if one["type"] == "Warning" and one["involvedObject"]["kind"] != "Node":
            counts[one["reason"]] += one.get("count") or 1
    told = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
    say(f"warnings among the events of the pods: {told or 'none'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smg", required=True)
    parser.add_argument("--streams", type=int, default=1000)
    arguments = parser.parse_args()
    heading()
    install()
    hardening()
    answers()
    router = start_router(arguments.smg)
    rollouts(router.port, arguments.streams)
    engines_die(router.port)
    router.end()
    container_dies()
    warnings()
    say("kubernetes: passed")


if __name__ == "__main__":
    main()
