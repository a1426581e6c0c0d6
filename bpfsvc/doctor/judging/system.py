"""Can the programs be compiled, loaded and attached here?"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bpfsvc.doctor.facts import Places, System
from bpfsvc.doctor.finding import Finding, note, ok, refuse, warning

TESTED = (6, 1)
"""The oldest Linux bpfsvc is tested on."""


def judge(system: System, places: Places, *, ports_reserved: bool) -> Iterator[Finding]:
    """Judge the machine. ``ports_reserved``: whether no sysctl would have to be written."""
    yield from _kernel(system)
    if system.unprivileged:
        yield refuse("privileges", system.unprivileged, "run as root, or privileged in a container")
    if system.jit == 0:
        yield warning(
            "jit",
            "BPF programs are interpreted: several times slower",
            "sysctl -w net.core.bpf_jit_enable=1",
        )
    if system.compiler:
        yield ok("compiler", "bcc is there")
    else:
        yield refuse(
            "compiler",
            "bcc, the compiler of the kernel programs, is not installed",
            "apt-get install python3-bpfcc (the PyPI package named bcc is another thing)",
        )
    yield from _pins(places)
    yield from _cgroup(places)
    if not places.sysctls_writable and not ports_reserved:
        yield refuse(
            "sysctls",
            "/proc/sys cannot be written, and the masquerade ports are not reserved yet",
            "run privileged, or with /proc/sys writable, or reserve them on the node:"
            " net.ipv4.ip_local_reserved_ports",
        )


def _kernel(system: System) -> Iterator[Finding]:
    version = tuple(int(part) for part in re.findall(r"\d+", system.release)[:2])
    if system.missing and not system.unprivileged:
        yield refuse(
            "kernel",
            f"Linux {system.release} refuses {'; '.join(system.missing)}",
            "use Linux 6.1 or later with CONFIG_BPF_SYSCALL, CONFIG_NET_CLS_BPF, CONFIG_CGROUP_BPF",
        )
    elif version < TESTED:
        yield warning(
            "kernel", f"Linux {system.release} is older than 6.1, the oldest tested", "try it apart"
        )
    elif not system.unprivileged:
        way = "tcx links" if system.tcx else "filters in clsact qdiscs: it has no tcx"
        yield ok("kernel", f"Linux {system.release} has what is needed, and attaches by {way}")


def _pins(places: Places) -> Iterator[Finding]:
    if not places.bpffs:
        yield refuse(
            "bpffs",
            f"{places.pin_root} is not in a bpf file system",
            "mount -t bpf bpf /sys/fs/bpf, or name another place with --pin-root",
        )
    elif not places.pin_writable:
        yield refuse(
            "bpffs",
            f"nothing can be made at {places.pin_root}",
            "mount it writable, and run as root",
        )
    else:
        yield ok("bpffs", f"{places.pin_root} is in a bpf file system")


def _cgroup(places: Places) -> Iterator[Finding]:
    if places.no_cgroup:
        yield refuse("cgroup", places.no_cgroup, places.no_cgroup_hint)
    elif not places.cgroup:
        yield note(
            "cgroup", "sockets are not translated: only packets are, and 127.0.0.1:nodePort is not"
        )
    elif places.nested:
        yield warning(
            "cgroup",
            f"{places.cgroup} is not the root of its cgroup tree: sockets of processes outside it"
            " are not translated",
            "in a pod, mount the node's cgroup2 and name it with --cgroup-root;"
            " right as it is where the node itself is a container (kind, k0s)",
        )
    else:
        yield ok("cgroup", f"{places.cgroup} is the root of its cgroup tree")
