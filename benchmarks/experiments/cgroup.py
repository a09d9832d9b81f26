"""A memory cgroup below the one that this process is in, of version 1 or 2.

A server and its hogs go into it, so that what they do to memory they do to each other and not to the machine.
"""

import errno
import os
import time

V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
MIB = 1 << 20
# For the kernel to give up a cgroup whose processes have just ended.
REMOVE_LIMIT_S = 5


class Refused(Exception):
    """This machine lends no memory cgroup; the text says why."""


def write(path, value):
    with open(path, "w") as file:
        file.write(str(value))


def read(path):
    with open(path) as file:
        return file.read()


def own_folders():
    """(folder of this process's memory cgroup, version)"""
    unified = None
    for line in read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return V1 + path, 1
        if not controllers:
            unified = V2 + path
    if unified is None or not os.path.exists(f"{unified}/cgroup.controllers"):
        raise Refused("there is no memory cgroup here")
    return unified, 2


class Cgroup:
    """Made here, and removed by `remove`. Without a limit until `limit`."""

    def __init__(self):
        self.outer, self.version = own_folders()
        if self.version == 2 and "memory" not in read(f"{self.outer}/cgroup.subtree_control").split():
            try:
                write(f"{self.outer}/cgroup.subtree_control", "+memory")
            except OSError as error:
                raise Refused(
                    f"{self.outer} gives no memory controller to groups below it ({error.strerror}): "
                    "start this in a shell of `systemd-run --scope -p Delegate=yes` and in a group below that scope"
                ) from error
        self.folder = f"{self.outer}/pinion-experiment-{os.getpid()}"
        try:
            os.mkdir(self.folder)
        except OSError as error:
            raise Refused(f"{self.folder} cannot be made: {error.strerror}") from error

    def enter(self):
        """This process, and every one that it starts from now on."""
        write(f"{self.folder}/cgroup.procs", os.getpid())

    def leave(self):
        write(f"{self.outer}/cgroup.procs", os.getpid())

    def limit(self, mib):
        name = "memory.limit_in_bytes" if self.version == 1 else "memory.max"
        write(f"{self.folder}/{name}", mib * MIB)

    def used_mib(self):
        """What cannot be dropped: all but clean and dirty pages of files that are not locked."""
        name = "memory.usage_in_bytes" if self.version == 1 else "memory.current"
        stat = self.stat()
        return (int(read(f"{self.folder}/{name}")) - stat["inactive_file"] - stat["active_file"]) // MIB

    def stat(self):
        lines = (line.split() for line in read(f"{self.folder}/memory.stat").splitlines())
        return {name: int(value) for name, value in lines}

    def limit_hits(self):
        """How often something had to be dropped before more could be had."""
        if self.version == 1:
            return int(read(f"{self.folder}/memory.failcnt"))
        events = dict(line.split() for line in read(f"{self.folder}/memory.events").splitlines())
        return int(events["max"])

    def remove(self):
        deadline = time.monotonic() + REMOVE_LIMIT_S
        while True:
            try:
                return os.rmdir(self.folder)
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)


def forget(paths):
    """Drops the pages of these files, so that the next reader's cgroup pays for them.

    Pages that are dirty, or that a running process has mapped, stay.
    """
    for path in paths:
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
