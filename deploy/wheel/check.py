#!/usr/bin/env python3
"""Installs the wheel beside the wheel of torch in a new environment and serves the demo model:

    deploy/wheel/check.py WHEEL [--torch-from SITE_PACKAGES]

pip downloads torch and the two NVIDIA wheels that its CPU half links (550 MB), or they are links to those in SITE_PACKAGES. No
variable leads to libtorch; the engine must have mapped the one of this environment.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
TORCH = re.search(r"^TORCH_VERSION=(\S+)", (ROOT / "deploy/setup.sh").read_text(), re.M).group(1)
SLIM = re.search(r"^SLIM_WHEELS=\((.*?)\)", (ROOT / "deploy/setup.sh").read_text(), re.M | re.S).group(1)


def fail(what):
    raise SystemExit(f"wheel: {what}")


def torch_into(pip, site, source):
    if source is None:
        wheels = [wheel for wheel in SLIM.replace("$TORCH_VERSION", TORCH).split() if "crt" not in wheel and "cccl" not in wheel]
        subprocess.run([*pip, "install", "--quiet", "--no-deps", *wheels], check=True)
        return
    # The libraries find each other by paths relative to their own: real folders, linked files.
    def link(file, to):
        try:
            os.link(file, to)
        except OSError:
            shutil.copy2(file, to)

    for folder in ("torch/lib", "nvidia/cu13/lib"):
        shutil.copytree(source / folder, site / folder, copy_function=link)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--torch-from", type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.wheel.resolve().parent) as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        bin_folder = pathlib.Path(folder) / "bin"
        pip = [str(bin_folder / "python"), "-m", "pip", "--disable-pip-version-check"]
        site = next(pathlib.Path(folder).glob("lib/python3*/site-packages"))
        torch_into(pip, site, arguments.torch_from)
        subprocess.run([*pip, "install", "--quiet", "--no-deps", str(arguments.wheel)], check=True)
        environment = {"PATH": "/usr/bin:/bin"}
        server = subprocess.Popen([str(bin_folder / "pinion"), "serve", str(ROOT / "deploy/demo-model"), "--port", "0", "--no-pin"],
                                  stderr=subprocess.PIPE, text=True, env=environment)
        try:
            address, log = None, []
            for line in server.stderr:
                log.append(line)
                if line.startswith("pinion is ready: "):
                    address = line.split()[3]
                    break
            if address is None:
                fail("it did not start:\n" + "".join(log))
            body = json.dumps({"prompt": "ROMEO:", "max_tokens": 8, "temperature": 0}).encode()
            request = urllib.request.Request(f"{address}/v1/completions", body, {"content-type": "application/json"})
            answer = json.load(urllib.request.urlopen(request, timeout=60))
            if answer["usage"]["completion_tokens"] != 8:
                fail(f"an answer of {answer}")
            engine = re.search(r"started peer=engine-0 pid=(\d+)", "".join(log)).group(1)
            mapped = {line.split()[-1] for line in pathlib.Path(f"/proc/{engine}/maps").read_text().splitlines() if "libtorch_cpu" in line}
            if mapped != {str(site.resolve() / "torch/lib/libtorch_cpu.so")}:
                fail(f"the engine has mapped {mapped}")
            server.send_signal(signal.SIGTERM)
            # Nothing may wait for a log that is not read.
            server.stderr.close()
            if server.wait(timeout=60) != 0:
                fail(f"it ended with {server.returncode}")
            subprocess.run([*pip, "uninstall", "--quiet", "--yes", "pinion-serve"], check=True)
            if (site / "pinion_serve").exists() or (bin_folder / "pinion").exists():
                fail("files are left after pip uninstall")
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()
    print(f"wheel: {arguments.wheel.name} serves with the libtorch of its environment")


if __name__ == "__main__":
    main()
