"""The vocabulary of packet tests: one node whose programs are run on packets made by hand.

A test says which Services there are in the rows' own words, gives a packet to a hook, and compares
whole packets. Nothing is attached to any interface.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.layers.sctp import SCTP, SCTPChunkData, SCTPChunkInit, SCTPChunkInitAck
from scapy.packet import Packet

from bpfsvc.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, pack, pack_network
from bpfsvc.datapath import bpf
from bpfsvc.datapath.destinations import Destinations
from bpfsvc.datapath.installation import Installation, install
from bpfsvc.datapath.pins import Pinned, PinRoot
from bpfsvc.datapath.source import Sizes, Source, load
from bpfsvc.datapath.tables import Tables
from bpfsvc.desired import GUARD
from bpfsvc.diff import plan
from bpfsvc.ids import Ids
from bpfsvc.lab import sandbox
from bpfsvc.networks import bits_of
from bpfsvc.programmed import Ledger
from bpfsvc.rows import (
    PROTOCOLS,
    Backend,
    Frontend,
    Network,
    Policies,
    Policy,
    PortRows,
    ServicePort,
    ServiceRows,
)

UNSPEC = 0xFFFFFFFF
"""TC_ACT_UNSPEC, -1: no verdict."""
SHOT = 2
REDIRECT = 7
"""TC_ACT_REDIRECT: sent out again, by an interface that no test run tells."""

POD_RANGES = ("10.244.0.0/16", "fd44::/48")

SIZES = Sizes(max_connections=4096, max_new_connections=4096, max_direct_flows=4096)

HOOKS = {"ingress": 1, "egress": 2}
"""As flow.h numbers them."""

COLLECT_HEADER = struct.Struct("=14xBBBx")
"""``struct collect_header``: number of flows, force, crowded."""

LINK = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")


class Node:
    """The programs and maps of one node, in a bpf file system of the test's own."""

    def __init__(self, directory: Path, source: Source | None = None) -> None:
        self.root = PinRoot(directory)
        self.load(source or load(SIZES))
        self.ids = Ids(65536)
        self.ledger = Ledger()
        self.interface = socket.if_nametoindex("lo")
        self.reset()

    def load(self, source: Source) -> None:
        """Load a build, beside the one that is there, if any, and take over what that one holds."""
        self._take(install(self.root, source, print, sandbox.ROOT / "programs"))

    def _take(self, installation: Installation) -> None:
        self.installation = installation
        self.pinned: Pinned = installation.pinned
        self.tables = Tables(self.pinned)
        self.destinations = Destinations(self.pinned)

    def reset(self) -> None:
        """Forget every Service, connection and setting."""
        for name in ("connections", "new_connections", "node_addresses"):
            found = self.pinned.map(name)
            found.delete_many([key for key, _ in found.items()])
        for name in ("frontends", "backends", "endpoints", "services", "interfaces"):
            found = self.pinned.map(name)
            found.delete_many([key for key, _ in found.items()])
        for name in ("positions", "affinities", "source_ranges", "service_networks", "fragments"):
            found = self.pinned.map(name)
            found.delete_many([key for key, _ in found.items()])
        fingerprints = self.pinned.map("direct_flows")
        fingerprints.update_many(
            [(struct.pack("=I", place), bytes(4)) for place in range(fingerprints.max_entries)]
        )
        for name in ("counters", "destinations"):
            found = self.pinned.map(name)
            found.update(bytes(4), bytes(found.value_size))
        self.fill_filter(0)
        self.half_open(0)
        self.ids = Ids(65536)
        self.ledger = Ledger()
        self.settings()
        self.masquerade_address("192.168.50.11", "fd50::11")

    def half_open(self, pairs: int) -> None:
        """Set how many pairs the programs believe to hold that are not established."""
        self.pinned.map("half_open").update(bytes(4), struct.pack("=q", pairs))

    def held(self) -> int:
        """Give how many they believe to hold."""
        return int(struct.unpack("=q", self.pinned.map("half_open").lookup(bytes(4)) or b"")[0])

    def fill_filter(self, byte: int) -> None:
        """Let the filter of ports say no (0) or yes (1) to every packet."""
        found = self.pinned.map("port_filters")
        for index in range(found.max_entries):
            found.update(struct.pack("=I", index), bytes([byte]) * found.value_size)

    def filtered(self) -> set[tuple[str, str, str, int]]:
        """Give what the filter says yes to: protocol, hook, which of the two ports, the port.

        Ports as far apart as the filter is long share a byte, and the lowest is given.
        """
        found = self.pinned.map("port_filters")
        length = 8192  # FILTER_PORTS
        known = set()
        for index in range(found.max_entries):
            raw = found.lookup(struct.pack("=I", index)) or b""
            for at in (at for at, byte in enumerate(raw[: 2 * length]) if byte):
                which, port = divmod(at, length)
                protocol, hook = divmod(index, 2)
                place = (("TCP", "UDP", "SCTP")[protocol], ("ingress", "egress")[hook])
                known.add((*place, ("source", "destination")[which], port))
        return known

    def settings(self, first: int = 10000, ports: int = 20000, **others: int) -> None:
        """Set the pod ranges, the masquerade ports and lifetimes; ``others`` by their names."""
        (v4, mask_v4), (v6, mask_v6) = (pack_network(one) for one in POD_RANGES)
        values: dict[str, int | bytes] = {
            "pod_network_v4": v4,
            "pod_mask_v4": mask_v4,
            "pod_network_v6": v6,
            "pod_mask_v6": mask_v6,
            "detect_pods_v4": 1,
            "detect_pods_v6": 1,
            "masquerade_first": first,
            "masquerade_ports": ports,
            "tcp_established_seconds": 86400,
            "tcp_half_closed_seconds": 3600,
            "tcp_closed_seconds": 10,
            "udp_seconds": 120,
            "sctp_seconds": 120,
            "half_open_seconds": 60,
            **others,
        }
        record = self.pinned.layout.maps["settings"].value
        self.pinned.map("settings").update(bytes(4), record.pack(values))

    def masquerade_address(self, v4: str, v6: str, *, pods: bool = False) -> None:
        """Give the interface that packets come and leave by its addresses; they are the node's own.

        ``pods``: its other end is a pod.
        """
        record = self.pinned.layout.maps["interfaces"].value
        row = record.pack({"v4": pack(v4), "v6": pack(v6), "pods": pods})
        self.pinned.map("interfaces").update(struct.pack("=I", self.interface), row)
        for address in (v4, v6):
            self.node_address(address, nodeports=True)

    def node_address(self, address: str, *, nodeports: bool) -> None:
        """Make an address the node's own."""
        record = self.pinned.layout.maps["node_addresses"].value
        row = record.pack({"nodeports": nodeports})
        self.destinations.add([pack(address)])
        self.pinned.map("node_addresses").update(pack(address), row)

    def service_networks(self, *networks: str) -> None:
        """Set the networks that cluster IPs are taken from."""
        self.tables.set_service_networks(_network(one) for one in networks)

    def service(
        self,
        name: str,
        backends: Sequence[str],
        *,
        frontends: Sequence[str] = (),
        node_port: int = 0,
        protocol: str = "TCP",
        masquerade: bool = False,
        hairpin: bool = False,
        policies: Policies | None = None,
        affinity: int = 0,
        ranges: Sequence[str] | None = None,
        guarded: bool = False,
        family: int = 4,
    ) -> None:
        """Program a Service: frontends and backends as ``address:port`` texts.

        * Without ``policies`` all clients meet all backends, and ``masquerade`` is for all but
          pods.
        * ``affinity`` is in seconds.
        * ``ranges``: networks from which alone clients may come.
        * ``guarded``: the addresses of ``frontends`` are cluster IPs, whose other ports refuse.
        """
        places = tuple(Backend(*_place(text), hairpin) for text in backends)
        if policies is None:
            policy = Policy(0, len(places), masquerade, not places)
            policies = Policies(policy._replace(masquerade=False), policy, policy)
        policies = policies._replace(affinity_seconds=affinity, restricted=ranges is not None)
        number = PROTOCOLS[protocol]
        keys = [Frontend(*_place(text), number) for text in frontends]
        if node_port:
            wildcard = ANY_NODE_ADDRESS_V4 if family == 4 else ANY_NODE_ADDRESS_V6
            keys.append(Frontend(wildcard, node_port, number))
        port = ServicePort("default", name, "", number, family)
        entrances = dict.fromkeys(keys, policies)
        if guarded:
            entrances |= {Frontend.rest(key.address): GUARD for key in keys}
        networks = tuple(sorted(map(_network, ranges or ())))
        self.program({port: PortRows(80, places, entrances, networks)})

    def program(self, rows: ServiceRows) -> None:
        """Program a Service by its rows."""
        ((namespace, name),) = {port[:2] for port in rows}
        steps = plan(self.ledger.of((namespace, name)), rows, self.ids)
        self.tables.execute(steps)
        self.ledger.settle(steps.programmed)

    def run(self, hook: str, packet: Packet) -> tuple[int, Packet]:
        """Give a packet to a hook; return the verdict and the packet as it left."""
        verdict, data = self.run_frame(hook, bytes(LINK / packet))
        return verdict, Ether(data).payload

    def run_frame(self, hook: str, frame: bytes) -> tuple[int, bytes]:
        """The same for the bytes of a whole frame."""
        context = bytearray(44)
        struct.pack_into("=I", context, 40, self.interface)
        return bpf.program_test_run(self.pinned.program(hook), frame, context=bytes(context))

    def ingress(self, packet: Packet) -> Packet:
        """Give a packet that must pass to the ingress hook."""
        verdict, after = self.run("ingress", packet)
        assert verdict == UNSPEC, f"dropped at ingress: {packet.summary()}"
        return after

    def egress(self, packet: Packet) -> Packet:
        """The same for the egress hook."""
        verdict, after = self.run("egress", packet)
        assert verdict == UNSPEC, f"dropped at egress: {packet.summary()}"
        return after

    def forward(self, packet: Packet) -> Packet:
        """Send a packet through the node: in, routed, out."""
        return self.egress(self.ingress(packet))

    def drops(self, hook: str, packet: Packet) -> bool:
        """Whether a hook drops a packet."""
        return self.run(hook, packet)[0] == SHOT

    def counter(self, name: str) -> int:
        """Read one of the counters, over all CPUs."""
        found = self.pinned.map("counters")
        raw = found.lookup(bytes(4)) or b""
        record = self.pinned.layout.maps["counters"].value
        size = found.cpu_value_size
        parts = (record.unpack(raw[at : at + size]) for at in range(0, len(raw), size))
        return sum(int(part[name]) for part in parts)

    def count(self, name: str) -> int:
        """Count the rows of a map."""
        return sum(1 for _ in self.pinned.map(name).items())

    def states(self) -> tuple[int, int]:
        """Count the entries that are not established, and those that are."""
        rows = [
            self.pinned.layout.maps[name].value.unpack(value)
            for name in ("connections", "new_connections")
            for _, value in self.pinned.map(name).items()
        ]
        established = sum(int(row["established"]) for row in rows)
        return len(rows) - established, established

    def age(self, seconds: float) -> None:
        """Make every connection one that was last seen so long ago."""
        self._age(seconds, "connections", "new_connections")

    def age_affinities(self, seconds: float) -> None:
        """Make every client one that last opened a connection so long ago."""
        self._age(seconds, "affinities")

    def _age(self, seconds: float, *names: str) -> None:
        seen = time.monotonic_ns() - int(seconds * 1e9)
        for name in names:
            record = self.pinned.layout.maps[name].value
            found = self.pinned.map(name)
            for key, value in list(found.items()):
                row = {**record.unpack(value), "seen": seen}
                if "tick" in row:
                    row["tick"] = int(row["tick"]) - 1 & 0xFFFF
                found.update(key, record.pack(row))

    def flow(self, hook: str, packet: Packet) -> bytes:
        """Give the key of the connection entry that a packet meets at a hook."""
        record = self.pinned.layout.maps["connections"].key
        return record.pack(
            {
                "source": pack(packet.src),
                "destination": pack(packet.dst),
                "source_port": packet.payload.sport,
                "destination_port": packet.payload.dport,
                "protocol": PROTOCOLS[str(packet.payload.name)],
                "hook": HOOKS[hook],
            }
        )

    def collect(self, *flows: bytes, force: bool = False, crowded: bool = False) -> int:
        """Propose flows for removal; return how many were over."""
        request = COLLECT_HEADER.pack(len(flows), force, crowded) + b"".join(flows)
        return bpf.program_test_run(self.pinned.program("collect"), request)[0]


