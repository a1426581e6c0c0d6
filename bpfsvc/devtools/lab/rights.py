"""The rights of the lab's agents: those of ``deploy/``, so all tests show that these are enough."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from bpfsvc.base.privileges import CAPABILITIES, Capability


def granted(release: str | None = None) -> list[Capability]:
    """Return the capabilities of an agent on a release of Linux, by default on this machine's."""
    numbers = re.findall(r"\d+", release or os.uname().release)
    version = (int(numbers[0]), int(numbers[1]))
    return [
        capability
        for capability in CAPABILITIES
        if capability.before is None or version < capability.before
    ]


def limited(without: Collection[str] = ()) -> list[str]:
    """Return the beginning of a command that gives the rest of it these capabilities and no others.

    ``without``: names of capabilities that are taken away, too. The process stays root, as in a
    container, and cannot get more rights.
    """
    names = [
        f"+{capability.name.removeprefix('CAP_').lower()}"
        for capability in granted()
        if capability.name not in without
    ]
    bounds = ",".join(["-all", *names])
    return ["setpriv", "--no-new-privs", f"--bounding-set={bounds}", "--inh-caps=-all", "--"]
