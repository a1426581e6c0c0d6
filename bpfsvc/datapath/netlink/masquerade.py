"""Which address of the node a packet is masqueraded to: the same as by netfilter's MASQUERADE.

So a node looks the same from outside under kube-proxy and under bpfsvc, and its answers come back
by the same way. The kernel's rules (``nf_nat_masquerade_ipv4`` and ``_ipv6``) differ by family:

* IPv4 (``inet_select_addr``): of the primary global addresses of the interface by which the packet
  leaves, the first with a subnet that holds the *next hop*, else the first. If the interface has
  no address, the first of its VRF, else of the interface that was registered first (``lo``).
* IPv6 (``ipv6_dev_get_saddr``): the rules of RFC 6724, over all addresses of the node, for the
  packet's *destination*.

Routes are the kernel's business. So this module makes a table for each interface: an address, and
exceptions by prefix of the next hop or destination. Most interfaces have no exceptions.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, permutations
from operator import itemgetter
from typing import NamedTuple

from bpfsvc.base.address import family as family_of
from bpfsvc.base.networks import ALL_BITS, Network, contains
from bpfsvc.datapath.netlink.devices import Device, DeviceAddress, Interfaces

_V4_BITS = 96
"""Bits of a v4-mapped address before the IPv4 address."""


class MasqueradeChoice(NamedTuple):
    """The addresses that packets leaving by an interface are masqueraded to.

    * ``default``: the address, packed; None if there is none.
    * ``exceptions``: other addresses, by network of the next hop (IPv4) or destination (IPv6); the
      longest network that holds it counts.
    * ``of``: the index of the interface for which the exceptions were chosen; all interfaces that
      share the exceptions have the same.
    """

    default: bytes | None
    exceptions: tuple[tuple[Network, bytes], ...] = ()
    of: int = 0

    def address(self, towards: bytes) -> bytes | None:
        """Return the address for a next hop (IPv4) or destination (IPv6)."""
        holding = [exception for exception in self.exceptions if contains(exception[0], towards)]
        return max(holding, key=lambda exception: exception[0].bits)[1] if holding else self.default


class Masquerades:
    """The choices for one state of the node's interfaces, computed at the first request.

    Interfaces without own addresses, such as the interfaces of pods, share one choice.
    """

    def __init__(self, network: Interfaces) -> None:
        self._network = network
        self._by_index = {device.index: device for device in network.devices}
        self._known: dict[tuple[int, int, int], MasqueradeChoice] = {}

    def out(self, device: Device) -> Device:
        """Return the interface that routes name for packets that leave by ``device``.

        That is the bridge for a port of a bridge.
        """
        while (master := self._by_index.get(device.master)) and master.kind != "vrf":
            device = master
        return device

    def choice(self, device: Device, family: int) -> MasqueradeChoice:
        """Return the choice for packets of family 4 or 6 that leave by ``device``."""
        out = self.out(device)
        vrf = self._vrf(out)
        own = _primary(out) if family == 4 else _global(out)
        key = (family, vrf, out.index if any(own) else 0)
        if key not in self._known:
            choose = self._choose_v4 if family == 4 else self._choose_v6
            self._known[key] = choose(out, vrf)
        return self._known[key]

    def _vrf(self, device: Device) -> int:
        """Return the index of the VRF that an interface is or belongs to; 0 for none."""
        if device.kind == "vrf":
            return device.index
        master = self._by_index.get(device.master)
        return master.index if master is not None and master.kind == "vrf" else 0

    def _domain(self, vrf: int, order: Sequence[int]) -> list[Device]:
        """Return the interfaces of a VRF (0: of none), in the order in which the kernel asks them.

        The VRF's own comes first. ``order``: indices; those that it lacks come last.
        """
        ranks = {index: rank for rank, index in enumerate(order)} | {vrf: -1}
        domain = [device for device in self._network.devices if self._vrf(device) == vrf]
        domain.sort(key=lambda device: (ranks.get(device.index, len(ranks)), device.index))
        return domain

    # -- IPv4 --

    def _choose_v4(self, out: Device, vrf: int) -> MasqueradeChoice:
        own = list(_primary(out))
        if not own:
            asked = self._domain(vrf, self._network.order_v4)
            others = (address.address for device in asked for address in _primary(device))
            return MasqueradeChoice(next(others, None))
        subnets: list[tuple[Network, bytes]] = []
        for address in own:
            network = Network(address.peer or address.address, _V4_BITS + address.prefix)
            # The first subnet that holds the next hop counts, however short its prefix.
            if not any(_within(network, before) for before, _ in subnets):
                subnets.append((network, address.address))
        return _compressed(own[0].address, subnets, out.index)

    # -- IPv6 --

    def _choose_v6(self, out: Device, vrf: int) -> MasqueradeChoice:
        candidates = [
            _Candidate.of(address, device, out)
            for device in self._domain(vrf, self._network.order_v6)
            for address in _global(device)
        ]
        if not candidates:
            return MasqueradeChoice(None)
        eligible = {site: _first(candidates, site) for site in (False, True)}
        if len(eligible[False]) == 1 and eligible[False] == eligible[True]:
            return MasqueradeChoice(eligible[False][0].address)

        def choose(destination: int) -> bytes:
            # Among equals the first one: that is also what max() returns.
            among = eligible[_holds(_SITE_LOCAL, destination)]
            return max(among, key=lambda candidate: candidate.towards(destination)).address

        divergences = chain.from_iterable(map(_divergences, eligible.values()))
        regions = sorted({*_LABELS, _ORCHID, *divergences}, key=itemgetter(1))
        chosen = [
            (Network(bits.to_bytes(16, "big"), length), choose(example))
            for (bits, length), example in _examples(regions)
        ]
        # The first region is the widest: all other networks, or half of them.
        return _compressed(chosen[0][1], chosen, out.index)


def _primary(device: Device) -> Iterator[DeviceAddress]:
    """Yield the IPv4 addresses that the kernel would choose, in its order."""
    return (
        address
        for address in device.addresses
        if family_of(address.address) == 4 and address.selectable and not address.scope
    )


def _global(device: Device) -> Iterator[DeviceAddress]:
    """Yield the IPv6 addresses that can be a source towards another network, in kernel order."""
    for address in device.addresses:
        number = int.from_bytes(address.address, "big")
        usable = number > 1 and not _holds(_LINK_LOCAL, number) and not address.tentative
        if usable and family_of(address.address) == 6:
            yield address


def _within(inner: Network, outer: Network) -> bool:
    return inner.bits >= outer.bits and contains(outer, inner.address)


def _compressed(
    default: bytes, chosen: Iterable[tuple[Network, bytes]], of: int
) -> MasqueradeChoice:
    """Return a choice without the exceptions that change nothing; longer networks count more."""
    choice = MasqueradeChoice(default, (), of)
    for network, address in sorted(chosen, key=lambda pair: pair[0].bits):
        if choice.address(network.address) != address:
            rest = ALL_BITS - network.bits
            start = int.from_bytes(network.address, "big") >> rest << rest
            exception = (Network(start.to_bytes(16, "big"), network.bits), address)
            choice = choice._replace(exceptions=(*choice.exceptions, exception))
    return choice


# Prefixes of IPv6 as numbers: (the address, the length).
_Prefix = tuple[int, int]


def _prefix(text: str) -> _Prefix:
    network = ipaddress.IPv6Network(text)
    return int(network.network_address), network.prefixlen


_LABELS = {
    _prefix("::1/128"): 0,
    _prefix("::/0"): 1,
    _prefix("2002::/16"): 2,
    _prefix("::/96"): 3,
    _prefix("::ffff:0:0/96"): 4,
    _prefix("fc00::/7"): 5,
    _prefix("2001::/32"): 6,
    _prefix("2001:10::/28"): 7,
    _prefix("fec0::/10"): 11,
    _prefix("3ffe::/16"): 12,
}
"""The kernel's labels (``net/ipv6/addrlabel.c``), unless ``ip addrlabel`` changed them."""

