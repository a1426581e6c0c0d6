"""A kernel side of one's own: the programs and maps of a node, in namespaces that nobody else has.

Compiled once, then filled and emptied for one cluster after another.
"""

from __future__ import annotations

import socket
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bpfsvc import syscalls
from bpfsvc.address import pack
from bpfsvc.books import Books
from bpfsvc.cluster import Cluster
from bpfsvc.datapath.bpf import Map
from bpfsvc.datapath.installation import install
from bpfsvc.datapath.layout import Value
from bpfsvc.datapath.pins import Pinned, PinRoot
from bpfsvc.datapath.source import Sizes, load
from bpfsvc.datapath.tables import Tables
from bpfsvc.errors import SystemUnfit
from bpfsvc.explain.situation import Situation
from bpfsvc.nodeports import LOOPBACK
from bpfsvc.surroundings import primary_address

_MASQUERADE_FIRST, _MASQUERADE_PORTS = 10000, 20000
_ONLY_ROW = bytes(4)
_NOTHING = bytes(16)

_STAND_INS = {4: pack("192.0.2.1"), 6: pack("2001:db8::1")}
"""What a node masquerades to that names no address of a family (RFC 5737, RFC 3849)."""

_OF_TRAFFIC = ("connections", "new_connections", "affinities")
"""What packets leave behind."""

_TABLE = 4096


class Stage:
    """Maps and programs, and what was last put into them."""

    def __init__(self, pinned: Pinned) -> None:
        self.pinned = pinned
        self.interface = socket.if_nametoindex("lo")
        """The device that packets are said to come by."""
        self._tables = Tables(pinned)

    def set(self, situation: Situation, cluster: Cluster) -> Books:
        """Put a node and its objects in, in place of what was there; give the books."""
        self._clear()
        books = Books(cluster, situation.config, max_backends=_TABLE)
        for plan in books.plans_for_all():
            self._tables.execute(plan)
        self._put_node(situation)
        self._tables.know_destinations()
        self._tables.set_service_networks(books.service_networks())
        return books

    def forget_traffic(self) -> None:
        """Remove what packets left behind, so that the next one is a first one."""
        for name in _OF_TRAFFIC:
            _empty(self.pinned.map(name))

    def mark_interface(self, situation: Situation, name: str) -> None:
        """Let the device be the interface of that name."""
        is_pods = situation.detection.is_for_pods(name)
        record = self.pinned.layout.maps["interfaces"].value
        v4, v6 = (_primary(situation, each) or _STAND_INS[each] for each in (4, 6))
        row = record.pack({"v4": v4, "v6": v6, "pods": is_pods})
        self.pinned.map("interfaces").update(struct.pack("=I", self.interface), row)

    def _clear(self) -> None:
        for name in ("frontends", "backends", "endpoints", "services", "source_ranges"):
            _empty(self.pinned.map(name))
        for name in ("positions", "node_addresses", *_OF_TRAFFIC):
            _empty(self.pinned.map(name))

    def _put_node(self, situation: Situation) -> None:
        accepted = self.pinned.layout.maps["node_addresses"].value
        addresses = self.pinned.map("node_addresses")
        for address in situation.addresses:
            row = accepted.pack({"nodeports": situation.node_ports.state(address)})
            addresses.update(address, row)
        loopback = situation.node_ports.state(LOOPBACK)
        addresses.update(LOOPBACK, accepted.pack({"nodeports": loopback}))
        settings = self.pinned.layout.maps["settings"].value
        self.pinned.map("settings").update(_ONLY_ROW, settings.pack(_settings(situation)))


@contextmanager
def stage(cache: Path | None) -> Iterator[Stage]:
    """Set up a stage. This process is in namespaces of its own from then on.

    ``cache``: where compiled programs are kept for the next time; None: nowhere.
    """
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
        syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    except OSError as error:
        raise SystemUnfit(
            f"the programs cannot be run apart from this machine: {error}",
            "run as root, or privileged in a container",
        ) from error
    with tempfile.TemporaryDirectory(prefix="bpfsvc-explain-") as directory:
        syscalls.mount("bpf", directory, "bpf")
        try:
            root = PinRoot(Path(directory, "node"))
            yield Stage(install(root, load(_SIZES), _say_nothing, cache).pinned)
        finally:
            syscalls.unmount(directory)


_SIZES = Sizes(
    max_services=_TABLE,
    max_frontends=4 * _TABLE,
    max_backends=4 * _TABLE,
    max_backend_slots=16 * _TABLE,
    max_connections=_TABLE,
    max_new_connections=_TABLE,
    max_direct_flows=_TABLE,
)


def _say_nothing(_: str) -> None:
    """There is no former build to speak of."""


def _settings(situation: Situation) -> Mapping[str, Value]:
    values: dict[str, Value] = {
        "masquerade_first": _MASQUERADE_FIRST,
        "masquerade_ports": _MASQUERADE_PORTS,
        "detect_interfaces": situation.detection.by_interface,
        "node_v4": _primary(situation, 4) or _NOTHING,
        "node_v6": _primary(situation, 6) or _NOTHING,
    }
    for of_family, (network, mask) in situation.detection.ranges(situation.node).items():
        name = f"v{of_family}"
        values |= {f"pod_network_{name}": network, f"pod_mask_{name}": mask}
        values[f"detect_pods_{name}"] = 1
    return values


def _primary(situation: Situation, of_family: int) -> bytes | None:
    return primary_address((*situation.node.addresses, *situation.addresses), of_family)


def _empty(table: Map) -> None:
    keys = [key for key, _ in table.items()]
    if keys:
        table.delete_many(keys)
