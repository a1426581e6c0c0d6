"""The suites of ``guest.sh``, and which of them a kernel can run."""

from __future__ import annotations

from collections.abc import Sequence

SUITES = ("verified", "demo", "lab", "sockets", "packets", "shortcuts", "image", "ipvs", "netkit")

_SINCE = {"netkit": (6, 12), "shortcuts": (6, 1)}
"""The first of Debian's kernels that can run a suite: Linux has netkit since 6.7, and test packets
that say by which interface they came, since 5.13."""


def runnable(suites: Sequence[str], kernel: str) -> tuple[str, ...]:
    """Return those of ``suites`` that a kernel can run. "newest" can run all.

    ``kernel``: the begin of a version ("6.1"), or "newest".
    """
    if kernel == "newest":
        return tuple(suites)
    version = tuple(int(number) for number in kernel.split("."))
    return tuple(suite for suite in suites if version >= _SINCE.get(suite, ()))
