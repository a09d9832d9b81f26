#!/usr/bin/env python3
"""Renders the chart over several values and checks what comes out:

    deploy/helm/check.py [--pinion PROGRAM] [--inference-pool-crd FILE]

Needs helm-python-sdk (Helm itself as a library), kubernetes-validate and jsonschema from PyPI. Every object is held against
the schemas of Kubernetes, strictly; every pinion.toml is read by PROGRAM. InferencePool is checked against the CRD of the
Gateway API Inference Extension if its file is given. ScaledObject and PodMonitor are read, not checked.
"""
import argparse
import pathlib
import re
import subprocess
import tempfile

import jsonschema
import kubernetes_validate
import yaml
from helm_python import Chart, HelmError, lint

CHART = pathlib.Path(__file__).resolve().parent / "pinion"
# The oldest that the chart is for and the newest that the schemas know.
KUBERNETES = ["1.25", "1.33", "1.37"]
# Of other projects: their schemas are not in Kubernetes.
FOREIGN = {"ScaledObject", "PodMonitor", "InferencePool"}

ALWAYS = {"ConfigMap", "Deployment", "Service", "ServiceAccount", "PodDisruptionBudget"}
CASES = [
    ("defaults", {}, ALWAYS),
    ("everything", {
        "model": {"path": "/models/llama", "existingClaim": "models"},
        "servedModelName": 'a "quoted" name',
        "config": {"max-num-seqs": 16, "prefix-cache": False, "log-format": "json", "max-inflight": 200, "stream-interval": 2},
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
        "networkPolicy": {"enabled": True, "allowHub": True, "ingressFrom": [{"namespaceSelector": {}}]},
        "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}},
    }, ALWAYS | {"ScaledObject", "PodMonitor", "NetworkPolicy", "InferencePool"}),
    ("hpa", {"autoscaling": {"kind": "hpa", "maxReplicas": 8}, "networkPolicy": {"enabled": True}},
     ALWAYS | {"HorizontalPodAutoscaler", "NetworkPolicy"}),
    ("host path", {"model": {"path": "/models/x", "hostPath": "/srv/models"}, "pdb": {"enabled": False},
                   "serviceAccount": {"create": False}, "service": {"type": "LoadBalancer", "headless": False}},
     ALWAYS - {"ServiceAccount", "PodDisruptionBudget"}),
]
REFUSED = [
    ("an unknown value", {"replicas": 2}),
    ("an option that the chart sets itself", {"config": {"port": 80}}),
    ("two volumes", {"model": {"path": "/m", "existingClaim": "a", "hostPath": "/b"}}),
    ("a pool without a picker", {"inferencePool": {"enabled": True}}),
    ("an unknown autoscaler", {"autoscaling": {"kind": "cpu"}}),
]


def expect(holds, what):
    if not holds:
        raise SystemExit(f"chart: {what}")


def check_pod(name, deployment, values):
    """What the strict schemas do not ask for."""
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    security = container["securityContext"]
    hardened = security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"]
    expect(hardened and security["capabilities"]["drop"] == ["ALL"] and pod["securityContext"]["runAsNonRoot"], f"{name}: hardening")
    probes = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")]
    expect(probes == ["/ready", "/ready", "/live"], f"{name}: probes {probes}")
    drain = values.get("drain", {"delaySeconds": 5, "timeoutSeconds": 30})
    grace = pod["terminationGracePeriodSeconds"]
    expect(grace > drain["delaySeconds"] + drain["timeoutSeconds"], f"{name}: killed after {grace} s")
    selector = deployment["spec"]["selector"]["matchLabels"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    expect(selector.items() <= labels.items(), f"{name}: the selector does not find the pods")
    scaled = values.get("autoscaling", {}).get("kind", "none") != "none"
    expect(("replicas" in deployment["spec"]) != scaled, f"{name}: two who set the number of replicas")


def check_options(name, text, pinion):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        # A folder that is there; of the rest every name and value is read.
        lines = [line for line in text.splitlines() if not line.startswith("model = ")]
        file.write("\n".join(lines) + "\n")
        file.flush()
        run = subprocess.run([pinion, "config", "show", "--config", file.name], capture_output=True, text=True)
    expect(run.returncode == 0, f"{name}: pinion.toml is refused:\n{run.stderr}")
    expect(re.search(r"^drain-delay +5s ", run.stdout, re.M), f"{name}: the options do not take effect:\n{run.stdout}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pinion")
    parser.add_argument("--inference-pool-crd", type=pathlib.Path)
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
        with Chart.load(str(CHART)) as chart:
            files = chart.render(values, name="try", namespace="models")
        objects = [one for path, text in files.items() if not path.endswith("NOTES.txt") for one in yaml.safe_load_all(text) if one]
        found = {one["kind"] for one in objects}
        expect(found == kinds, f"{name}: rendered {sorted(found)}")
        for one in objects:
            if one["kind"] not in FOREIGN:
                for version in KUBERNETES:
                    kubernetes_validate.validate(one, version, strict=True)
                checked += 1
            if one["kind"] == "InferencePool" and pool_schema:
                jsonschema.validate(one, pool_schema)
                checked += 1
            if one["kind"] == "Deployment":
                check_pod(name, one, values)
            if one["kind"] == "ConfigMap" and arguments.pinion:
                check_options(name, one["data"]["pinion.toml"], arguments.pinion)
    for name, values in REFUSED:
        try:
            with Chart.load(str(CHART)) as chart:
                chart.validate_schema(values)
        except HelmError:
            continue
        raise SystemExit(f"chart: {name} is taken")
    print(f"chart: {checked} objects of {len(CASES)} renderings pass, {len(REFUSED)} wrong values are refused")


if __name__ == "__main__":
    main()
