#!/usr/bin/env python3
"""Writes what the programs are made of as CycloneDX 1.5 JSON: the crates of Cargo.lock, and libtorch.

Reads Cargo.lock of this tree only; starts nothing and asks no network.
"""
import hashlib
import json
import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def reached(packages, roots):
    """The packages that the programs link: no tools, no tests of the workspace. Tests of a crate are in it, too."""
    by_name = {}
    for package in packages:
        by_name.setdefault(package["name"], []).append(package)
    seen, stack = {}, list(roots)
    while stack:
        name, _, version = stack.pop().partition(" ")
        for package in by_name[name]:
            key = (package["name"], package["version"])
            if (not version or package["version"] == version.split(" ")[0]) and key not in seen:
                seen[key] = package
                stack.extend(package.get("dependencies", []))
    return [seen[key] for key in sorted(seen)]


def component(package):
    purl = f"pkg:cargo/{package['name']}@{package['version']}"
    entry = {"type": "library", "bom-ref": purl, "name": package["name"], "version": package["version"], "purl": purl}
    if "checksum" in package:
        entry["hashes"] = [{"alg": "SHA-256", "content": package["checksum"]}]
    return entry


def main():
    lock_bytes = (ROOT / "Cargo.lock").read_bytes()
    packages = tomllib.loads(lock_bytes.decode())["package"]
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    roles = ["launcher", "frontend", "tokenizer", "engine", "detokenizer", "hub"]
    components = [component(package) for package in reached(packages, [f"pinion-{role}" for role in roles])]
    torch = re.search(r"^TORCH_VERSION=(\S+)", (ROOT / "deploy/setup.sh").read_text(), re.M).group(1)
    purl = f"pkg:pypi/torch@{torch}"
    components.append({"type": "library", "bom-ref": purl, "name": "torch", "version": torch, "purl": purl})
    # A number that follows from the content: the same tree gives the same file.
    digest = hashlib.sha256(lock_bytes + version.encode()).hexdigest()
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
