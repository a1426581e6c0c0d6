"""Interfaces as values, and which of them to attach.

The choice follows from one rule of the data path: **a packet meets our ingress once, and our egress
once**. Where the kernel stacks one interface on others (a bridge on its ports, a bond on its
slaves, a VRF), exactly one level of the stack is attached:

* the ports of a bridge and not the bridge, because packets that are switched from port to port,
  such as replies between pods of one node, do not pass the bridge itself;
* the bond and not its slaves, because a slave passes what it receives to the bond.

A macvlan is attached, and so is the interface below it: other macvlans reach a macvlan without that
interface. A packet that passes both is recognised by a mark (``bpf/path/marks.h``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bpfsvc.base.address import family as family_of

LOOPBACK = "loopback"
"""The kind of the loopback interface, for which the kernel has no name."""

_ARPHRD_ETHER = 1
_ARPHRD_LOOPBACK = 772
_ARPHRD_IP_ONLY = frozenset({512, 519, 768, 769, 776, 778, 823, 0xFFFE})
"""PPP, RAWIP, TUNNEL, TUNNEL6, SIT, IPGRE, IP6GRE, NONE: packets begin with their IP header."""

_STACKED = frozenset({"bridge", "vrf", "openvswitch"})
"""Masters that are not attached; their ports are."""

_BONDS = frozenset({"bond", "team"})
"""Masters that are attached in place of their ports."""

_WITHOUT_TRAFFIC = frozenset({LOOPBACK, "dummy", "ifb", "nlmon"})
"""Interfaces without traffic of pods or external clients, or with copies of it."""

_TUNNELS = frozenset(
    {"vxlan", "geneve", "ipip", "sit", "gre", "gretap", "ip6tnl", "ip6gre", "tun", "wireguard"}
)

_PAIRS = frozenset({"veth", "netkit"})
"""Kinds of pairs, with one end in a pod. netkit has an Ethernet header in both of its modes."""

_OF_GUESTS = _PAIRS | {"tun"}

_NO_QUEUE = "noqueue"

_WILDCARDS = frozenset("*?[")


_IPVS_DEVICE = "kube-ipvs0"
"""In kube-proxy's ipvs mode this interface has every cluster IP. These are no node addresses."""


@dataclass(frozen=True, slots=True)
class DeviceAddress:
    """An address of an interface. ``scope`` is the kernel's (0 global, 253 link, 254 host).

    * ``selectable``: the kernel may choose it as a source address: it is not a secondary IPv4
      address, and not a temporary, deprecated, tentative or duplicate IPv6 address.
    * ``peer``: of IPv4, an address of the subnet, where that is not the one of ``address``.
    * ``deprecated``, ``temporary``, ``tentative``: of IPv6. A deprecated address is chosen where
      there is no other. A tentative one is not in use yet, or is a duplicate, and never chosen.
    """

    address: bytes
    prefix: int
    scope: int
    selectable: bool
    peer: bytes = b""
    deprecated: bool = False
    temporary: bool = False
    tentative: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """An interface.

    * ``kind``: the kernel's name of the driver's kind, or "" (hardware).
    * ``master``: the index of the bridge, bond or VRF it belongs to, or 0.
    * ``hardware``: the ARPHRD number.
    * ``addresses``: in the kernel's order, the preferred address first.
    * ``mac``: the hardware address; empty if there is none.
    * ``peer_elsewhere``: its peer, or the interface it is on, is in another network namespace.
    * ``queue``: the kind of its queueing discipline.
    * ``drops``: the kernel drops all that leaves by it (netkit with the policy ``blackhole``).
    * ``prefers_temporary``: of its IPv6 addresses, the kernel prefers temporary ones.
    """

    index: int
    name: str
    kind: str
    master: int
    up: bool
    hardware: int
    addresses: tuple[DeviceAddress, ...]
    mac: bytes = b""
    peer_elsewhere: bool = False
    queue: str = ""
    prefers_temporary: bool = False
    drops: bool = False

    @property
    def routes(self) -> bool:
        """True if packets that the node forwards arrive and leave by it, as Ethernet frames."""
        return self.has_ethernet and not self.master

    @property
    def has_ethernet(self) -> bool:
        """True if packets begin with an Ethernet header."""
        return self.hardware in (_ARPHRD_ETHER, _ARPHRD_LOOPBACK)

    @property
    def carries_ip(self) -> bool:
        """True if the programs can read its packets."""
        return self.has_ethernet or self.hardware in _ARPHRD_IP_ONLY


@dataclass(frozen=True, slots=True)
class Interfaces:
    """All interfaces of a network namespace, in the order of their indices.

    ``default_v4``, ``default_v6``: the index of the default route's interface, or 0. ``order_v4``,
    ``order_v6``: the interfaces with addresses of the family, in the order in which the kernel goes
    through them: the order of registration in the namespace.
    """

    devices: tuple[Device, ...]
    default_v4: int
    default_v6: int
    order_v4: tuple[int, ...] = ()
    order_v6: tuple[int, ...] = ()


def devices_to_attach(
    devices: Sequence[Device], patterns: Sequence[str] = ()
) -> tuple[Device, ...]:
    """Return the devices to attach, by the rule of this module and by :func:`select_by_name`."""
    kinds = {device.index: device.kind for device in devices}

    def rule(device: Device) -> bool:
        return _carries_traffic_once(device, kinds.get(device.master, ""))

    return select_by_name(devices, patterns, rule)


def arrival_names(devices: Iterable[Device]) -> dict[int, str]:
    """Return, by index, the name of the interface by which IP sees a packet arrive.

    That is the bridge for a port of a bridge, and the interface itself otherwise.
    """
    known = {device.index: device for device in devices}
    bridges = {index: device.name for index, device in known.items() if device.kind == "bridge"}
    return {index: bridges.get(device.master, device.name) for index, device in known.items()}


