"""What the kernel's verifier has to follow. It is most of the time that a first start takes.

A value that the verifier knows, in a register or on the stack, keeps two paths apart that could be
one. So a line of C may double the paths of all that comes after it, and nothing else tells.
"""

from __future__ import annotations

import struct

from bpfsvc.datapath import syscall
from bpfsvc.datapath.loader.compiler import DROP_PROGRAM
from tests.packets.node import Node
from tests.packets.test_kernel_names import PROGRAMS

OF_ONE, OF_ALL, OF_DROPS = 90_000, 600_000, 2_000
"""Instructions followed. Linux gives up at a million for one program. The last: of the program for
dropped packets, which is beside the others, and not in their sum."""


def followed(program: int) -> int:
    """Return how many instructions the verifier followed: ``bpf_prog_info.verified_insns``."""
    return int(struct.unpack_from("=I", syscall.info(program, 220), 216)[0])


def test_no_program_takes_the_verifier_long(node: Node) -> None:
    counts = {name: followed(node.pinned.program(name)) for name in PROGRAMS}
    assert min(counts.values()) > 0
    assert not {name: count for name, count in counts.items() if count > OF_ONE}
    assert sum(counts.values()) < OF_ALL
    (drops,) = (followed(node.pinned.program(name)) for name in DROP_PROGRAM)
    assert 0 < drops < OF_DROPS