def _network(text: str) -> Network:
    address, mask = pack_network(text)
    return Network(address, bits_of(mask))


def _place(text: str) -> tuple[bytes, int]:
    address, _, port = text.rpartition(":")
    return pack(address.strip("[]")), int(port)


def ip(source: str, destination: str) -> Packet:
    """Make the IP layer of either family."""
    layer = IPv6 if ":" in source else IP
    return cast(Packet, layer(src=source, dst=destination))


def tcp(client: str, server: str, flags: str = "S", payload: bytes = b"") -> Packet:
    """Make a TCP packet from one ``address:port`` to another."""
    (source, sport), (destination, dport) = _texts(client), _texts(server)
    return ip(source, destination) / TCP(sport=sport, dport=dport, flags=flags) / payload


def udp(client: str, server: str, payload: bytes = b"x") -> Packet:
    """Make a UDP packet from one ``address:port`` to another."""
    (source, sport), (destination, dport) = _texts(client), _texts(server)
    return ip(source, destination) / UDP(sport=sport, dport=dport) / payload


def sctp(client: str, server: str, chunk: Packet | None = None, payload: bytes = b"x") -> Packet:
    """Make an SCTP packet from one ``address:port`` to another: ``chunk``, or else data."""
    (source, sport), (destination, dport) = _texts(client), _texts(server)
    chunk = SCTPChunkData(data=payload) if chunk is None else chunk
    return ip(source, destination) / SCTP(sport=sport, dport=dport, tag=0x0BADCAFE) / chunk


def sctp_init(client: str, server: str) -> Packet:
    """Make the first packet of an SCTP association."""
    return sctp(client, server, SCTPChunkInit(init_tag=7, a_rwnd=65536))


def sctp_init_ack(server: str, client: str) -> Packet:
    """Make the answer to it."""
    return sctp(server, client, SCTPChunkInitAck(init_tag=9, a_rwnd=65536))


def _texts(place: str) -> tuple[str, int]:
    address, _, port = place.rpartition(":")
    return address.strip("[]"), int(port)


def same(got: Packet, wanted: Packet) -> bool:
    """Whether two packets are equal to the last byte, checksums included."""
    return bytes(got) == bytes(wanted)
