"""The order in which interfaces were registered in this network namespace.

Where the kernel has to choose an address of any interface, it goes through the interfaces in this
order. Netlink lists interfaces by index. This is another order if an interface came from another
namespace, as the uplink of a node that is a container. Two lists follow the kernel's own order: the
ioctl SIOCGIFCONF, for interfaces with IPv4 addresses, and the IPv6 multicast groups: every
interface with an IPv6 address has one.
"""

from __future__ import annotations

import ctypes
import fcntl
import re
import socket
import struct
from pathlib import Path

_SIOCGIFCONF = 0x8912
_ENTRY = 40
"""Bytes of a struct ifreq, on machines of 64 bits."""
_NAME = 16

_GROUPS_V6 = Path("/proc/thread-self/net/igmp6")
_INDEX = re.compile(r"^(\d+)", re.MULTILINE)


def order_v4() -> tuple[int, ...]:
    """Return the indices of the interfaces with IPv4 addresses, each once."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        size = struct.unpack_from("=i", _configuration(asked, 0, 0))[0] + 16 * _ENTRY
        entries = ctypes.create_string_buffer(size)
        used = struct.unpack_from("=i", _configuration(asked, size, ctypes.addressof(entries)))[0]
    # An address may have a label, which begins with the name of its interface: eth0:1.
    names = (
        entries.raw[offset : offset + _NAME].split(b"\0")[0] for offset in range(0, used, _ENTRY)
    )
    known = {name.encode(): index for index, name in socket.if_nameindex()}
    indices = (known.get(name.split(b":")[0]) for name in names)
    return tuple(dict.fromkeys(index for index in indices if index))


def order_v6() -> tuple[int, ...]:
    """Return the indices of the interfaces with IPv6, each once; () on a kernel without it."""
    if not _GROUPS_V6.exists():
        return ()
    return tuple(dict.fromkeys(map(int, _INDEX.findall(_GROUPS_V6.read_text()))))


def _configuration(asked: socket.socket, size: int, at: int) -> bytes:
    """Ask for the addresses; ``at`` 0: how many bytes they take."""
    return fcntl.ioctl(asked, _SIOCGIFCONF, struct.pack("=i4xQ", size, at))
