"""Runs the recipes of docs/RECIPES.md against BASE_URL as they stand there and compares what they print.

A recipe is a section with a comment `<!-- recipe: SET -->`, where SET is what install.sh installs, or `none`. Of its
blocks, `yaml` is the file that the comment before it names, `bash background` is a command that the recipe needs while
it runs, one of `python`, `javascript` and `bash` is the recipe, and `text` what it prints, where `..` is anything. The
versions in the line `Run with` must be those of SET. Only addresses are replaced. A comment `<!-- recipe: SET, pools -->`
is of a service whose model pools: with --pools only those run, and otherwise only the others. With names as arguments,
only those sections."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[3] / "docs" / "RECIPES.md"
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"(?:<!-- file: (\S+) -->\n)?^```(\w+)( background)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE_S = 300


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def installed(name: str) -> str:
    done = subprocess.run([HERE / "install.sh", name], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def versions(name: str) -> dict[str, str]:
    """What a set has, by name."""
    if name == "node":
        return json.loads((HERE / "requirements/node/package.json").read_text())["dependencies"]
    text = (HERE / f"requirements/{name}.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)", text, re.MULTILINE))


def check_versions(section: str, name: str) -> None:
    line = re.search(r"^Run with (.*?)\.$", section, re.MULTILINE | re.DOTALL)
    assert line, "a recipe says `Run with NAME VERSION.`"
    for package, version in re.findall(r"([\w@/-]+) (\d[\w.]*)", line[1]):
        assert versions(name).get(package) == version, f"{package} {version} is not in the set {name}: {versions(name).get(package)}"


def wait_for_port(port: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None and time.monotonic() < deadline, "the command in the background did not start"
        time.sleep(0.2)


def run(section: str, name: str) -> None:
    root = os.environ["BASE_URL"].removesuffix("/v1")
    port = free_port()
    environment = dict(os.environ)
    blocks = BLOCK.findall(section.replace("http://127.0.0.1:8000", root).replace("4000", str(port)))
    with tempfile.TemporaryDirectory() as folder:
        if name == "node":
            Path(folder, "node_modules").symlink_to(Path(installed(name), "node_modules"))
        elif name != "none":
            target = installed(name)
            environment |= {"PYTHONPATH": target, "PATH": f"{target}/bin:{environment['PATH']}"}
        background, commands, expected = None, [], ""
        for file, language, is_background, text in blocks:
            if file:
                Path(folder, file).write_text(text)
            elif is_background:
                background = ["bash", "-c", f"exec {text}"]
            elif language == "text":
                expected = text
            else:
                path = Path(folder, {"python": "recipe.py", "javascript": "recipe.mjs", "bash": "recipe.sh"}[language])
                path.write_text(text)
                commands.append([{"python": sys.executable, "javascript": "node", "bash": "bash"}[language], str(path)])
        [command] = commands
        process = None
        try:
            if background:
                process = subprocess.Popen(background, cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL, start_new_session=True)
                wait_for_port(port, process)
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
        finally:
            if process:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(60)
    pattern = ".*?".join(re.escape(part) for part in expected.rstrip().split(".."))
    said = done.stdout.rstrip()
    if done.returncode != 0 or not re.fullmatch(pattern, said, re.DOTALL):
        raise AssertionError(f"exit code {done.returncode}\nprinted:\n{said}\nexpected:\n{expected}{done.stderr[-3000:]}")


names = [name for name in sys.argv[1:] if name != "--pools"]
ran, failed = [], []
for title, section in SECTION.findall(PAGE.read_text()):
    mark = re.search(r"^<!-- recipe: (\w+)(, pools)? -->$", section, re.MULTILINE)
    if not mark or bool(mark[2]) != ("--pools" in sys.argv) or (names and title not in names):
        continue
    ran.append(title)
    try:
        if mark[1] != "none":
            check_versions(section, mark[1])
        run(section, mark[1])
        print(f"recipe {title}: ok", flush=True)
    except Exception as error:
        failed.append(title)
        print(f"recipe {title}: {error}", flush=True)
assert ran, "there is no such recipe in docs/RECIPES.md"
sys.exit(1 if failed else 0)
