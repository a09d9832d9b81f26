#!/usr/bin/env python3
"""Installs the Debian package where systemd is PID 1 and runs its unit:

    DOCKER="docker -H unix:///..." deploy/systemd/check.py IMAGE PACKAGE

IMAGE is Debian with systemd (debootstrap --include=systemd,systemd-sysv,dbus). It looks at: verify without a warning, the start that is
notified, a watchdog that is fed and one that strikes, `systemctl stop` and a package's upgrade under load without a token lost, a kill
of the main process, a start that fails again and again, and a purge that leaves nothing.
"""
import os
import pathlib
import shlex
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from checks import CLIENT, STREAMS, TOKENS

DOCKER = shlex.split(os.environ.get("DOCKER", "docker"))
SYSTEMD = ["--cap-add", "SYS_ADMIN", "--security-opt", "seccomp=unconfined", "--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp",
           "--volume", "/sys/fs/cgroup:/sys/fs/cgroup:ro"]
METRICS = "exec 3<>/dev/tcp/127.0.0.1/8000; printf 'GET /metrics/load HTTP/1.0\\r\\nhost: localhost\\r\\n\\r\\n' >&3; cat <&3"


class Machine:
    def __init__(self, image, package):
        run = subprocess.run([*DOCKER, "run", "--detach", *SYSTEMD, image, "/sbin/init"], capture_output=True, text=True)
        if run.returncode != 0:
            raise SystemExit(f"systemd: {run.stderr}")
        self.id = run.stdout.strip()
        subprocess.run([*DOCKER, "cp", package, f"{self.id}:/var/tmp/pinion.deb"], check=True, capture_output=True)

    def do(self, line, may_fail=False):
        run = subprocess.run([*DOCKER, "exec", self.id, "bash", "-c", line], capture_output=True, text=True, timeout=300)
        if run.returncode != 0 and not may_fail:
            self.fail(f"`{line}` ended with {run.returncode}: {run.stdout[-800:]}{run.stderr[-800:]}")
        return run.stdout + run.stderr

    def show(self, name):
        return self.do(f"systemctl show --value --property={name} pinion").strip()

    def wait(self, what, look, seconds=90):
        end = time.monotonic() + seconds
        while not look():
            if time.monotonic() > end:
                self.fail(f"{what}: not within {seconds} s")
            time.sleep(0.2)

    def fail(self, what):
        log = subprocess.run([*DOCKER, "exec", self.id, "journalctl", "--unit", "pinion", "--lines", "40", "--no-pager"],
                             capture_output=True, text=True)
        self.end()
        raise SystemExit(f"systemd: {what}\n{log.stdout}{log.stderr}")

    def end(self):
        subprocess.run([*DOCKER, "rm", "--force", self.id], capture_output=True)

    def under_load(self, line):
        """Runs `line` while streams are open; each must be whole."""
        clients = subprocess.Popen([*DOCKER, "exec", self.id, "bash", "-c", CLIENT], stdout=subprocess.PIPE, text=True)
        self.wait("streams", lambda: f"\npinion_requests_running {STREAMS}\n" in self.do(METRICS, may_fail=True))
        self.do(line)
        said, _ = clients.communicate(timeout=90)
        if said.split() != ["whole"] * STREAMS:
            self.fail(f"{line}: {said}")


