#!/usr/bin/env python3
"""Writes what a package holds as CycloneDX 1.5 JSON: the crates that the programs are made of, with their licences, and
libtorch with the libraries that it brings.

`cargo metadata` reads the crates of the whole workspace. A build of the programs alone has not downloaded all of them:
then `cargo fetch` does so first, and nothing is asked of the network otherwise.
"""
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Wheels whose libraries deploy/release/stage.sh takes.
WHEELS = {
    "torch": {"expression": "BSD-3-Clause"},
    "nvidia-cuda-runtime": {"license": {"name": "NVIDIA Software License Agreement, libtorch/LICENSE.nvidia"}},
    "nvidia-cuda-cupti": {"license": {"name": "NVIDIA Software License Agreement, libtorch/LICENSE.nvidia"}},
}


def metadata():
    words = ["cargo", "metadata", "--locked", "--offline", "--filter-platform", "x86_64-unknown-linux-gnu", "--format-version", "1"]
    run = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if run.returncode != 0:
        subprocess.run(["cargo", "fetch", "--locked", "--target", "x86_64-unknown-linux-gnu"], cwd=ROOT)
        run = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE)
    if run.returncode != 0:
        sys.exit("sbom: cargo metadata fails (see above)")
    return json.loads(run.stdout)


def reached(graph, roots):
    """The packages that the programs are compiled from, without what only builds or tests them."""
    packages = {package["id"]: package for package in graph["packages"]}
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    stack, seen = [key for key, package in packages.items() if package["name"] in roots], set()
    while stack:
        key = stack.pop()
        if key not in seen:
            seen.add(key)
            stack.extend(dep["pkg"] for dep in nodes[key]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"]))
    return sorted((packages[key] for key in seen), key=lambda package: (package["name"], package["version"]))


def crate(package, checksums):
    purl = f"pkg:cargo/{package['name']}@{package['version']}"
    # The slash is how older crates say OR.
    licences = [{"expression": (package["license"] or "NOASSERTION").replace("/", " OR ")}]
    entry = {"type": "library", "bom-ref": purl, "name": package["name"], "version": package["version"], "purl": purl,
             "licenses": licences}
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return entry


def libraries(setup):
    torch = re.search(r"^TORCH_VERSION=(\S+)", setup, re.M).group(1)
    wheels = re.search(r"^SLIM_WHEELS=\((.*?)\)", setup, re.M | re.S).group(1).replace("$TORCH_VERSION", torch)
    for name, version in (wheel.split("==") for wheel in wheels.split()):
        if name in WHEELS:
            purl = f"pkg:pypi/{name}@{version}"
            yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "licenses": [WHEELS[name]]}
    yield {"type": "library", "bom-ref": "libgomp", "name": "libgomp", "description": "GCC's OpenMP runtime, as it is in the wheel torch",
           "licenses": [{"expression": "GPL-3.0-or-later WITH GCC-exception-3.1"}]}


def main():
    lock_bytes = (ROOT / "Cargo.lock").read_bytes()
    checksums = {(one["name"], one["version"]): one.get("checksum") for one in tomllib.loads(lock_bytes.decode())["package"]}
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    setup = (ROOT / "deploy/setup.sh").read_text()
    roots = {f"pinion-{name}" for name in re.search(r"^PACKAGES=\((.*?)\)", setup, re.M | re.S).group(1).split()}
    components = [crate(package, checksums) for package in reached(metadata(), roots)]
    components += libraries(setup)
    # A number that follows from the content: the same tree gives the same file.
    digest = hashlib.sha256(lock_bytes + setup.encode() + version.encode()).hexdigest()
    serial = "-".join([digest[:8], digest[8:12], "5" + digest[13:16], "8" + digest[17:20], digest[20:32]])
    print(json.dumps({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": "pinion", "name": "pinion", "version": version}},
        "components": components,
    }, indent=1))


if __name__ == "__main__":
    main()
