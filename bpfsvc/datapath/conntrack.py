"""The limits and lifetimes of netfilter's connection tracking, as kube-proxy sets them.

bpfsvc keeps connections of its own and needs none of netfilter's. Others on the node do: a CNI that
masquerades what leaves the pod network, and connections that kube-proxy translated before it made
way, which live there to their end. Whoever replaces kube-proxy takes over the care for them, so the
same sysctls are kept at the same values, where netfilter tracks connections at all.

kube-proxy does not start when it may not write one. Here that is told and no more: none of these
values decides whether a Service works, and a node that has nobody to serve it is the worse fault.
A container whose ``/proc/sys`` is read-only is a setting that bpfsvc is meant to run in.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

MOST = 1 << 20
"""No more connections than these are asked for on account of processors, however many there are."""

_SYSCTLS = Path("proc/sys/net/netfilter")
_HASH_SIZE = Path("sys/module/nf_conntrack/parameters/hashsize")
_PROCESSORS = Path("sys/devices/system/cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conntrack:
    """What is wanted: ``conntrack`` of kube-proxy. Zero leaves a value as it is; times in seconds.

    ``min`` is the least number of connections whatever the number of processors.
    """

    max_per_core: int = 32768
    min: int = 131072
    tcp_established: int = 86400
    tcp_close_wait: int = 3600
    tcp_be_liberal: bool = False
    udp: int = 0
    udp_stream: int = 0

    def limit(self, processors: int) -> int:
        """Give how many connections are wanted; 0 leaves the limit as it is."""
        if self.max_per_core == 0:
            return 0
        scaled = self.max_per_core * processors
        return MOST if scaled > MOST else max(scaled, self.min)

    def values(self, processors: int) -> dict[str, int]:
        """Give the sysctls under ``net.netfilter`` that are wanted."""
        wanted = {
            "nf_conntrack_max": self.limit(processors),
            "nf_conntrack_tcp_timeout_established": self.tcp_established,
            "nf_conntrack_tcp_timeout_close_wait": self.tcp_close_wait,
            "nf_conntrack_tcp_be_liberal": int(self.tcp_be_liberal),
            "nf_conntrack_udp_timeout": self.udp,
            "nf_conntrack_udp_timeout_stream": self.udp_stream,
        }
        return {name: value for name, value in wanted.items() if value}


class Outcome(NamedTuple):
    """What :func:`apply` did, each thing as ``name=value``.

    * ``changed``: what was set.
    * ``elsewhere``: what only the first network namespace may set, and this one is not it.
    * ``refused``: what could not be set, and why.
    """

    changed: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def apply(conntrack: Conntrack, root: Path = Path("/")) -> Outcome | None:
    """Set what differs from what is wanted; None if netfilter does not track connections here.

    ``root`` is where ``proc`` and ``sys`` are. The hash table grows with the limit, to a quarter of
    it, and never shrinks.
    """
    maximum = root / _SYSCTLS / "nf_conntrack_max"
    if not maximum.exists():
        return None
    changed, elsewhere, refused = [], [], []
    values = conntrack.values(processors(root))
    wanted = {root / _SYSCTLS / name: value for name, value in values.items()}
    quarter = values.get("nf_conntrack_max", 0) // 4
    if _settable(maximum) and _number(root / _HASH_SIZE, default=quarter) < quarter:
        wanted[root / _HASH_SIZE] = quarter
    for path, value in wanted.items():
        text = f"{path.name}={value}"
        try:
            if _number(path) == value:
                continue
            if not _settable(path):
                elsewhere.append(text)
                continue
            path.write_text(f"{value}\n")
        except OSError as error:
            refused.append(f"{text} ({error.strerror})")
        else:
            changed.append(text)
    return Outcome(tuple(changed), tuple(elsewhere), tuple(refused))


def _settable(path: Path) -> bool:
    """Whether the kernel offers to have it set: what belongs to the first namespace has no w."""
    return bool(path.stat().st_mode & 0o200)


def processors(root: Path = Path("/")) -> int:
    """Count the machine's processors, whatever this process may use of them."""
    found = sum(1 for _ in (root / _PROCESSORS).glob("cpu[0-9]*/topology"))
    return found or os.cpu_count() or 1


def _number(path: Path, default: int | None = None) -> int:
    """Read a number; ``default`` if there is no such file and a default is given."""
    try:
        return int(path.read_text())
    except FileNotFoundError:
        if default is None:
            raise
        return default
