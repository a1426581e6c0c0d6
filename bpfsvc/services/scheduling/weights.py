"""The weights of endpoints, as annotations write them.

``bpfsvc.io/weights`` of a Service: ``zone/a=3, node/n2=1, 10.244.1.5=0``. ``bpfsvc.io/weight`` of
an EndpointSlice: one number, for its endpoints without a weight of the Service. Weight 0 takes an
endpoint out of service: it gets no new connections, and its connections go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from bpfsvc.base.address import pack
from bpfsvc.services.scheduling.numbers import parse_number

_K = TypeVar("_K")

MOST = 65535

USUAL = 1
"""The weight of an endpoint that no annotation says anything of."""


class Weights(NamedTuple):
    """What a Service says of its endpoints: by packed address, by node, by zone."""

    addresses: Mapping[bytes, int]
    nodes: Mapping[str, int]
    zones: Mapping[str, int]

    def of(self, address: bytes, node: str, zone: str, of_slice: int = USUAL) -> int:
        """Return the weight of an endpoint: by its address, else node, else zone, else slice.

        ``node`` and ``zone`` may be empty: it is not known where the endpoint is.
        """
        weight = self.addresses.get(address)
        if weight is None:
            weight = self.nodes.get(node)
        if weight is None:
            weight = self.zones.get(zone)
        return of_slice if weight is None else weight


NO_WEIGHTS = Weights({}, {}, {})

SliceName = tuple[str, str]
"""Kind and name of a slice."""

NO_SLICES: Mapping[SliceName, int] = {}


def parse_weights(text: str) -> Weights:
    """Read the weights of a Service. Raises ``ValueError`` with one line."""
    addresses: dict[bytes, int] = {}
    named: dict[str, dict[str, int]] = {"node": {}, "zone": {}}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, number = (word.strip() for word in part.rpartition("="))
        if not equals:
            raise ValueError(f"{part!r} must be NAME=WEIGHT")
        kind, slash, rest = name.partition("/")
        if slash and rest and kind in named:
            _add(named[kind], rest, name, number)
        else:
            _add(addresses, _address(name), name, number)
    return Weights(addresses, named["node"], named["zone"])


def parse_weight(text: str) -> int:
    """Read one weight. Raises ``ValueError`` with one line."""
    return parse_number(text, 0, MOST, "a weight")


def _add(weights: dict[_K, int], key: _K, name: str, number: str) -> None:
    if key in weights:
        raise ValueError(f"{name} has two weights")
    weights[key] = parse_weight(number)


def _address(name: str) -> bytes:
    try:
        return pack(name)
    except ValueError:
        raise ValueError(f"{name!r} must be zone/NAME, node/NAME or an IP address") from None
