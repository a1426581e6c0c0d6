"""The limits and lifetimes of netfilter's connection tracking, as kube-proxy sets them.

bpfsvc has its own map of connections and does not use netfilter's. Others on the node do: a CNI
that masquerades packets which leave the pod network, and connections that kube-proxy translated
before it was replaced. So the agent keeps the same sysctls at the same values as kube-proxy does,
where netfilter tracks connections at all.

kube-proxy does not start if it cannot write one of these sysctls. The agent only reports that:
Services work whatever the values are, and a node without any proxy is the worse fault. The agent is
meant to run in a container with a read-only ``/proc/sys``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_SYSCTLS = Path("proc/sys/net/netfilter")
_HASH_SIZE = Path("sys/module/nf_conntrack/parameters/hashsize")
_PROCESSORS = Path("sys/devices/system/cpu")


class ConntrackResult(NamedTuple):
    """What :func:`apply` did, as ``name=value`` each.

    * ``changed``: set.
    * ``elsewhere``: not set, as this is not the initial network namespace, which alone may set it.
    * ``refused``: could not be set, and why.
    """

    changed: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def apply(values: Mapping[str, int], root: Path = Path("/")) -> ConntrackResult | None:
    """Set the sysctls that differ; return None if netfilter does not track connections here.

    ``values``: by name under ``net.netfilter``. ``root`` is where ``proc`` and ``sys`` are. The
    hash table grows with the limit, to a quarter of it, and never shrinks.
    """
    maximum = root / _SYSCTLS / "nf_conntrack_max"
    if not maximum.exists():
        return None
    changed, elsewhere, refused = [], [], []
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
    return ConntrackResult(tuple(changed), tuple(elsewhere), tuple(refused))


class ConntrackUse(NamedTuple):
    """How many connections netfilter follows in this network namespace, and the most it may."""

    entries: int
    limit: int


def use(root: Path = Path("/")) -> ConntrackUse | None:
    """Return how full netfilter's table is; None if netfilter follows no connections here."""
    directory = root / _SYSCTLS
    try:
        return ConntrackUse(
            _number(directory / "nf_conntrack_count"), _number(directory / "nf_conntrack_max")
        )
    except FileNotFoundError:
        return None


def _settable(path: Path) -> bool:
    """True if this namespace may set a sysctl: only the initial namespace's file is writable."""
    return bool(path.stat().st_mode & 0o200)


def processors(root: Path = Path("/")) -> int:
    """Return the number of the machine's processors, also those this process may not use."""
    count = sum(1 for _ in (root / _PROCESSORS).glob("cpu[0-9]*/topology"))
    return count or os.cpu_count() or 1


def _number(path: Path, default: int | None = None) -> int:
    """Return the number in a file; without the file ``default``, if one is given."""
    try:
        return int(path.read_text())
    except FileNotFoundError:
        if default is None:
            raise
        return default