_ORCHID = _prefix("2001:10::/28")
_LINK_LOCAL, _SITE_LOCAL = _prefix("fe80::/10"), _prefix("fec0::/10")


def _holds(prefix: _Prefix, number: int) -> bool:
    start, length = prefix
    return number >> (ALL_BITS - length) == start >> (ALL_BITS - length)


def _label(number: int) -> int:
    return _LABELS[
        max((prefix for prefix in _LABELS if _holds(prefix, number)), key=lambda prefix: prefix[1])
    ]


def _common(left: int, right: int) -> int:
    """Return the number of first bits that two addresses share."""
    return ALL_BITS - (left ^ right).bit_length()


class _Candidate(NamedTuple):
    """An address that the kernel considers as a source, and what counts for and against it.

    ``first`` are the rules 3 and 5: not deprecated, of the outgoing interface.
    ``is_of_preferred_kind`` is rule 7: temporary or not.
    """

    address: bytes
    number: int
    prefix: int
    is_site_local: bool
    first: tuple[bool, bool]
    label: int
    is_of_preferred_kind: bool

    @classmethod
    def of(cls, given: DeviceAddress, device: Device, out: Device) -> _Candidate:
        """Return what counts for an address of ``device`` when packets leave by ``out``."""
        number = int.from_bytes(given.address, "big")
        return cls(
            given.address,
            number,
            given.prefix,
            _holds(_SITE_LOCAL, number),
            (not given.deprecated, device.index == out.index),
            _label(number),
            given.temporary == device.prefers_temporary,
        )

    def towards(self, destination: int) -> tuple[bool, bool, bool, int]:
        """Return what the rules 6 to 8 say for a destination, the greater the better."""
        return (
            self.label == _label(destination),
            self.is_of_preferred_kind,
            _holds(_ORCHID, self.number) == _holds(_ORCHID, destination),
            min(_common(self.number, destination), self.prefix),
        )


