"""The kernel's lists of sockets, ``/proc/net/tcp`` and its like, as far as doctor reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from bpfsvc.base.address import V4_PREFIX

LISTENS = "0A"
"""The state of a TCP socket that waits for clients, as the kernel prints it."""

_NO_PROGRAM = "0"
"""The inode of a connection that no program has: it is closed, or a server has not accepted it."""

_V4_DIGITS = 8


def texts(protocol: str) -> Iterator[str]:
    """Yield the lists of ``tcp`` or ``udp`` of both families, as far as this kernel has them."""
    for name in (protocol, f"{protocol}6"):
        file = Path("/proc/net", name)
        if file.exists():
            yield file.read_text()


def rows(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield the local address of each socket in hexadecimal digits, its port, and its state.

    Connections that no program has, as all in TIME_WAIT, are left out.
    """
    for line in text.splitlines()[1:]:
        _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
        digits, _, port = local.rpartition(":")
        if inode != _NO_PROGRAM:
            yield digits, int(port, 16), state


def address(digits: str) -> bytes:
    """Return the packed address that the kernel prints as words in the order of this machine."""
    words = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return (V4_PREFIX if len(digits) == _V4_DIGITS else b"") + b"".join(words)
