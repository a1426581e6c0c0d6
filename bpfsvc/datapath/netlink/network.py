"""Read the interfaces, their addresses and the default routes of this network namespace."""

from __future__ import annotations

import errno
import socket
from dataclasses import replace
from typing import Any

from bpfsvc.address import V4_PREFIX, pack
from bpfsvc.datapath.netlink import messages as wire
from bpfsvc.datapath.netlink.conversation import Conversation, NetlinkRefused, decoded
from bpfsvc.datapath.netlink.devices import LOOPBACK, Device, DeviceAddress, Network

_HEADER_SIZE = 16  # of struct nlmsghdr, which differs in every answer
_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8

_V4_UNSELECTABLE = 0x01  # IFA_F_SECONDARY
_V6_UNSELECTABLE = 0x01 | 0x08 | 0x20 | 0x40  # IFA_F_TEMPORARY, DADFAILED, DEPRECATED, TENTATIVE

_FAR_V4 = pack("192.0.2.1")[12:]
_FAR_V6 = pack("2001:db8::1")
"""Documentation addresses: nobody routes them apart, so their route is the default route."""

_NO_ROUTE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL}
"""None at all, and the three kinds of route that say no: unreachable, prohibit, blackhole."""


def read_network(talk: Conversation) -> Network:
    """Read once; see :meth:`NetworkReader.read`."""
    return NetworkReader(talk).read()


class NetworkReader:
    """Reads the same network again and again.

    Listing 300 interfaces takes the kernel 1 ms and the codec 35, nearly all of it for interfaces
    that are as they were. So what a message meant is remembered by its bytes.
    """

    def __init__(self, talk: Conversation) -> None:
        self._talk = talk
        self._devices: dict[bytes, Device] = {}
        self._addresses: dict[bytes, tuple[int, DeviceAddress]] = {}

    def read(self) -> Network:
        """Give everything at once, each list consistent in itself.

        Raises :class:`~bpfsvc.datapath.netlink.conversation.DumpInterrupted` on a node whose
        interfaces keep changing.
        """
        addresses = self._read_addresses()
        devices = self._read_devices(addresses)
        return Network(
            devices=tuple(sorted(devices, key=lambda device: device.index)),
            default_v4=_route_interface(self._talk, socket.AF_INET, _FAR_V4),
            default_v6=_route_interface(self._talk, socket.AF_INET6, _FAR_V6),
        )

    def _read_addresses(self) -> dict[int, list[DeviceAddress]]:
        known, self._addresses = self._addresses, {}
        found: dict[int, list[DeviceAddress]] = {}
        for raw in self._talk.dump_raw(wire.RTM_GETADDR, wire.Address()):
            body = raw[_HEADER_SIZE:]
            entry = known.get(body) or _address(decoded(wire.Address, raw))
            self._addresses[body] = entry
            found.setdefault(entry[0], []).append(entry[1])
        return found

    def _read_devices(self, addresses: dict[int, list[DeviceAddress]]) -> list[Device]:
        request = wire.Link()
        request["attrs"] = [("EXT_MASK", wire.RTEXT_FILTER_SKIP_STATS)]
        known, self._devices = self._devices, {}
        for raw in self._talk.dump_raw(wire.RTM_GETLINK, request):
            body = raw[_HEADER_SIZE:]
            device = known.get(body) or _device(decoded(wire.Link, raw))
            own = tuple(addresses.get(device.index, ()))
            if device.addresses != own:
                device = replace(device, addresses=own)
            self._devices[body] = device
        return list(self._devices.values())


def _device(message: Any) -> Device:
    info = message.get_attr("INFO")
    kind = (info.get_attr("KIND") or "") if info is not None else ""
    return Device(
        index=message["index"],
        name=message.get_attr("NAME"),
        kind=LOOPBACK if message["flags"] & _IFF_LOOPBACK else kind,
        master=message.get_attr("MASTER") or 0,
        up=bool(message["flags"] & _IFF_UP),
        hardware=message["type"],
        addresses=(),
        mac=message.get_attr("ADDRESS") or b"",
        peer_elsewhere=message.get_attr("LINK_NETNSID") is not None,
        queue=message.get_attr("QDISC") or "",
    )


def _address(message: Any) -> tuple[int, DeviceAddress]:
    """Give the index of the interface and the address."""
    v4 = message["family"] == socket.AF_INET
    own: bytes = message.get_attr("LOCAL") or message.get_attr("ADDRESS")
    flags: int = message.get_attr("FLAGS") or message["flags"]
    address = DeviceAddress(
        address=V4_PREFIX + own if v4 else bytes(own),
        prefix=message["prefixlen"],
        scope=message["scope"],
        selectable=not flags & (_V4_UNSELECTABLE if v4 else _V6_UNSELECTABLE),
    )
    return message["index"], address


def _route_interface(talk: Conversation, family: int, destination: bytes) -> int:
    """Give the index of the interface by which far destinations are reached, or 0."""
    request = wire.Route()
    request["family"] = family
    request["dst_len"] = 8 * len(destination)
    request["attrs"] = [("DST", destination)]
    try:
        answers = talk.ask(wire.RTM_GETROUTE, request)
    except NetlinkRefused as refusal:
        if refusal.code in _NO_ROUTE:
            return 0
        raise
    return next((answer.get_attr("OIF") or 0 for answer in answers), 0)
