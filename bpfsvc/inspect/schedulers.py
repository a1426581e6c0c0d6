"""How a frontend chooses among its backends, in ip_vs's words."""

from __future__ import annotations

from collections.abc import Callable

from bpfsvc.datapath.maps.layout import Layout

RANDOM = "random"
"""Each backend is as likely as any other."""


def scheduler_reader(layout: Layout) -> Callable[[bytes], str]:  # noqa: ARG001  see below
    """Return a function from a value of map ``frontends`` to the name of its scheduler.

    The programs of every build so far choose at random, so nothing has to be read. A build whose
    frontends name a scheduler is told apart here, by its layout, and nowhere else.
    """
    return lambda _value: RANDOM
