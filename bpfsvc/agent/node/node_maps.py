"""The maps of this node: settings, addresses, interfaces."""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from bpfsvc.agent.flows import established_flows
from bpfsvc.agent.node.masquerade_maps import MasqueradeMaps
from bpfsvc.base.fast_path import ESTABLISHED, FAST, STACK, FastPathLevel
from bpfsvc.config.config import Config
from bpfsvc.datapath import sysctl
from bpfsvc.datapath.attach import cgroup
from bpfsvc.datapath.maps.destinations import Destinations
from bpfsvc.datapath.maps.layout import Value
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.netlink.devices import (
    Device,
    Interfaces,
    addresses,
    allows_fast_path,
    arrival_names,
    bridge_of,
    bridges_of,
    default_source_address,
)
from bpfsvc.model import Node
from bpfsvc.services.rules.context import primary_address
from bpfsvc.services.rules.nodeport_addresses import (
    LOOPBACK,
    NODEPORT_STATES,
    NodePortAddresses,
    resolve,
)

Takeover = Literal["TAKEOVER_NONE", "TAKEOVER_ATTACHING", "TAKEOVER_ATTACHED"]
"""As in ``bpf/maps/settings.h``."""

_NO_ADDRESS = bytes(16)

_ONLY_KEY = bytes(4)
"""Of a map with one entry."""

_RENEW_SECONDS = 5.0
"""How often to renew the fast path: the programs stop using it a minute after the last time."""

_LONG_AGO = 1 << 20
"""Seconds after which the programs take the agent for gone, and much more."""

_MAC = 6
"""Bytes of a hardware address that Ethernet has."""


