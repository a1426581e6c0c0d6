"""Helpers of the kernel that programs can do without: where one is missing, a call returns NULL.

``bpf_skc_to_mptcp_sock`` needs a kernel that was built with MPTCP.
"""

from __future__ import annotations

import struct

from bpfsvc.datapath.loader.bytecode import INSTRUCTION

OPTIONAL = frozenset({196})
"""Numbers of ``linux/bpf.h``: bpf_skc_to_mptcp_sock."""

_CALL = 0x85
_RETURN_NULL = struct.pack("=BBhi", 0xB7, 0, 0, 0)
"""``r0 = 0``"""


def without_optional(code: bytes) -> bytes:
    """Return instructions that call no optional helper; equal to ``code`` if they do not anyway."""
    made = bytearray(code)
    for at in range(0, len(code), INSTRUCTION):
        operation, registers, _, number = struct.unpack_from("=BBhi", code, at)
        if operation == _CALL and registers == 0 and number in OPTIONAL:
            made[at : at + INSTRUCTION] = _RETURN_NULL
    return bytes(made)
