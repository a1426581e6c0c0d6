"""A build that is being replaced: in place of its programs one that accepts each packet."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from bpfsvc.datapath.instructions import Code
from bpfsvc.datapath.loader import creation
from tests.packets.node import Node

ACCEPTED = 0
"""TC_ACT_OK."""

_SCHED_CLS = 3

PROGRAMS = ("ingress", "egress", "ingress_l3", "egress_l3")
"""In the order in which they stand behind the steps."""


@contextmanager
def replaced_programs(node: Node, *names: str) -> Iterator[None]:
    """Put a program that accepts each packet in place of the named programs, or of all."""
    code = Code()
    code.leave(ACCEPTED)
    program = creation.load_program("accepts", _SCHED_CLS, 0, code.finish(), "GPL")
    steps, first = node.pinned.map("steps"), node.pinned.layout.constant("STEPS")
    keys = [struct.pack("=I", first + PROGRAMS.index(name)) for name in names or PROGRAMS]
    for key in keys:
        steps.update(key, struct.pack("=I", program))
    try:
        yield
    finally:
        for key in keys:
            steps.delete(key)
        os.close(program)
