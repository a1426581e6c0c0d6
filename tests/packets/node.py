"""The node of packet tests: its programs run on packets that the tests make.

A test writes the entries of Services, runs a hook on a packet, and compares whole packets. Nothing
is attached to any interface.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from scapy.layers.l2 import Ether
from scapy.packet import Packet

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, pack, pack_network
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.base.networks import Network, bits_of
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_PROGRAMS
from bpfsvc.datapath import syscall
from bpfsvc.datapath.loader.installation import Installation, install
from bpfsvc.datapath.loader.source import CSource, load
from bpfsvc.datapath.maps.destinations import Destinations
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.datapath.maps.service_maps import ServiceMaps
from bpfsvc.devtools.lab import sandbox
from bpfsvc.services.entries import (
    Backend,
    Frontend,
    Policies,
    Policy,
    PortEntries,
    ServiceEntries,
    ServicePort,
    range_entries,
)
from bpfsvc.services.plans.applied import AppliedState
from bpfsvc.services.plans.diff import plan
from bpfsvc.services.plans.ids import Ids
from bpfsvc.services.rules.desired import GUARD
from tests.packets.packet import LINK, address_port, frame
from tests.packets.queues import QUEUES, take_all

UNSPEC = 0xFFFFFFFF
"""TC_ACT_UNSPEC, -1: no verdict."""
SHOT = 2
REDIRECT = 7
"""TC_ACT_REDIRECT: sent out again; a test run does not report the interface."""

UNLIMITED = 0xFFFFFFFF
"""ICMP_UNLIMITED (bpf/maps/settings.h)."""

POD_RANGES = ("10.244.0.0/16", "fd44::/48")

SIZES = Sizes(
    max_backends=2047, max_connections=4096, max_new_connections=4096, max_direct_flows=4096
)

HOOKS = {"ingress": 1, "egress": 2}
"""As bpf/lib/flow.h numbers them."""

COLLECT_HEADER = struct.Struct("=14xBBBBBB4x")
"""``struct gc_request``: number of flows, force, crowded, early ports, note, source."""


class Node:
    """The programs and maps of one node, in a BPF file system of the test."""

    def __init__(self, directory: Path, source: CSource | None = None) -> None:
        self.root = PinRoot(directory)
        self.load(source or load(SIZES))
        self.ids = Ids(SIZES.max_backends)
        self.applied_state = AppliedState()
        self.interface = socket.if_nametoindex("lo")
        self.reset()

    def load(self, source: CSource) -> None:
        """Load a build beside the pinned one, if any, and take over the entries of that one."""
        self._use(install(self.root, source, print, sandbox.COMPILED, DEFAULT_PROGRAMS))

    def _use(self, installation: Installation) -> None:
        self.installation = installation
        self.pinned: Pinned = installation.pinned
        self.tables = ServiceMaps(self.pinned)
        self.destinations = Destinations(self.pinned)

    def delete_entries(self, *names: str) -> None:
        """Delete all entries of maps."""
        for name in names:
            entries = self.pinned.map(name)
            entries.delete_many([key for key, _ in entries.items()])

    def reset(self) -> None:
        """Remove all Services, connections and settings."""
        self.tables.clear()
        self.delete_entries(
            *("connections", "new_connections", "node_addresses", "interfaces"),
            *("affinities", "service_networks", "fragments", "icmp_targets", "hardware_addresses"),
            *("netfilter_flows", "established_flows", "backend_outcomes", "quarantined"),
            *("backend_failures", "masquerade_choices", "port_shortages"),
        )
        for name in ("backend_loads", "direct_flows", "fast_flows"):
            self._fill_with_zeros(name)
        for name in (
            *("counters", "destinations"),
            *("established_ports", "established_counts", "fragment_budgets"),
        ):
            table = self.pinned.map(name)
            table.update(bytes(4), bytes(table.value_size))
        self.fill_filter(0)
        self.half_open(0)
        for name in QUEUES:
            take_all(self.pinned.map(name))
        self.ids = Ids(SIZES.max_backends)
        self.applied_state = AppliedState()
        self.pinned.map("icmp_total").update(bytes(4), bytes(8))
        self.hardware_address(LINK.dst)
        self.settings()
        self.masquerade_address("192.168.50.11", "fd50::11")

    def _fill_with_zeros(self, name: str) -> None:
        """Make all elements of an array zero; cheap if they are."""
        array = self.pinned.map(name)
        if any(block.values.strip(b"\0") for block in array.blocks(array.max_entries)):
            zeros = bytes(array.value_size)
            array.update_many((key, zeros) for key, _ in array.items())

    def half_open(self, pairs: int) -> None:
        """Set the programs' count of pairs that are not established."""
        self.pinned.map("half_open").update(bytes(4), struct.pack("=q", pairs))

    def held(self) -> int:
        """Return the programs' count of pairs that are not established."""
        return int(struct.unpack("=q", self.pinned.map("half_open").lookup(bytes(4)) or b"")[0])

    def fill_filter(self, byte: int) -> None:
        """Set every byte of the port filter to 0 (no) or 1 (yes)."""
        table = self.pinned.map("port_filters")
        for index in range(table.max_entries):
            table.update(struct.pack("=I", index), bytes([byte]) * table.value_size)

    def filtered(self) -> set[tuple[str, str, str, int]]:
        """Return what the filter contains: protocol, hook, which of the two ports, the port.

        Ports that share a byte (they differ by a multiple of its length) appear as the lowest one.
        """
        table = self.pinned.map("port_filters")
        length = 8192  # FILTER_PORTS
        known = set()
        for index in range(table.max_entries):
            raw = table.lookup(struct.pack("=I", index)) or b""
            for offset in (offset for offset, byte in enumerate(raw[: 2 * length]) if byte):
                which, port = divmod(offset, length)
                protocol, hook = divmod(index, 2)
                position = (("TCP", "UDP", "SCTP")[protocol], ("ingress", "egress")[hook])
                known.add((*position, ("source", "destination")[which], port))
        return known

    def settings(self, first: int = 10000, ports: int = 20000, **others: int | bytes) -> None:
        """Write the settings: pod ranges, masquerade ports, lifetimes, and ``others`` by name."""
        (v4, mask_v4), (v6, mask_v6) = (pack_network(range_) for range_ in POD_RANGES)
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
            # The tests of an emulated kernel last longer than an agent may be silent.
            "fast_path_second": int(time.monotonic()) + 3600,
            "icmp_interval_v4": UNLIMITED,
            "icmp_interval_v6": UNLIMITED,
            **others,
        }
        record = self.pinned.layout.maps["settings"].value
        self.pinned.map("settings").update(bytes(4), record.pack(values))

    def masquerade_address(self, v4: str, v6: str, *, pods: bool = False, index: int = 0) -> None:
        """Set the addresses of the interface where packets arrive and leave, or of another.

        ``pods``: the other end of the interface is a pod.
        """
        record = self.pinned.layout.maps["interfaces"].value
        entry = record.pack({"v4": pack(v4), "v6": pack(v6), "pods": pods})
        key = struct.pack("=I", index or self.interface)
        self.pinned.map("interfaces").update(key, entry)
        for address in (v4, v6):
            self.node_address(address, nodeports=True)

    def node_address(self, address: str, *, nodeports: bool) -> None:
        """Add an address of the node."""
        record = self.pinned.layout.maps["node_addresses"].value
        entry = record.pack({"nodeports": nodeports})
        self.destinations.add([pack(address)])
        self.pinned.map("node_addresses").update(pack(address), entry)

    def hardware_address(self, mac: str) -> None:
        """Add an address of one of the node's interfaces."""
        key = bytes.fromhex(mac.replace(":", "")) + bytes(2)
        self.pinned.map("hardware_addresses").update(key, bytes(4))

    def netfilter_flows(self, *flows: tuple[str, str], protocol: str = "TCP") -> None:
        """Have netfilter own flows, source and destination each as ``address:port``."""
        key = self.pinned.layout.maps["netfilter_flows"].key
        table = self.pinned.map("netfilter_flows")
        for source, destination in flows:
            (host, port), (to, to_port) = address_port(source), address_port(destination)
            entry: dict[str, int | bytes] = {
                **{"source": host, "source_port": port, "protocol": PROTOCOLS[protocol]},
                **{"destination": to, "destination_port": to_port},
            }
            table.update(key.pack(entry), bytes(4))

    def established_flow(self, source: str, destination: str, protocol: str) -> bytes:
        """Return the key of one direction in ``established_flows``."""
        (host, port), (to, to_port) = address_port(source), address_port(destination)
        entry: dict[str, int | bytes] = {
            **{"source": host, "source_port": port, "protocol": PROTOCOLS[protocol]},
            **{"destination": to, "destination_port": to_port},
        }
        return self.pinned.layout.maps["established_flows"].key.pack(entry)

    def service_networks(self, *networks: str) -> None:
        """Set the networks that cluster IPs are taken from."""
        self.tables.set_service_networks(_network(network) for network in networks)

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

        * Without ``policies`` all clients get all backends, and ``masquerade`` holds for all
          clients but pods.
        * ``affinity`` is in seconds.
        * ``ranges``: only clients in these networks are served.
        * ``guarded``: the addresses of ``frontends`` are cluster IPs; their other ports refuse.
        """
        entries = tuple(Backend(*address_port(text), hairpin) for text in backends)
        if policies is None:
            policy = Policy(0, len(entries), masquerade, not entries)
            policies = Policies(policy._replace(masquerade=False), policy, policy)
        policies = policies._replace(affinity_seconds=affinity, restricted=ranges is not None)
        number = PROTOCOLS[protocol]
        keys = [Frontend(*address_port(text), number) for text in frontends]
        if node_port:
            wildcard = ANY_NODE_ADDRESS_V4 if family == 4 else ANY_NODE_ADDRESS_V6
            keys.append(Frontend(wildcard, node_port, number))
        port = ServicePort("default", name, "", number, family)
        by_frontend = dict.fromkeys(keys, policies)
        if guarded:
            by_frontend |= {Frontend.rest(key.address): GUARD for key in keys}
        networks = tuple(sorted(map(_network, ranges or ())))
        self.program({port: PortEntries(80, entries, by_frontend, range_entries(networks))})

    def program(self, entries: ServiceEntries) -> None:
        """Program a Service by its entries."""
        ((namespace, name),) = {port[:2] for port in entries}
        self._execute((namespace, name), entries)

    def remove(self, name: str) -> None:
        """Remove a Service that :meth:`service` has programmed."""
        self._execute(("default", name), {})

    def _execute(self, key: tuple[str, str], entries: ServiceEntries) -> None:
        steps = plan(self.applied_state.of(key), entries, self.ids)
        self.tables.execute(steps)
        self.applied_state.update(steps.applied)

    def run(self, hook: str, packet: Packet, *, arrived: int = 0) -> tuple[int, Packet]:
        """Run a hook on a packet; return the verdict and the packet after it.

        ``arrived``: index of the interface where it came in; 0: the node itself has made it.
        """
        verdict, data = self.run_frame(hook, frame(packet), arrived=arrived)
        return verdict, Ether(data).payload

    def run_frame(self, hook: str, frame: bytes, *, arrived: int = 0) -> tuple[int, bytes]:
        """Run a hook on the bytes of a frame; return the verdict and the bytes after it."""
        context = bytearray(44)
        struct.pack_into("=II", context, 36, arrived, self.interface)
        return syscall.program_test_run(self.pinned.program(hook), frame, context=bytes(context))

    def ingress(self, packet: Packet) -> Packet:
        """Run the ingress hook on a packet; assert that it passes."""
        verdict, after = self.run("ingress", packet)
        assert verdict == UNSPEC, f"dropped at ingress: {packet.summary()}"
        return after

    def egress(self, packet: Packet) -> Packet:
        """Run the egress hook on a packet; assert that it passes."""
        verdict, after = self.run("egress", packet)
        assert verdict == UNSPEC, f"dropped at egress: {packet.summary()}"
        return after

    def forward(self, packet: Packet) -> Packet:
        """Send a packet through the node: in, routed, out."""
        return self.egress(self.ingress(packet))

    def drops(self, hook: str, packet: Packet) -> bool:
        """True if a hook drops a packet."""
        return self.run(hook, packet)[0] == SHOT

    def counter(self, name: str) -> int:
        """Read one of the counters, over all CPUs."""
        table = self.pinned.map("counters")
        raw = table.lookup(bytes(4)) or b""
        record = self.pinned.layout.maps["counters"].value
        size = table.cpu_value_size
        parts = (record.unpack(raw[start : start + size]) for start in range(0, len(raw), size))
        return sum(int(part[name]) for part in parts)

    def count(self, name: str) -> int:
        """Count the entries of a map."""
        return sum(1 for _ in self.pinned.map(name).items())

    def states(self) -> tuple[int, int]:
        """Count the entries that are not established, and those that are."""
        entries = [
            self.pinned.layout.maps[name].value.unpack(value)
            for name in ("connections", "new_connections")
            for _, value in self.pinned.map(name).items()
        ]
        established = sum(int(entry["established"]) for entry in entries)
        return len(entries) - established, established

    def age(self, seconds: float) -> None:
        """Set the time when each connection was last seen to so many seconds ago."""
        self._age(seconds, "connections", "new_connections")
        self.set_fields("port_shortages", noted=0)

    def age_direct(self, seconds: int) -> None:
        """Set the time when each direct flow began or ended to so many seconds ago."""
        since = int(time.monotonic()) - seconds & 0xFFFF
        self.set_fields("direct_flows", since=since)
        self.set_fields("fast_flows", second=since)

    def set_fields(self, name: str, **fields: int) -> None:
        """Set fields of all entries of a map that are not empty."""
        table = self.pinned.map(name)
        record = self.pinned.layout.maps[name].value
        for key, value in list(table.items()):
            if any(value):
                table.update(key, record.pack({**record.unpack(value), **fields}))

    def age_affinities(self, seconds: float) -> None:
        """Set the time of each client's last new connection to so many seconds ago."""
        self._age(seconds, "affinities")

    def _age(self, seconds: float, *names: str) -> None:
        # As in the programs, the difference is right even if the machine did not run at that time.
        seen = time.monotonic_ns() - int(seconds * 1e9) & 0xFFFF_FFFF_FFFF_FFFF
        for name in names:
            record = self.pinned.layout.maps[name].value
            table = self.pinned.map(name)
            for key, value in list(table.items()):
                entry = {**record.unpack(value), "seen": seen}
                if "tick" in entry:
                    entry["tick"] = int(entry["tick"]) - 1 & 0xFFFF
                table.update(key, record.pack(entry))

    def flow(self, hook: str, packet: Packet) -> bytes:
        """Return the key of the connection entry that a hook looks up for a packet."""
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

    def collect(
        self,
        *flows: bytes,
        force: bool = False,
        crowded: bool = False,
        early_ports: bool = False,
        note: bool = False,
        source: int = 0,
    ) -> int:
        """Propose flows for removal; return how many had ended.

        ``note``: have the filter know their ports instead; ``source``: take them from a queue.
        """
        request = COLLECT_HEADER.pack(len(flows), force, crowded, early_ports, note, source)
        request += b"".join(flows)
        return syscall.program_test_run(self.pinned.program("gc"), request)[0]


def _network(text: str) -> Network:
    address, mask = pack_network(text)
    return Network(address, bits_of(mask))
