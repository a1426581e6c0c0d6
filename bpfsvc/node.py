"""This node in the kernel: settings, addresses, interfaces, and the programs attached to them.

The network changes whenever a pod comes or goes, so everything here is written again from a fresh
picture and only differences cost anything. An interface that vanishes while it is being attached is
everyday; one that cannot be attached is reported once and leaves the others alone.
"""

from __future__ import annotations

import logging
import struct
from pathlib import Path

from bpfsvc.config import SOCKET_LB, Config
from bpfsvc.datapath import attachment, sockets, sysctls
from bpfsvc.datapath.bpf import program_id
from bpfsvc.datapath.compiler import SOCKET_PROGRAMS
from bpfsvc.datapath.destinations import Destinations
from bpfsvc.datapath.installation import Installation
from bpfsvc.datapath.layout import Value
from bpfsvc.datapath.netlink.devices import (
    Device,
    Network,
    choose,
    default_address,
    leads_to_pod,
    masquerade_address,
)
from bpfsvc.datapath.netlink.hooks import DeviceGone, Hook
from bpfsvc.edge import Edge
from bpfsvc.errors import BpfsvcError
from bpfsvc.model import Node as Identity
from bpfsvc.nodeports import LOOPBACK, NodePortAddresses, resolve
from bpfsvc.surroundings import primary_address

_log = logging.getLogger(__name__)

_NOTHING = bytes(16)

_IPVS_DEVICE = "kube-ipvs0"
"""Where kube-proxy keeps every cluster IP in ipvs mode: addresses of Services, not of the node."""

_ONLY_ROW = bytes(4)