def bond_ports(devices: Iterable[Device], bond: Device) -> tuple[Device, ...]:
    """Return the ports of a bond or team; nothing for any other device."""
    if bond.kind not in _BONDS:
        return ()
    return tuple(device for device in devices if device.master == bond.index)


def select_by_name(
    devices: Sequence[Device], patterns: Sequence[str], rule: Callable[[Device], bool]
) -> tuple[Device, ...]:
    """Return the devices that a rule chooses and that patterns of names do not exclude.

    A pattern is a shell pattern over names and keeps what it matches; ``!pattern`` excludes what it
    matches. A device named without wildcards is chosen even against the rule. Exclusions come
    first. With exclusions alone, the rule chooses among all other devices.
    """
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    included = [pattern for pattern in patterns if not pattern.startswith("!")]
    by_full_name = {pattern for pattern in included if not _WILDCARDS & set(pattern)}
    return tuple(
        device
        for device in devices
        if not _matches(device.name, excluded)
        and (
            device.name in by_full_name
            or ((not included or _matches(device.name, included)) and rule(device))
        )
    )


def choice_fault(
    devices: Sequence[Device], patterns: Sequence[str], chosen: Sequence[Device]
) -> str:
    """Return the fault if no device at all is chosen, by patterns or by the rule; else ""."""
    if chosen:
        return ""
    names = ", ".join(sorted(device.name for device in devices)) or "none"
    if patterns:
        return (
            f"no interface has programs attached: --devices {','.join(patterns)} matches none of"
            f" the interfaces of this node ({names})"
        )
    return (
        "no interface has programs attached: no interface of this node carries packets of pods"
        f" or other machines ({names})"
    )


def bridge_of(device: Device, network: Interfaces) -> Device | None:
    """Return the bridge that an interface is a port of, if packets are routed there."""
    for other in network.devices:
        if other.index == device.master:
            return other if other.kind == "bridge" and other.routes else None
    return None


def bridges_of(ports: Iterable[Device], network: Interfaces) -> tuple[Device, ...]:
    """Return the bridges of these ports, each once."""
    bridges = {bridge.index: bridge for port in ports if (bridge := bridge_of(port, network))}
    return tuple(bridges.values())


def with_bridges_of(
    shared: Mapping[int, bool], ports: Iterable[Device], network: Interfaces
) -> dict[int, bool]:
    """Return ``shared``, by index, with the bridges of the shared ones among ``ports``.

    A packet is redirected to a bridge, whichever port it leaves by; the answer comes by the port.
    Where the answer takes the stack, conntrack would see the answers alone.
    """
    bridges = bridges_of((port for port in ports if shared.get(port.index)), network)
    return {**shared, **{bridge.index: True for bridge in bridges}}


def allows_fast_path(device: Device, network: Interfaces) -> bool:
    """True if the fast path may redirect packets to the other end of this interface.

    It must be a veth or netkit into another namespace without a queueing discipline, which the fast
    path would skip; the same is true of its bridge, if it is a port of one. The uplink of a node
    that is itself a container is such a pair, too, and leads to more than one pod: it has the
    default route or an address of a subnet.
    """
    skipped = bridge_of(device, network) if device.master else device
    return (
        skipped is not None
        and skipped.routes
        and device.kind in _PAIRS
        and not device.drops
        and device.peer_elsewhere
        and {device.queue, skipped.queue} <= {"", _NO_QUEUE}
        and device.index not in (network.default_v4, network.default_v6)
        and not any(_is_of_subnet(address) for address in device.addresses)
    )


def uplinks(network: Interfaces) -> tuple[Device, ...]:
    """Return the interfaces by which packets of other machines come, tunnels excepted."""
    return tuple(device for device in network.devices if _is_uplink(device, network))


def _is_uplink(device: Device, network: Interfaces) -> bool:
    ports = [port for port in network.devices if port.master == device.index]
    return (
        device.up
        and device.carries_ip
        and device.kind not in _WITHOUT_TRAFFIC | _TUNNELS
        and any(_is_of_subnet(address) for address in device.addresses)
        # Behind a bridge of pairs and taps alone there are containers and virtual machines.
        and not (device.kind == "bridge" and all(port.kind in _OF_GUESTS for port in ports))
    )


def _is_of_subnet(address: DeviceAddress) -> bool:
    whole = 32 if family_of(address.address) == 4 else 128
    return not address.scope and address.prefix < whole


def default_source_address(network: Interfaces, family: int) -> bytes | None:
    """Return the source address of the node's sockets by the default route, if there is one."""
    default = network.default_v4 if family == 4 else network.default_v6
    candidates = (
        address
        for device in network.devices
        if device.index == default
        for address in _candidates(device, family)
    )
    return next(candidates, None)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _carries_traffic_once(device: Device, master_kind: str) -> bool:
    return (
        device.carries_ip
        and device.kind not in _WITHOUT_TRAFFIC
        and device.kind not in _STACKED
        and master_kind not in _BONDS
    )


def _candidates(device: Device, family: int) -> Iterator[bytes]:
    return (
        address.address
        for address in device.addresses
        if address.selectable and address.scope == 0 and family_of(address.address) == family
    )


def addresses(network: Interfaces) -> set[bytes]:
    """Return the addresses of the node, without link-local ones, which need their interface."""
    return {
        address.address
        for device in network.devices
        if device.name != _IPVS_DEVICE
        for address in device.addresses
        if not _is_link_local(address.address)
    }


def _is_link_local(address: bytes) -> bool:
    return address[0] == 0xFE and address[1] & 0xC0 == 0x80
