#!/usr/bin/env python3
"""Renders the chart over several values and checks what comes out:

    deploy/helm/check.py [--pinion PROGRAM] [--inference-pool-crd FILE] [--llm-d FOLDER]

Needs helm-python-sdk (Helm itself as a library), kubernetes-validate and jsonschema from PyPI. Every object is held against
the schemas of Kubernetes, strictly; every pinion.toml is read by PROGRAM. InferencePool is checked against the CRD of the
Gateway API Inference Extension if its file is given. ScaledObject and PodMonitor are read, not checked. With a clone of
llm-d/llm-d-router its gateway chart is rendered over llm-d-values.yaml and must fit what our chart renders.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import tempfile
import urllib.parse

import jsonschema
import kubernetes_validate
import yaml
from helm_python import Chart, HelmError, lint

CHART = pathlib.Path(__file__).resolve().parent / "pinion"
# The oldest that the chart is for and the newest that the schemas know.
KUBERNETES = ["1.25", "1.33", "1.37"]
# Of other projects: their schemas are not in Kubernetes.
FOREIGN = {"ScaledObject", "PodMonitor", "InferencePool"}

COLLECTOR = {"to": [{"podSelector": {"matchLabels": {"app": "collector"}}}], "ports": [{"port": 4318, "protocol": "TCP"}]}
ALWAYS = {"ConfigMap", "Deployment", "Service", "ServiceAccount", "PodDisruptionBudget"}
CASES = [
    ("defaults", {}, ALWAYS),
    ("everything", {
        "model": {"path": "/models/llama", "existingClaim": "models"},
        "servedModelName": 'a "quoted" name',
        "config": {"max-num-seqs": 16, "prefix-cache": False, "log-format": "json", "max-inflight": 200, "stream-interval": 2,
                   "otlp-traces-endpoint": "http://collector:4318"},
        "extraArgs": ["--log", "debug"],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "apiKey": {"existingSecret": "keys"}, "hubToken": {"existingSecret": "hub"},
        "imagePullSecrets": [{"name": "registry"}],
        "resources": {"requests": {"cpu": "8", "memory": "32Gi"}, "limits": {"cpu": "8", "memory": "32Gi"}},
        "podLabels": {"team": "a"}, "podAnnotations": {"note": "b"}, "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "dedicated", "operator": "Exists"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                                       "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "pinion"}}}],
        "priorityClassName": "high", "runtimeClassName": "runc",
        "autoscaling": {"kind": "keda"}, "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "networkPolicy": {"enabled": True, "allowHub": True, "ingressFrom": [{"namespaceSelector": {}}], "egress": [COLLECTOR]},
        "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}}, "kvEvents": {"enabled": True},
    }, ALWAYS | {"ScaledObject", "PodMonitor", "NetworkPolicy", "InferencePool"}),
    ("hpa", {"autoscaling": {"kind": "hpa", "maxReplicas": 8}, "networkPolicy": {"enabled": True}},
     ALWAYS | {"HorizontalPodAutoscaler", "NetworkPolicy"}),
    ("hub", {"model": {"path": "Org-1/name.x@v1"}, "hubToken": {"existingSecret": "hub"}, "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://p"}]},
     ALWAYS),
    ("host path", {"model": {"path": "/models/x", "hostPath": "/srv/models"}, "pdb": {"enabled": False},
                   "serviceAccount": {"create": False}, "service": {"type": "LoadBalancer", "headless": False}},
     ALWAYS - {"ServiceAccount", "PodDisruptionBudget"}),
]
REFUSED = [
    ("an unknown value", {"replicas": 2}),
    ("an option that the chart sets itself", {"config": {"port": 80}}),
    ("two volumes", {"model": {"path": "/m", "existingClaim": "a", "hostPath": "/b"}}),
    ("a pool without a picker", {"inferencePool": {"enabled": True}}),
    ("KV events of a model without a name", {"kvEvents": {"enabled": True}}),
    ("no replica, which no metric would bring back", {"autoscaling": {"minReplicas": 0}}),
    ("KV events beside those of the chart", {"config": {"kv-events": "tcp://*:1"}}),
    ("their replay, which has no port", {"config": {"kv-events-replay": "tcp://*:1"}}),
    ("their topic, which differs from pod to pod", {"config": {"kv-events-topic": "kv@"}}),
    ("an unknown autoscaler", {"autoscaling": {"kind": "cpu"}}),
]


def expect(holds, what):
    if not holds:
        raise SystemExit(f"chart: {what}")


def check_pod(name, deployment, values):
    """What the strict schemas do not ask for."""
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    # Of the hub only: the probes count from the end of the download.
    pulls = pod.get("initContainers", [])
    expect([pull["args"][0] for pull in pulls] == ["pull"] * (name == "hub"), f"{name}: init containers {pulls}")
    for one in [container, *pulls]:
        security = one["securityContext"]
        hardened = security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
        expect(hardened and security["capabilities"]["drop"] == ["ALL"] and pod["securityContext"]["runAsNonRoot"], f"{name}: hardening")
        downloads = {variable["name"] for variable in one["env"]} >= {"HF_HOME", *(["HF_TOKEN", "HTTPS_PROXY"] if name == "hub" else [])}
        expect(downloads and "/var/cache/pinion" in [mount["mountPath"] for mount in one["volumeMounts"]], f"{name}: {one}")
    expect(pod["enableServiceLinks"] is False, f"{name}: variables of the namespace's services reach the options")
    probes = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    expect(probes == ["/ready", "/ready", "/live"], f"{name}: probes {probes}")
    drain = values.get("drain", {"delaySeconds": 5, "timeoutSeconds": 30})
    grace = pod["terminationGracePeriodSeconds"]
    expect(grace > drain["delaySeconds"] + drain["timeoutSeconds"], f"{name}: killed after {grace} s")
    selector = deployment["spec"]["selector"]["matchLabels"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    expect(selector.items() <= labels.items(), f"{name}: the selector does not find the pods")
    if values.get("kvEvents", {}).get("enabled"):
        check_topic(name, container, values["servedModelName"])
    scaled = values.get("autoscaling", {}).get("kind", "none") != "none"
    expect(("replicas" in deployment["spec"]) != scaled, f"{name}: two who set the number of replicas")


def check_topic(name, container, model):
    """llm-d reads kv@POD@MODEL. The kubelet fills in variables that stand further up."""
    environment = {one["name"]: one for one in container["env"]}
    names = list(environment)
    expect(environment["PINION_KV_EVENTS_TOPIC"]["value"] == f"kv@$(POD_IP)@{model}" and
           environment["POD_IP"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP" and
           names.index("POD_IP") < names.index("PINION_KV_EVENTS_TOPIC"), f"{name}: the topic of KV events in {environment}")


def check_options(name, text, pinion):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        # A folder that is there; of the rest every name and value is read.
        lines = [line for line in text.splitlines() if not line.startswith("model = ")]
        file.write("\n".join(lines) + "\n")
        file.flush()
        run = subprocess.run([pinion, "config", "show", "--config", file.name], capture_output=True, text=True)
    expect(run.returncode == 0, f"{name}: pinion.toml is refused:\n{run.stderr}")
    expect(re.search(r"^drain-delay +5s ", run.stdout, re.M), f"{name}: the options do not take effect:\n{run.stdout}")


def check_object(one, pool_schema):
    """How many schemas it was held against."""
    if one["kind"] == "InferencePool" and pool_schema:
        jsonschema.validate(one, pool_schema)
        return 1
    if one["kind"] in FOREIGN:
        return 0
    for version in KUBERNETES:
        kubernetes_validate.validate(one, version, strict=True)
    return 1


def files_of(chart, values, name):
    with Chart.load(str(chart)) as loaded:
        return loaded.render(values, name=name, namespace="models")


def rendered(chart, values, name):
    files = files_of(chart, values, name)
    return [one for path, text in files.items() if not path.endswith("NOTES.txt") for one in yaml.safe_load_all(text) if one]


def check_notes():
    """A pod without a limit of CPU plans for the whole node, and the notes say so."""
    for limits, warned in (({}, False), ({"cpu": None}, True)):
        files = files_of(CHART, {"resources": {"limits": limits}}, "try")
        notes = next(text for path, text in files.items() if path.endswith("NOTES.txt"))
        expect(("WARNING: resources.limits.cpu" in notes) == warned, f"notes with the limits {limits}:\n{notes}")


def check_picker(config, sources):
    """Of the endpoint picker's own file: each plugin exists in the sources and each reference names one that is declared."""
    declared = {plugin.get("name", plugin["type"]) for plugin in config["plugins"]}
    unknown = {plugin["type"] for plugin in config["plugins"] if f'"{plugin["type"]}"' not in sources}
    expect(not unknown, f"llm-d has no plugin {sorted(unknown)}")
    used = {ref["pluginRef"] for profile in config["schedulingProfiles"] for ref in profile["plugins"]}
    for source in config["dataLayer"]["sources"]:
        used |= {source["pluginRef"], *(ref["pluginRef"] for ref in source["extractors"])}
    expect(used <= declared, f"llm-d: {sorted(used - declared)} is not declared")


