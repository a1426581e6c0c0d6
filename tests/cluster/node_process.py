"""``python -m tests.cluster.node_process FOLDER``: becomes process 1 of a node.

It moves into the node's cgroups and namespaces, mounts what a machine has, starts containerd and
the kubelet, and reaps. A kubelet that ends is started again. The number of the process, seen from
outside, is written to ``FOLDER/number``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bpfsvc.base import syscalls
from tests.cluster import cgroups
from tests.cluster.cgroups import Cgroups, Hierarchy
from tests.cluster.node_files import CONTAINERD_SOCKET

_NEW = (
    syscalls.CLONE_NEWNS
    | 0x04000000  # CLONE_NEWUTS
    | 0x08000000  # CLONE_NEWIPC
    | 0x20000000  # CLONE_NEWPID
    | syscalls.CLONE_NEWCGROUP
)
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_MS_SHARED = 1 << 20
_PAUSE = 3.0  # seconds before a kubelet is started again

DISKS = (
    "/var/lib/kubelet",
    "/var/lib/containerd",
    "/var/lib/cni",
    "/var/lib/bpfsvc",
    "/var/log/pods",
    "/var/log/containers",
    "/etc/cni",
    "/etc/kubernetes",
    "/opt/cni",
)
"""Folders that are the node's own, below its ``disk``."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a node needs to know to start; ``kubelet`` is its command."""

    name: str
    namespace: str
    cgroup: str
    cgroups: Cgroups
    kubelet: list[str]

    def save(self, folder: Path) -> None:
        """Write the description for the process to come."""
        (folder / "description.json").write_text(json.dumps(asdict(self)))


def _mount_cgroups(among: list[Hierarchy]) -> None:
    for hierarchy in among:
        where = str(hierarchy.root)
        hierarchy.root.mkdir(exist_ok=True)
        if hierarchy.unified:
            syscalls.mount("cgroup2", where, "cgroup2")
        else:
            syscalls.mount("cgroup", where, "cgroup", options=hierarchy.options)


def _seen(among: list[Hierarchy], kind: Cgroups) -> list[Hierarchy]:
    """Return the hierarchies that the node sees: with ``unified``, cgroup2 in the place of all."""
    if kind == "hybrid":
        return among
    return [Hierarchy(_CGROUP_ROOT, True) for each in among if each.unified]


def _mount(folder: Path, among: list[Hierarchy]) -> None:
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("proc", "/proc", "proc")
    syscalls.mount("sysfs", "/sys", "sysfs")
    if not any(hierarchy.root == _CGROUP_ROOT for hierarchy in among):
        syscalls.mount("tmpfs", str(_CGROUP_ROOT), "tmpfs", options="mode=755")
    _mount_cgroups(among)
    for place in DISKS:
        disk = folder / "disk" / place.lstrip("/")
        disk.mkdir(parents=True, exist_ok=True)
        Path(place).mkdir(parents=True, exist_ok=True)
        syscalls.mount(str(disk), place, None, syscalls.MS_BIND)
    syscalls.mount("tmpfs", "/run", "tmpfs")
    for made in ("/run/netns", "/run/lock", "/run/containerd"):
        Path(made).mkdir()
    syscalls.mount("none", "/", None, syscalls.MS_REC | _MS_SHARED)


def _start(folder: Path, name: str, command: list[str]) -> int:
    log = str(folder / f"{name}.log")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawnp(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _run(folder: Path, description: Description) -> None:
    """Be process 1 until killed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    socket.sethostname(description.name)
    _start(folder, "containerd", ["containerd", "--config", str(folder / "containerd.toml")])
    while not Path(CONTAINERD_SOCKET).exists():
        time.sleep(0.05)
    kubelet = _start(folder, "kubelet", description.kubelet)
    while True:
        ended, _ = os.wait()
        if ended == kubelet:
            time.sleep(_PAUSE)
            kubelet = _start(folder, "kubelet", description.kubelet)


def main(folder: Path) -> None:
    """Become the node that ``folder`` describes."""
    description = Description(**json.loads((folder / "description.json").read_text()))
    among = cgroups.hierarchies()
    cgroups.enter(description.cgroup, among, daemons=False)
    with Path(description.namespace).open("rb") as namespace:
        syscalls.setns(namespace.fileno(), syscalls.CLONE_NEWNET)
    syscalls.unshare(_NEW)
    cgroups.enter(description.cgroup, among)
    child = os.fork()
    if child:
        (folder / "number.part").write_text(str(child))
        (folder / "number.part").rename(folder / "number")
        return
    _mount(folder, _seen(among, description.cgroups))
    _run(folder, description)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
