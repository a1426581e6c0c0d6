"""The socket at which an agent answers the commands of its own node.

Its name is an abstract one: it belongs to the network namespace and needs no directory that the
agent's container and the node share. Who may ask is not a matter of the name, but of the user that
the kernel says is at the other end.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

_CREDENTIALS = struct.Struct("=iII")  # struct ucred: pid, uid, gid
_PREFIX = "bpfsvc:"
_LONGEST = 107
"""Bytes of a name, beside the zero before it."""


def address_of(pin_root: Path) -> bytes:
    """Return the address of the agent that has its pins at ``pin_root``."""
    return b"\0" + f"{_PREFIX}{pin_root.resolve()}".encode()[-_LONGEST:]


def pin_roots() -> list[Path]:
    """Return the pin roots of the agents that answer in this network namespace."""
    listed = (line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines())
    prefix = f"@{_PREFIX}/"
    ours = {name for name in listed if name.startswith(prefix) and len(name) <= _LONGEST}
    return sorted(Path(name.removeprefix(f"@{_PREFIX}")) for name in ours)


def is_trusted(connected: socket.socket) -> bool:
    """True if the other end belongs to root, or to the user of this process."""
    _, user, _ = _credentials(connected)
    return user in (0, os.geteuid())


def process_of(connected: socket.socket) -> int:
    """Return the id of the process at the other end; 0 if it cannot be seen from here."""
    return int(_credentials(connected)[0])


def _credentials(connected: socket.socket) -> tuple[int, ...]:
    raw = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(raw)


def connect(pin_root: Path, seconds: float) -> socket.socket:
    """Return a connection to the agent; raise ``ConnectionRefusedError`` without an agent.

    ``seconds``: for each thing that is waited for.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        client.settimeout(seconds)
        client.connect(address_of(pin_root))
        if not is_trusted(client):
            raise ConnectionRefusedError("another user's program has the agent's socket")
    except OSError:
        client.close()
        raise
    return client