def check_llm_d(folder, pool_schema):
    """Its chart with our values, beside our chart: names, labels and ports must meet."""
    ours = rendered(CHART, {"kvEvents": {"enabled": True}, "servedModelName": "MODEL"}, "pinion")
    of = {one["kind"]: one for one in ours if one["kind"] == "Deployment" or one["metadata"]["name"] == "pinion"}
    pod = of["Deployment"]["spec"]["template"]
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    values = yaml.safe_load((CHART.parent / "llm-d-values.yaml").read_text())
    with tempfile.TemporaryDirectory() as work:
        chart = pathlib.Path(work) / "llm-d-router-gateway"
        shutil.copytree(folder / "config/charts/llm-d-router-gateway", chart)
        shutil.copytree(folder / "config/charts/routerlib", chart / "charts/routerlib")
        theirs = rendered(chart, values, "picker")
    checked = sum(check_object(one, pool_schema) for one in theirs)
    pool = next(one for one in theirs if one["kind"] == "InferencePool")["spec"]
    expect(pool["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items(), "llm-d's pool does not select our pods")
    expect([port["number"] for port in pool["targetPorts"]] == [ports["http"]], "llm-d's pool has another port than our pods")
    services = {one["metadata"]["name"] for one in theirs if one["kind"] == "Service"}
    expect(pool["endpointPickerRef"]["name"] in services, f"llm-d's pool names a picker that is none of {sorted(services)}")
    used = values["router"]["epp"]
    files = next(one["data"] for one in theirs if one["kind"] == "ConfigMap" and used["pluginsConfigFile"] in one["data"])
    config = yaml.safe_load(files[used["pluginsConfigFile"]])
    sources = "".join(path.read_text() for path in sorted(folder.glob("pkg/**/*.go")) if not path.name.endswith("_test.go"))
    check_picker(config, sources)
    parameters = {plugin["type"]: plugin.get("parameters", {}) for plugin in config["plugins"]}
    url = urllib.parse.urlparse(parameters["token-producer"]["vllm"]["url"])
    service = of["Service"]
    expect((url.hostname, url.port) == ("pinion", service["spec"]["ports"][0]["port"]), f"llm-d asks {url.netloc} for token ids")
    # It connects to the engines' default port and reads topics that begin so.
    expect(ports["kv-events"] == 5557 and 'kv-events = "tcp://*:5557"' in of["ConfigMap"]["data"]["pinion.toml"], "KV events")
    # What requests call the model is also what the picker asks for token ids of.
    check_topic("llm-d", pod["spec"]["containers"][0], parameters["token-producer"]["modelName"])
    return checked


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pinion")
    parser.add_argument("--inference-pool-crd", type=pathlib.Path)
    parser.add_argument("--llm-d", type=pathlib.Path)
    arguments = parser.parse_args()
    pool_schema = None
    if arguments.inference_pool_crd:
        versions = yaml.safe_load(arguments.inference_pool_crd.read_text())["spec"]["versions"]
        pool_schema = next(version["schema"]["openAPIV3Schema"] for version in versions if version["name"] == "v1")
    checked = 0
    for name, values, kinds in CASES:
        report = lint(str(CHART), values, strict=True)
        worst = [message for message in report.get("messages", []) if "icon" not in str(message)]
        expect(not worst, f"{name}: lint: {worst}")
        objects = rendered(CHART, values, "try")
        found = {one["kind"] for one in objects}
        expect(found == kinds, f"{name}: rendered {sorted(found)}")
        for one in objects:
            checked += check_object(one, pool_schema)
            if one["kind"] == "Deployment":
                check_pod(name, one, values)
            if one["kind"] == "ScaledObject":
                query = one["spec"]["triggers"][0]["metadata"]["query"]
                pods = re.compile(re.search(r'pod=~"([^"]*)"', query).group(1))
                expect(pods.fullmatch("try-pinion-6f9c7b4d58-x2x9z") and not pods.fullmatch("try-pinion-qwen-6f9c7b4d58-x2x9z"),
                       f"{name}: KEDA counts the pods {pods.pattern}")
            if one["kind"] == "PodMonitor":
                # The alerts ask for job="pinion".
                job = one["spec"].get("jobLabel")
                expect(one["spec"]["selector"]["matchLabels"][job] == "pinion", f"{name}: Prometheus's job is the label {job}")
            if one["kind"] == "NetworkPolicy":
                added = values["networkPolicy"].get("egress", [])
                expect([rule for rule in one["spec"]["egress"] if rule in added] == added, f"{name}: a rule of egress is missing")
            if one["kind"] == "ConfigMap" and arguments.pinion:
                check_options(name, one["data"]["pinion.toml"], arguments.pinion)
    check_notes()
    for name, values in REFUSED:
        try:
            with Chart.load(str(CHART)) as chart:
                chart.validate_schema(values)
        except HelmError:
            continue
        raise SystemExit(f"chart: {name} is taken")
    if arguments.llm_d:
        print(f"llm-d: {check_llm_d(arguments.llm_d, pool_schema)} objects of its chart pass and fit ours")
    print(f"chart: {checked} objects of {len(CASES)} renderings pass, {len(REFUSED)} wrong values are refused")


if __name__ == "__main__":
    main()
