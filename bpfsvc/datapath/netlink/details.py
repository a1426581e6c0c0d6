"""What is seldom asked of interfaces: their MTU, their XDP program, and that one may go.

The agent follows interfaces for as long as it lives and reads no more of them than it needs. A
person who looks once wants more, so these attributes are read here, straight from the bytes of
the kernel's answer (``linux/if_link.h``).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

from bpfsvc.datapath.netlink import messages as wire
from bpfsvc.datapath.netlink.conversation import Conversation

_RTM_DELLINK = 17
_HEADERS = 32
"""``struct nlmsghdr`` and ``struct ifinfomsg``."""
_IFLA_MTU, _IFLA_XDP = 4, 43
_XDP_IDS = (4, 5, 6, 7)
"""IFLA_XDP_PROG_ID, and those of the driver, of generic mode and of hardware."""
_TYPE = 0x3FFF  # without the flags "nested" and "network byte order"


class LinkDetails(NamedTuple):
    """``mtu`` in bytes; ``xdp``: ids of the XDP programs on the interface."""

    mtu: int
    xdp: tuple[int, ...]


def read_details(talk: Conversation) -> dict[int, LinkDetails]:
    """Give the details of every interface by its index."""
    request = wire.Link()
    request["attrs"] = [("EXT_MASK", wire.RTEXT_FILTER_SKIP_STATS)]
    found = {}
    for raw in talk.dump_raw(wire.RTM_GETLINK, request):
        (index,) = struct.unpack_from("=i", raw, 20)
        attributes = dict(_attributes(raw[_HEADERS:]))
        mtu = int.from_bytes(attributes.get(_IFLA_MTU, b""), sys.byteorder)
        xdp = dict(_attributes(attributes.get(_IFLA_XDP, b"")))
        ids = {struct.unpack("=I", xdp[kind])[0] for kind in _XDP_IDS if kind in xdp}
        found[index] = LinkDetails(mtu, tuple(sorted(ids - {0})))
    return found


def delete_link(talk: Conversation, index: int) -> None:
    """Delete an interface; raises ``NetlinkRefused``."""
    request = wire.Link()
    request["index"] = index
    talk.ask(_RTM_DELLINK, request)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            return
        yield kind & _TYPE, data[at + 4 : at + length]
        at += (length + 3) & ~3