def main():
    machine = Machine(*sys.argv[1:3])
    try:
        machine.wait("systemd", lambda: "running" in machine.do("systemctl is-system-running", may_fail=True) or
                     "degraded" in machine.do("systemctl is-system-running", may_fail=True))
        machine.do("dpkg -i /var/tmp/pinion.deb")
        words = machine.do("systemd-analyze verify pinion.service")
        if words.strip():
            machine.fail(f"systemd-analyze verify: {words}")
        # Packages, options and models are not the service's to write; this is the administrator.
        machine.do("printf 'pin = false\\ndrain-delay = \"500ms\"\\n' >> /etc/pinion/pinion.toml")
        machine.do("systemctl start pinion")
        if (machine.show("ActiveState"), machine.show("SubState")) != ("active", "running"):
            machine.fail("it is not running")
        status = machine.show("StatusText")
        if "serves demo-model" not in status:
            machine.fail(f"status {status!r}")
        uid = int(machine.do("stat --format=%u /proc/$(systemctl show --value --property=MainPID pinion)"))
        # What systemd gives with DynamicUser=yes.
        if not 61184 <= uid <= 65519:
            machine.fail(f"it runs as {uid}")

        machine.under_load("systemctl stop pinion")
        if (machine.show("ActiveState"), machine.show("Result")) != ("inactive", "success"):
            machine.fail(f"after stop: {machine.show('ActiveState')} {machine.show('Result')}")

        machine.do("systemctl start pinion")
        machine.under_load("dpkg -i /var/tmp/pinion.deb")
        machine.wait("the new one", lambda: machine.show("ActiveState") == "active")

        # The roles end with their launcher; the unit brings all of them back.
        before = machine.show("MainPID")
        machine.do(f"kill -9 {before}")
        machine.wait("a restart", lambda: machine.show("MainPID") not in (before, "0") and machine.show("SubState") == "running")
        names = machine.do("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^pinion-engine-0$' || true").strip()
        if machine.show("NRestarts") != "1" or names != "1":
            machine.fail(f"{machine.show('NRestarts')} restarts, {names} engines")

        # A launcher that stands still is one that systemd ends. The time is shortened here.
        machine.do("mkdir -p /run/systemd/system/pinion.service.d && "
                   "printf '[Service]\\nWatchdogSec=3\\n' > /run/systemd/system/pinion.service.d/watchdog.conf && "
                   "systemctl daemon-reload && systemctl restart pinion")
        time.sleep(7)
        if machine.show("SubState") != "running" or machine.show("NRestarts") != "0":
            machine.fail("the watchdog struck a launcher that lives")
        before = machine.show("MainPID")
        machine.do(f"kill -STOP {before}")
        machine.wait("the watchdog", lambda: machine.show("NRestarts") == "1" and machine.show("SubState") == "running")

        # What fails at once is started again and again, beyond systemd's five starts; a port that is taken is not.
        for code, tried_again in ((1, True), (9, True), (4, False)):
            machine.do("printf '[Service]\\nExecStart=\\nExecStart=/bin/sh -c \"exit %d\"\\nRestartSec=100ms\\n' "
                       f"{code} > /run/systemd/system/pinion.service.d/fails.conf && systemctl daemon-reload")
            machine.do("systemctl stop pinion; systemctl reset-failed pinion; systemctl start pinion", may_fail=True)
            if tried_again:
                machine.wait("more than five starts", lambda: int(machine.show("NRestarts")) > 6)
            elif (machine.show("ActiveState"), machine.show("ExecMainStatus"), machine.show("NRestarts")) != ("failed", "4", "0"):
                machine.fail("exit code 4 is tried again")

        # A wrong option: no restart helps.
        machine.do("rm -r /run/systemd/system/pinion.service.d && systemctl daemon-reload && systemctl stop pinion")
        machine.do("echo 'no-such-option = 1' >> /etc/pinion/pinion.toml; systemctl start pinion", may_fail=True)
        if (machine.show("ActiveState"), machine.show("ExecMainStatus"), machine.show("NRestarts")) != ("failed", "2", "0"):
            machine.fail("a wrong option is tried again")

        machine.do("dpkg --purge pinion")
        left = machine.do("find / -xdev -path /proc -prune -o -name '*pinion*' -print | grep -v -e '^/proc' -e ^/var/tmp/ -e ^/sys -e ^/var/log -e ^/run || true")
        if left.strip():
            machine.fail(f"the purge leaves {left}")
    finally:
        machine.end()
    print(f"systemd: stop and upgrade with {STREAMS} streams of {TOKENS} tokens, none cut; kill, watchdog, failing starts, wrong option and purge as expected")


if __name__ == "__main__":
    main()