def _first(candidates: Sequence[_Candidate], site: bool) -> list[_Candidate]:
    """Return the candidates that the first rules leave for global or site-local destinations."""

    def rules(candidate: _Candidate) -> tuple[bool, bool, bool]:
        return (candidate.is_site_local == site, *candidate.first)

    best = max(map(rules, candidates))
    return [candidate for candidate in candidates if rules(candidate) == best]


def _divergences(candidates: Iterable[_Candidate]) -> Iterator[_Prefix]:
    """Yield the prefixes within which one candidate matches more bits than another."""
    for left, right in permutations(candidates, 2):
        length = min(_common(left.number, right.number), right.prefix) + 1
        if length <= left.prefix:
            rest = ALL_BITS - length
            yield left.number >> rest << rest, length


def _examples(regions: Sequence[_Prefix]) -> Iterator[tuple[_Prefix, int]]:
    """Yield each region, a prefix, with an address in it that is in no longer prefix.

    Regions that consist of longer ones are left out.
    """
    for region in regions:
        inner = [
            prefix for prefix in regions if prefix[1] > region[1] and _holds(region, prefix[0])
        ]
        # An address that is in none of them, if there is one, is beside one of them.
        beside = (start ^ 1 << (ALL_BITS - length) for start, length in inner)
        numbers = (region[0], *(number for number in beside if _holds(region, number)))
        example = next((number for number in numbers if not _any_holds(inner, number)), None)
        if example is not None:
            yield region, example


def _any_holds(prefixes: Iterable[_Prefix], number: int) -> bool:
    return any(_holds(prefix, number) for prefix in prefixes)