class Node:
    """What the programs know of this node, and where they are attached."""

    def __init__(self, config: Config, installation: Installation) -> None:
        self._config = config
        self._fast_path = config.fast_path
        self._installation = installation
        self._pinned = installation.pinned
        self._addresses = self._pinned.map("node_addresses")
        self._interfaces = self._pinned.map("interfaces")
        self._destinations = Destinations(self._pinned)
        self._attacher = attachment.Attacher(installation.root, config.attach, config.tc_priority)
        self.edge = Edge(config.xdp, installation)
        self._attached: dict[int, str] = {}
        self._known: set[str] = set()
        self._failed: set[str] = set()
        self._complained: dict[str, str] = {}
        self._network = Network((), 0, 0)
        self._chosen: tuple[Device, ...] = ()
        self._shared: dict[int, bool] = {}
        self._reserved = ""
        self._settling = False
        self.know(Identity(config.node_name))

    # -- settings --

    def know(self, identity: Identity) -> None:
        """Take what the Node object says; it is in force from the next :meth:`follow` on."""
        self._identity = identity
        self._nodeports = resolve(
            self._config.nodeport_addresses, identity, localhost=self._config.localhost_nodeports
        )

    @property
    def nodeports(self) -> NodePortAddresses:
        """Where NodePorts answer."""
        return self._nodeports

    def write_settings(self, *, settling: bool = False) -> None:
        """Tell the programs about this node, and reserve the masquerade ports.

        ``settling``: connections of an older build are still being carried over.
        """
        record = self._pinned.layout.maps["settings"].value
        settings = self._pinned.map("settings")
        before = record.unpack(settings.lookup(_ONLY_ROW) or bytes(record.size))
        ours = sysctls.parse_ports(_text(before["reserved_ports"]))
        reserved = sysctls.reserve_ports(self._config.masquerade_ports, ours)
        self._reserved = sysctls.format_ports(reserved)
        self._settling = settling
        self._put_settings()

    def _put_settings(self) -> None:
        settings = self._pinned.map("settings")
        row = self._pinned.layout.maps["settings"].value.pack(self._settings())
        if settings.lookup(_ONLY_ROW) != row:
            settings.update(_ONLY_ROW, row)

    def _settings(self) -> dict[str, Value]:
        ports, keep = self._config.masquerade_ports, self._config.lifetimes
        values: dict[str, Value] = {
            "netns_cookie": sockets.netns_cookie(),
            "masquerade_first": ports.first,
            "masquerade_ports": ports.last - ports.first + 1,
            "tcp_established_seconds": keep.tcp_established,
            "tcp_half_closed_seconds": keep.tcp_half_closed,
            "tcp_closed_seconds": keep.tcp_closed,
            "half_open_seconds": keep.half_open,
            "udp_seconds": keep.udp,
            "sctp_seconds": keep.sctp,
            "reserved_ports": self._reserved.encode(),
            "settling": self._settling,
            "socket_lb": SOCKET_LB.index(self._config.socket_lb),
            "fast_path": self._fast_path,
            "mesh_ports": struct.pack(
                "=4H", *self._config.mesh_ports, *[0] * (4 - len(self._config.mesh_ports))
            ),
            "detect_interfaces": self._config.detection.by_interface,
        }
        for of_family in (4, 6):
            values[f"node_v{of_family}"] = self._primary(of_family) or _NOTHING
        for of_family, (network, mask) in self._config.detection.ranges(self._identity).items():
            name = f"v{of_family}"
            values |= {f"pod_network_{name}": network, f"pod_mask_{name}": mask}
            values[f"detect_pods_{name}"] = 1
        return values

    def _primary(self, of_family: int) -> bytes | None:
        """Give what the node's own sockets come from: by the Node object, or by the routes."""
        named = primary_address(self._identity.addresses, of_family)
        return named or default_address(self._network, of_family)

    # -- addresses and interfaces --

    def follow(self, network: Network) -> None:
        """Make addresses, masquerade addresses and attachments those of ``network``.

        Addresses first: a program must find them when its first packet comes.
        """
        chosen = choose(network.devices, self._config.devices)
        self._network, self._chosen = network, chosen
        self._put_settings()
        addresses_now = self._address_rows(network)
        self._destinations.add(addresses_now)
        self._addresses.replace(addresses_now)
        self._shared = {
            device.index: self._shared[device.index]
            if device.index in self._shared
            else self._is_shared(device)
            for device in chosen
        }
        self._put_interfaces()
        present = {device.index for device in network.devices}
        for index in set(self._attached) - {device.index for device in chosen}:
            # Gone, or part of a bond by now: a packet must meet our ingress only once.
            if index in present:
                self._detach(index)
            self._known.discard(self._attached.pop(index))
        self._attacher.forget_missing(present)
        self._failed.clear()
        for device in chosen:
            if self._attached.get(device.index) != device.name:
                self._attach(device)
        self.edge.follow(network, [each for each in chosen if each.index in self._attached])

    @property
    def _cgroup(self) -> Path | None:
        """Where sockets are met; None when nobody's are translated."""
        return self._config.cgroup_root if self._config.socket_lb != "off" else None

    def attach_sockets(self) -> None:
        """Attach the socket programs, or detach what a former agent left, if nobody's are met."""
        if self._cgroup:
            sockets.attach(self._installation.root, self._pinned, self._cgroup)
        else:
            sockets.detach(self._installation.root)

    def count_sockets(self) -> int:
        """Count the socket programs that are attached."""
        return len(sockets.attached(self._installation.root))

    @property
    def attached(self) -> list[str]:
        """Names of the interfaces our programs are on."""
        return sorted(self._attached.values())

    @property
    def unattached(self) -> list[str]:
        """Names of the interfaces that the kernel never let them on."""
        return sorted(self._failed - self._known)

    @property
    def lost(self) -> list[str]:
        """Names of the interfaces that they were on, and that the kernel lets them on no more."""
        return sorted(self._failed & self._known)

    def _address_rows(self, network: Network) -> dict[bytes, bytes]:
        record = self._pinned.layout.maps["node_addresses"].value
        # Only sockets meet that of loopback: packets to 127/8 are nobody's to translate.
        return {
            address: record.pack({"nodeports": self._nodeports.state(address)})
            for address in {*addresses(network), LOOPBACK}
        }

    def _put_interfaces(self) -> None:
        record = self._pinned.layout.maps["interfaces"].value
        network = self._network
        pods = self._config.detection.pod_interfaces(network.devices)
        self._interfaces.replace(
            {
                struct.pack("=I", device.index): record.pack(
                    {
                        "v4": masquerade_address(device, network, 4) or _NOTHING,
                        "v6": masquerade_address(device, network, 6) or _NOTHING,
                        "pods": device.index in pods,
                        "shortcut": device.routes and not self._shared[device.index],
                        "peer": leads_to_pod(device, network) and not self._shared[device.index],
                    }
                )
                for device in self._chosen
            },
        )

    def _is_shared(self, device: Device) -> bool:
        """Whether a device has programs of others, which the fast path would pass by."""
        try:
            return self._fast_path and attachment.is_shared(self._installation.root, device.index)
        except BpfsvcError:
            return True

    def give_up_fast_path(self) -> bool:
        """Use it no more, for good: what was in doubt once would be again; False if it was not."""
        if not self._fast_path:
            return False
        self._fast_path = False
        self._put_settings()
        return True

    def _reconsider_fast_path(self) -> None:
        """Take out of it where somebody else has put programs since."""
        if not self._fast_path:
            return
        shared = {device.index: self._is_shared(device) for device in self._chosen}
        if shared != self._shared:
            self._shared = shared
            self._put_interfaces()

    def _attach(self, device: Device) -> None:
        suffix = "" if device.has_ethernet else "_l3"
        try:
            for hook in Hook:
                program = self._pinned.program(f"{hook}{suffix}")
                label = self._pinned.layout.digest
                for other in self._attacher.attach(device.index, hook, program, label):
                    self._complain(
                        f"{device.name} {hook}",
                        f"{device.name} {hook}: another program comes first ({other});"
                        " if it ends the walk, Services do not work there"
                        " (lower --tc-priority, or let it return 'unspecified')",
                    )
        except DeviceGone:
            return
        except BpfsvcError as error:
            self._failed.add(device.name)
            self._complain(device.name, f"{device.name} is not attached: {error}")
            return
        self._attached[device.index] = device.name
        self._known.add(device.name)

    def _detach(self, index: int) -> None:
        try:
            attachment.detach(self._installation.root, index)
        except BpfsvcError as error:
            self._complain(str(index), f"cannot detach: {error}")

    def _complain(self, about: str, text: str) -> None:
        if self._complained.get(about) != text:
            self._complained[about] = text
            _log.warning("%s", text)

    def check_attachments(self) -> list[str]:
        """Find what lost our programs, interfaces and sockets; give the names.

        Sockets get them again at once, interfaces with the next :meth:`follow`.
        """
        lost = []
        self._reconsider_fast_path()
        if self._cgroup and self.count_sockets() < len(SOCKET_PROGRAMS):
            lost.append(f"the sockets of {self._cgroup}")
            self.attach_sockets()
        for index, name in list(self._attached.items()):
            try:
                present = all(self._is_attached(index, hook) for hook in Hook)
            except DeviceGone:
                continue
            if not present:
                lost.append(name)
                del self._attached[index]
        return lost + self.edge.check()

    def _is_attached(self, index: int, hook: Hook) -> bool:
        ours = {program_id(self._pinned.program(f"{hook}{suffix}")) for suffix in ("", "_l3")}
        return bool(attachment.programs(self._installation.root, index, hook) & ours)


def addresses(network: Network) -> set[bytes]:
    """Give the addresses of the node, but those that say nothing without their interface."""
    return {
        each.address
        for device in network.devices
        if device.name != _IPVS_DEVICE
        for each in device.addresses
        if not _is_link_local(each.address)
    }


def _is_link_local(address: bytes) -> bool:
    return address[0] == 0xFE and address[1] & 0xC0 == 0x80


def _text(field: Value) -> str:
    return field.rstrip(b"\0").decode() if isinstance(field, bytes) else ""
