"""Runs `pinion bench scheduler --simulate` and reads its figures."""
import json
import pathlib
import subprocess
import tempfile


def simulate(pinion, *flags):
    """One record for each number of replicas and routing, in the order of the flags; admission is the service's default."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "simulated.json"
        command = [str(word) for word in (pinion, "bench", "scheduler", "--simulate", "--admissions", "fifo", "--json", out, *flags)]
        run = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if run.returncode != 0:
            raise SystemExit(f"{' '.join(command)}:\n{run.stderr.strip()}")
        return json.loads(out.read_text())
