"""Interfaces as values: which of them to attach, and which address masquerades what leaves them.

The choice follows from one rule of the data path: **a packet meets our ingress once, and our egress
once**. Where the kernel stacks one interface on others (a bridge on its ports, a bond on its
slaves, a VRF), exactly one floor of the stack is attached:

* the ports of a bridge and not the bridge, because what is switched from port to port never
  passes the bridge itself, and replies between pods of one node take that way;
* the bond and not its slaves, because a slave hands what it receives to the bond.

The masquerade address is the one netfilter's MASQUERADE would take, so that a node looks the same
from outside under kube-proxy and under bpfsvc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from bpfsvc.address import family as family_of

LOOPBACK = "loopback"
"""The kind given to the loopback interface, for which the kernel has no name."""

_ARPHRD_ETHER = 1
_ARPHRD_LOOPBACK = 772
_ARPHRD_IP_ONLY = frozenset({512, 519, 768, 769, 776, 778, 823, 0xFFFE})
"""PPP, RAWIP, TUNNEL, TUNNEL6, SIT, IPGRE, IP6GRE, NONE: packets begin with their IP header."""

_STACKED = frozenset({"bridge", "vrf", "openvswitch"})
"""Masters whose ports are attached in their place."""

_BUNDLES = frozenset({"bond", "team"})
"""Masters that are attached in place of their ports."""

_WITHOUT_TRAFFIC = frozenset({LOOPBACK, "dummy", "ifb", "nlmon"})
"""They carry no traffic of pods or of the outside, or carry copies of it."""

_NO_QUEUE = "noqueue"

_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class DeviceAddress:
    """An address of an interface. ``scope`` is the kernel's (0 global, 253 link, 254 host).

    ``selectable`` says that the kernel may choose it as a source by itself: not a secondary
    IPv4 address; not a temporary, deprecated, tentative or duplicate IPv6 address.
    """

    address: bytes
    prefix: int
    scope: int
    selectable: bool


@dataclass(frozen=True, slots=True)
class Device:
    """An interface. ``kind`` is the kernel's name of its driver's kind, or "" (hardware).

    ``master`` is the index of the bridge, bond or VRF it belongs to, or 0. ``hardware`` is the
    ARPHRD number. ``addresses`` are in the order of the kernel, which is that of preference.
    ``mac`` is the hardware address, empty where there is none.
    ``peer_elsewhere``: whether what it is bound to is in another network namespace. ``queue``:
    the kind of its queueing discipline.
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

    @property
    def routes(self) -> bool:
        """Whether packets that the node forwards come and leave by it, as Ethernet frames."""
        return self.has_ethernet and not self.master

    @property
    def has_ethernet(self) -> bool:
        """Whether packets begin with an Ethernet header."""
        return self.hardware in (_ARPHRD_ETHER, _ARPHRD_LOOPBACK)

    @property
    def carries_ip(self) -> bool:
        """Whether its packets are ones the programs can read at all."""
        return self.has_ethernet or self.hardware in _ARPHRD_IP_ONLY


@dataclass(frozen=True, slots=True)
class Network:
    """All interfaces of a network namespace, by index, and those of the default routes (or 0)."""

    devices: tuple[Device, ...]
    default_v4: int
    default_v6: int


def choose(devices: Sequence[Device], patterns: Sequence[str] = ()) -> tuple[Device, ...]:
    """Give the devices to attach: by the rule of this module, narrowed by names.

    See :func:`narrowed`.
    """
    kinds = {device.index: device.kind for device in devices}

    def rule(device: Device) -> bool:
        return _carries_traffic_once(device, kinds.get(device.master, ""))

    return narrowed(devices, patterns, rule)


def bundled(devices: Iterable[Device], bundle: Device) -> tuple[Device, ...]:
    """Give the ports of a bond or team; nothing for any other device."""
    if bundle.kind not in _BUNDLES:
        return ()
    return tuple(device for device in devices if device.master == bundle.index)


