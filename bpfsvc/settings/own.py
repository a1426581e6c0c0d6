"""The settings that kube-proxy has no names for: a second document in the same file.

kube-proxy reads the first document of its file and no further, so one file serves both, and the way
back needs no other. Nobody else writes this block, so an unknown field in it is a mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Annotated

from msgspec import Meta, field, structs

from bpfsvc.config import (
    DEFAULT_LAST_GOOD,
    DEFAULT_MASQUERADE_PORTS,
    DEFAULT_MESH_PORTS,
    DEFAULT_PIN_ROOT,
    MOST_MESH_PORTS,
    SocketLb,
)
from bpfsvc.datapath.attachment import Way
from bpfsvc.datapath.cache import DEFAULT as DEFAULT_CACHE
from bpfsvc.datapath.netlink.hooks import PRIORITY
from bpfsvc.datapath.source import Sizes
from bpfsvc.datapath.sysctls import NODE_PORTS, PortRange
from bpfsvc.settings.durations import Duration
from bpfsvc.settings.fitting import Findings
from bpfsvc.settings.shape import Shape

API_VERSION = "bpfsvc.io/v1alpha1"
KIND = "BpfsvcConfiguration"

DEFAULT_PATIENCE = Duration.of(10)

NOWHERE = "none"
"""In place of a path: do without."""

OFF = "off"
"""In place of patterns: nowhere."""


class Own(Shape, frozen=True):
    """BpfsvcConfiguration, but for ``apiVersion`` and ``kind``; :mod:`bpfsvc.config` explains it.

    ``cache`` and ``lastGood`` are paths, or ``none``; ``cgroupRoot`` is so too, or empty: then it
    is looked for. ``manifests`` is empty: the objects are those of the API server. ``mapSizes`` has
    a row count for each of ``SIZES``.
    """

    attach: Way = "auto"
    cache: str = str(DEFAULT_CACHE)
    cgroup_root: str = ""
    devices: list[str] = field(default_factory=list)
    fast_path: bool = False
    last_good: str = str(DEFAULT_LAST_GOOD)
    last_good_after: Duration = DEFAULT_PATIENCE
    manifests: str = ""
    map_sizes: dict[str, int] = field(default_factory=dict)
    masquerade_ports: str = str(DEFAULT_MASQUERADE_PORTS)
    mesh_ports: list[Annotated[int, Meta(ge=1, le=65535)]] = field(
        default_factory=lambda: [*DEFAULT_MESH_PORTS]
    )
    pin_root: str = str(DEFAULT_PIN_ROOT)
    service_node_port_range: str = str(NODE_PORTS)
    socket_lb: SocketLb = "all"
    source_ranges_for_all: bool = False
    tc_priority: Annotated[int, Meta(ge=1, le=0xBFFF)] = PRIORITY
    xdp: list[str] = field(default_factory=list)

    def sizes(self) -> Sizes:
        """Give the sizes of the maps."""
        return Sizes(**{SIZES[name]: rows for name, rows in self.map_sizes.items()})


def _camel(name: str) -> str:
    first, *rest = name.removeprefix("max_").split("_")
    return first + "".join(word.capitalize() for word in rest)


SIZES = {_camel(each.name): each.name for each in fields(Sizes)}
"""Name in ``mapSizes`` -> name in :class:`Sizes`: ``backendSlots`` -> ``max_backend_slots``."""

MOST_ROWS = 1 << 24


def complete(given: Own) -> Own:
    """Name the size of every map."""
    defaults = {name: getattr(Sizes(), attribute) for name, attribute in SIZES.items()}
    return structs.replace(given, map_sizes={**defaults, **given.map_sizes})


def check(given: Own, found: Findings) -> None:
    """Note what a field's type alone does not tell."""
    for name in ("masquerade_ports", "service_node_port_range"):
        try:
            ports(getattr(given, name))
        except ValueError as error:
            found.refuse((_camel(name),), str(error))
    if given.last_good_after < Duration():
        found.refuse(("lastGoodAfter",), "must not be negative")
    if len(given.mesh_ports) > MOST_MESH_PORTS:
        found.refuse(("meshPorts",), f"must be {MOST_MESH_PORTS} at most")
    for name, rows in given.map_sizes.items():
        if name not in SIZES:
            found.unknown.append(("mapSizes", name))
        elif not 1 <= rows <= MOST_ROWS:
            found.refuse(("mapSizes", name), f"must be 1 to {MOST_ROWS}, not {rows}")


def doubtful(given: Own) -> Iterator[str]:
    """Give the warnings about what asks for more harm than it seems to."""
    asked = {"socketLb": given.socket_lb == OFF, "cgroupRoot": given.cgroup_root == NOWHERE}
    for name, is_off in asked.items():
        if is_off:
            yield (
                f"{name}: processes of this node itself reach no Service, as only what comes in by"
                " an interface is translated"
            )


def ports(text: str) -> PortRange:
    """Read ``FIRST-LAST``; ``ValueError`` for anything else."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        raise ValueError(f"must be FIRST-LAST, not {text!r}")
    return PortRange(int(first), int(last))