class NodeMaps:
    """The maps of one node, written by the agent alone."""

    def __init__(self, config: Config, pinned: Pinned) -> None:
        self._config = config
        self._pinned = pinned
        self._settings = pinned.map("settings")
        self._settings_record = pinned.layout.maps["settings"].value
        self._addresses = pinned.map("node_addresses")
        self._interfaces = pinned.map("interfaces")
        self._masquerades = MasqueradeMaps(pinned)
        self._macs = pinned.map("hardware_addresses")
        self._destinations = Destinations(pinned)
        self._network = Interfaces((), 0, 0)
        self._fast_path = STACK
        self._fast_outside: bool | None = None
        self._port_secret = 0
        self._reserved = ""
        self._written = False
        self._renewed = 0.0
        self._takeover: Takeover = "TAKEOVER_NONE"
        self._node = Node(config.node_name)
        self._nodeports = self._resolve_nodeports()

    # -- the Node object --

    def set_node(self, node: Node) -> None:
        """Use what the Node object says; the maps follow with the next :meth:`set_network`."""
        self._node = node
        self._nodeports = self._resolve_nodeports()

    def _resolve_nodeports(self) -> NodePortAddresses:
        return resolve(
            self._config.nodeport_addresses, self._node, localhost=self._config.localhost_nodeports
        )

    @property
    def nodeports(self) -> NodePortAddresses:
        """Where NodePorts answer."""
        return self._nodeports

    @property
    def fast_path(self) -> bool:
        """True if the fast path is in use, at any level."""
        return self._fast_path != STACK

    # -- settings --

    def write_settings(self, takeover: Takeover = "TAKEOVER_NONE") -> None:
        """Write the settings, and reserve the masquerade ports.

        ``takeover``: how far a build of another layout of connections is replaced.
        """
        ours = sysctl.parse_ports(_text(self._settings_in_force()["reserved_ports"]))
        reserved = sysctl.reserve_ports(self._config.masquerade_ports, ours)
        self._reserved = sysctl.format_ports(reserved)
        self._takeover = takeover
        self._write_settings()

    def set_fast_path(self, level: FastPathLevel) -> None:
        """Use the fast path at a level, as soon as settings are written."""
        self._fast_path = level

    @property
    def leaves_outside_fast(self) -> bool:
        """True if the fast path is off, but for outside connections that are on it already."""
        return bool(self._fast_outside) and self._fast_path != FAST

    def end_fast_outside(self) -> None:
        """Leave outside connections to the stack, which must know them by now."""
        self._fast_outside = False
        self.rewrite_settings()

    def renew_fast_path(self) -> None:
        """Tell the programs every few seconds that the agent still guards the fast path."""
        if self.fast_path and time.monotonic() - self._renewed >= _RENEW_SECONDS:
            self.rewrite_settings()

    def begin_nothing_fast(self) -> None:
        """Send new connections through the stack until the settings are rewritten.

        Connections that are on the fast path stay there.
        """
        begin_nothing_fast(self._pinned)

    def rewrite_settings(self) -> None:
        """Write changes of the settings, if these were written before."""
        if self._written:
            self._write_settings()

    def _write_settings(self) -> None:
        self._written = True
        self._renewed = time.monotonic()
        in_force = self._settings_in_force()
        if self._fast_outside is None:  # an earlier agent may have left some
            self._fast_outside = bool(in_force["fast_outside"])
            self._port_secret = int(in_force["port_secret"]) or secrets.randbits(32)
        self._fast_outside |= self._fast_path == FAST
        values = self._settings_values()
        entry = self._settings_record.pack(values)
        if entry == self._settings_record.pack(in_force):
            return
        if values["established"] and not in_force["established"]:
            established_flows.forget_all(self._pinned)
        self._settings.update(_ONLY_KEY, entry)

    def _settings_in_force(self) -> dict[str, Value]:
        """Return the settings that the programs read; all are zero before the first writing."""
        record = self._settings_record
        return record.unpack(self._settings.lookup(_ONLY_KEY) or bytes(record.size))

    def _settings_values(self) -> dict[str, Value]:
        ports, keep = self._config.masquerade_ports, self._config.lifetimes
        mesh_ports = self._config.mesh_ports
        constant = self._pinned.layout.constant
        values: dict[str, Value] = {
            "netns_cookie": cgroup.netns_cookie(),
            "masquerade_first": ports.first,
            "masquerade_ports": ports.last - ports.first + 1,
            "tcp_established_seconds": keep.tcp_established,
            "tcp_half_closed_seconds": keep.tcp_half_closed,
            "tcp_closed_seconds": keep.tcp_closed,
            "half_open_seconds": keep.half_open,
            "udp_seconds": keep.udp,
            "sctp_seconds": keep.sctp,
            "reserved_ports": self._reserved.encode(),
            "takeover": constant(self._takeover),
            "socket_lb": constant(f"SOCKET_LB_{self._config.socket_lb.upper()}"),
            "fast_path": self._fast_path == FAST,
            "established": self._fast_path == ESTABLISHED,
            "fast_outside": bool(self._fast_outside),
            "port_secret": self._port_secret,
            "fast_path_second": int(time.monotonic()) if self.fast_path else 0,
            "mesh_ports": struct.pack("=4H", *mesh_ports, *[0] * (4 - len(mesh_ports))),
            "detect_interfaces": self._config.detection.by_interface,
        }
        values |= _icmp_limits(constant("ICMP_UNLIMITED"))
        for of_family in (4, 6):
            values[f"node_v{of_family}"] = self._primary_address(of_family) or _NO_ADDRESS
        for of_family, (network, mask) in self._config.detection.ranges(self._node).items():
            name = f"v{of_family}"
            values |= {f"pod_network_{name}": network, f"pod_mask_{name}": mask}
            values[f"detect_pods_{name}"] = 1
        return values

    def _primary_address(self, of_family: int) -> bytes | None:
        """Return the source address of the node's own sockets: the Node object's, or by routes."""
        named = primary_address(self._node.addresses, of_family)
        return named or default_source_address(self._network, of_family)

    # -- addresses and interfaces --

    def set_network(self, network: Interfaces) -> set[bytes]:
        """Write the settings and addresses of ``network``; return addresses that are gone."""
        self._network = network
        self._write_settings()
        record = self._pinned.layout.maps["node_addresses"].value
        # Only socket programs read the entry of loopback: packets to 127/8 are not translated.
        constant = self._pinned.layout.constant
        states = {state: constant(f"NODEPORTS_{state.upper()}") for state in NODEPORT_STATES}
        entries = {
            address: record.pack({"nodeports": states[self._nodeports.state(address)]})
            for address in {*addresses(network), LOOPBACK}
        }
        gone = {address for address, _ in self._addresses.items()} - entries.keys()
        self._destinations.add(entries)
        self._addresses.replace(entries)
        macs = {device.mac for device in network.devices if len(device.mac) == _MAC}
        self._macs.replace({mac + bytes(8 - _MAC): bytes(4) for mac in macs})
        return gone

    def write_interfaces(self, chosen: Sequence[Device], shared: Mapping[int, bool]) -> None:
        """Write the interfaces that programs are attached to.

        ``shared``: by index, True for an interface with programs of others: the fast path would
        bypass them.
        """
        self._interfaces.replace(self._interface_entries(chosen, shared))
        self._masquerades.clean()

    def add_interfaces(
        self, new: Sequence[Device], network: Interfaces, shared: Mapping[int, bool]
    ) -> None:
        """Write more interfaces; ``shared`` as for :meth:`write_interfaces`."""
        self._network = network
        entries = self._interface_entries(new, shared)
        self._interfaces.update_many(entries.items())

    def _interface_entries(
        self, chosen: Sequence[Device], shared: Mapping[int, bool]
    ) -> dict[bytes, bytes]:
        record = self._pinned.layout.maps["interfaces"].value
        network = self._network
        # Exceptions are there before an interface refers to them, and as long as one does.
        masqueraded = self._masquerades.follow_network(network, chosen)
        pods = self._config.detection.pod_interfaces(arrival_names(network.devices))
        entries: dict[int, dict[str, Value]] = {
            bridge.index: {"shortcut": not shared.get(bridge.index), "bridge": bridge.index}
            for bridge in bridges_of(chosen, network)
        }
        for device in chosen:
            bridge = bridge_of(device, network)
            entries[device.index] = {
                **masqueraded[device.index],
                "pods": device.index in pods,
                "shortcut": (device.routes or bridge is not None) and not shared.get(device.index),
                "peer": allows_fast_path(device, network) and not shared.get(device.index),
                "bridge": bridge.index if bridge else 0,
            }
        return {struct.pack("=I", index): record.pack(entry) for index, entry in entries.items()}


def _icmp_limits(unlimited: int) -> dict[str, Value]:
    """Return the kernel's limits of ICMP errors, as settings."""
    limits = sysctl.icmp_limits()
    intervals = {
        f"icmp_interval_v{of_family}": unlimited if interval is None else interval
        for of_family, interval in limits.intervals.items()
    }
    return {"icmp_per_second": limits.per_second, "icmp_burst": limits.burst, **intervals}


def _text(field: Value) -> str:
    return field.rstrip(b"\0").decode() if isinstance(field, bytes) else ""


def begin_nothing_fast(pinned: Pinned) -> None:
    """Have the programs of a build, of any version, send new connections through the stack."""
    settings, record = pinned.map("settings"), pinned.layout.maps["settings"].value
    values = record.unpack(settings.lookup(_ONLY_KEY) or bytes(record.size))
    if "fast_path_second" in values:
        values["fast_path_second"] = int(time.monotonic()) - _LONG_AGO & 0xFFFFFFFF
        settings.update(_ONLY_KEY, record.pack(values))