def narrowed(
    devices: Sequence[Device], patterns: Sequence[str], rule: Callable[[Device], bool]
) -> tuple[Device, ...]:
    """Give the devices that a rule chooses, narrowed by names.

    A pattern is a shell pattern over names and keeps what it matches; ``!pattern`` drops what it
    matches. A pattern without wildcards insists: that device is taken even against the rule.
    Exclusions win. With exclusions alone, everything else is chosen by the rule.
    """
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    included = [pattern for pattern in patterns if not pattern.startswith("!")]
    insisted = {pattern for pattern in included if not _WILDCARDS & set(pattern)}
    return tuple(
        device
        for device in devices
        if not _matches(device.name, excluded)
        and (
            device.name in insisted
            or ((not included or _matches(device.name, included)) and rule(device))
        )
    )


def masquerade_address(
    device: Device, network: Network, family: int, node_addresses: Iterable[bytes] = ()
) -> bytes | None:
    """Give the packed address that stands for clients of packets leaving by ``device``.

    In this order: an address of the device; of its master (a bridge port has none of its own);
    of the interface of the default route; one of ``node_addresses``; any other, with loopback and
    dummy interfaces last, as they often hold addresses of Services. Only selectable global ones
    count, and within a VRF only those of that VRF. ``family`` is 4 or 6. None if there is none.

    The kernel takes, where the first two fail, whichever interface was made first; the default
    route's is the same one on most nodes, and does not change with the order of boot.
    """
    by_index = {other.index: other for other in network.devices}
    preferred = frozenset(node_addresses)
    vrf = _vrf(device, by_index)
    default = network.default_v4 if family == 4 else network.default_v6

    def rank(other: Device, address: bytes) -> tuple[bool, bool, bool, bool, int]:
        return (
            other.index != default,
            address not in preferred,
            other.kind in _WITHOUT_TRAFFIC,
            other.kind == "dummy",
            other.index,
        )

    for own in _upwards(device, by_index):
        candidates = list(_candidates(own, family))
        if candidates:
            # IPv6 has no primary address: of several the one that the Node object names is right.
            named = [address for address in candidates if address in preferred]
            return named[0] if named and family == 6 else candidates[0]
    ranked = [
        (rank(other, address), address)
        for other in network.devices
        if _vrf(other, by_index) == vrf
        for address in _candidates(other, family)
    ]
    # The rank alone decides; among equals (one device) the kernel's order stands.
    return min(ranked, key=lambda entry: entry[0])[1] if ranked else None


def leads_to_pod(device: Device, network: Network) -> bool:
    """Whether packets may be given to its other end as if they had just come in there.

    It is a veth into another namespace, and nothing that limits what goes there is passed over. The
    uplink of a node that is itself a container is such a veth, too: there is more behind it.
    """
    return (
        device.routes
        and device.kind == "veth"
        and device.peer_elsewhere
        and device.queue in ("", _NO_QUEUE)
        and device.index not in (network.default_v4, network.default_v6)
        and not any(_is_of_subnet(each) for each in device.addresses)
    )


def _is_of_subnet(address: DeviceAddress) -> bool:
    whole = 32 if family_of(address.address) == 4 else 128
    return not address.scope and address.prefix < whole


def default_address(network: Network, family: int) -> bytes | None:
    """Give the address that sockets of the node come from by the default route, if there is one."""
    default = network.default_v4 if family == 4 else network.default_v6
    found = (
        address
        for device in network.devices
        if device.index == default
        for address in _candidates(device, family)
    )
    return next(found, None)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _carries_traffic_once(device: Device, master_kind: str) -> bool:
    return (
        device.carries_ip
        and device.kind not in _WITHOUT_TRAFFIC
        and device.kind not in _STACKED
        and master_kind not in _BUNDLES
    )


def _upwards(device: Device, by_index: dict[int, Device]) -> Iterator[Device]:
    """Give a device, its master, the master's master ... (the kernel forbids loops of them)."""
    current: Device | None = device
    while current is not None:
        yield current
        current = by_index.get(current.master) if current.master else None


def _vrf(device: Device, by_index: dict[int, Device]) -> int:
    """Give the index of the VRF a device belongs to, or is; 0 for none."""
    return next((each.index for each in _upwards(device, by_index) if each.kind == "vrf"), 0)


def _candidates(device: Device, family: int) -> Iterator[bytes]:
    return (
        each.address
        for each in device.addresses
        if each.selectable and each.scope == 0 and family_of(each.address) == family
    )
