"""BpfsvcConfiguration v1alpha1: the settings that kube-proxy has no names for, a second document.

kube-proxy reads the first document of its file only, so one file serves both programs. No other
program writes this document, so an unknown field in it is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated

from msgspec import Meta, field, structs

from bpfsvc.base.address import address_and_port, with_port
from bpfsvc.base.attachment import PRIORITY, AttachMode
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.base.ports import NODE_PORTS, PortRange
from bpfsvc.base.service_series import DEFAULT_SERIES, parse_service_series
from bpfsvc.config.config import FastPath, SocketLb, VipEcho
from bpfsvc.config.durations import Duration
from bpfsvc.config.fields import FieldError, Shape
from bpfsvc.services.scheduling.schedulers import parse_scheduler

API_VERSION = "bpfsvc.io/v1alpha1"
KIND = "BpfsvcConfiguration"

DEFAULT_CACHE = Path("/var/lib/bpfsvc/cache")
DEFAULT_PROGRAMS = Path("/usr/share/bpfsvc/programs")
DEFAULT_LAST_GOOD = Path("/var/lib/bpfsvc/last-good")
DEFAULT_HISTORY = Path("/var/lib/bpfsvc/history")
DEFAULT_MASQUERADE_PORTS = PortRange(10000, 29999)
DEFAULT_PIN_ROOT = Path("/sys/fs/bpf/bpfsvc")

UI_PORT = 10286
"""Of the page of the node; no component of Kubernetes has it."""

DEFAULT_UI = f"127.0.0.1:{UI_PORT}"

MESH_PORTS = (15001, 4140)
"""Where the proxies of Istio and Linkerd receive the outgoing connections of their pod."""

MOST_MESH_PORTS = 4
MOST_ENTRIES = 1 << 24

NONE = "none"
"""In place of a path: do without."""

OFF = "off"
"""In place of patterns: on no interface."""


class BpfsvcConfiguration(Shape, frozen=True):
    """BpfsvcConfiguration without ``apiVersion`` and ``kind``; :mod:`.config` explains the fields.

    ``cache``, ``history``, ``lastGood``, ``programs``: a path or ``none``. ``cgroupRoot``: so too,
    or empty: where cgroup2 is mounted. ``manifests``: empty: the objects come from the API server.
    ``mapSizes``: entries by the names of ``SIZES``. ``scheduler``: empty: as :mod:`.scheduler`
    decides. ``uiBindAddress``: empty: no page. ``vipEcho``: YAML reads ``on`` and ``off`` without
    quotes as true and false.
    """

    attach: AttachMode = "auto"
    cache: str = str(DEFAULT_CACHE)
    cgroup_root: str = ""
    count_drops_elsewhere: bool = False
    devices: list[str] = field(default_factory=list)
    fast_path: FastPath = "auto"
    history: str = str(DEFAULT_HISTORY)
    history_megabytes: Annotated[int, Meta(ge=0, le=1024)] = 16
    last_good: str = str(DEFAULT_LAST_GOOD)
    last_good_after: Duration = Duration.of(10)
    manifests: str = ""
    map_sizes: dict[str, int] = field(default_factory=dict)
    masquerade_ports: str = str(DEFAULT_MASQUERADE_PORTS)
    mesh_ports: list[Annotated[int, Meta(ge=1, le=65535)]] = field(
        default_factory=lambda: [*MESH_PORTS]
    )
    metrics_services: str = DEFAULT_SERIES
    pin_root: str = str(DEFAULT_PIN_ROOT)
    programs: str = str(DEFAULT_PROGRAMS)
    scheduler: str = ""
    service_node_port_range: str = str(NODE_PORTS)
    socket_lb: SocketLb = "all"
    source_ranges_for_all: bool = False
    tc_priority: Annotated[int, Meta(ge=1, le=0xBFFF)] = PRIORITY
    ui_bind_address: str = DEFAULT_UI
    vip_echo: VipEcho | bool = "auto"
    xdp: list[str] = field(default_factory=list)

    def sizes(self) -> Sizes:
        """Return the sizes of the maps."""
        return Sizes(**{SIZES[name]: entries for name, entries in self.map_sizes.items()})


def _camel(name: str) -> str:
    first, *rest = name.removeprefix("max_").split("_")
    return first + "".join(word.capitalize() for word in rest)


SIZES = {_camel(size.name): size.name for size in fields(Sizes)}
"""Name in ``mapSizes`` -> name in :class:`Sizes`: ``backendSlots`` -> ``max_backend_slots``."""


def complete(given: BpfsvcConfiguration) -> BpfsvcConfiguration:
    """Return it with the size of every map."""
    defaults = {name: getattr(Sizes(), attribute) for name, attribute in SIZES.items()}
    return structs.replace(given, map_sizes={**defaults, **given.map_sizes})


def check(given: BpfsvcConfiguration) -> Iterator[FieldError]:
    """Yield every field that cannot be used although its type is right."""
    for name in ("masquerade_ports", "service_node_port_range"):
        try:
            ports(getattr(given, name))
        except ValueError as error:
            yield FieldError((_camel(name),), str(error))
    if given.scheduler:
        try:
            parse_scheduler(given.scheduler)
        except ValueError as error:
            yield FieldError(("scheduler",), str(error))
    try:
        parse_service_series(given.metrics_services)
    except ValueError as error:
        yield FieldError(("metricsServices",), str(error))
    if given.ui_bind_address and not ui_address(given.ui_bind_address):
        text = f"must be ADDRESS:PORT or empty, such as {DEFAULT_UI}, not {given.ui_bind_address!r}"
        yield FieldError(("uiBindAddress",), text)
    if given.last_good_after < Duration():
        yield FieldError(("lastGoodAfter",), "must not be negative")
    if len(given.mesh_ports) > MOST_MESH_PORTS:
        yield FieldError(("meshPorts",), f"must be at most {MOST_MESH_PORTS} ports")
    for name, entries in given.map_sizes.items():
        path = ("mapSizes", name)
        if name not in SIZES:
            yield FieldError(path, "unknown field")
        elif not 1 <= entries <= MOST_ENTRIES:
            yield FieldError(path, f"must be 1 to {MOST_ENTRIES}, not {entries}")


def warnings(given: BpfsvcConfiguration) -> Iterator[str]:
    """Yield a warning for each field that cuts off the node's own processes."""
    is_off = {"socketLb": given.socket_lb == OFF, "cgroupRoot": given.cgroup_root == NONE}
    for name in (name for name, off in is_off.items() if off):
        yield (
            f"{name}: processes of this node itself reach no Service, because only packets that"
            " arrive at an interface are translated"
        )


def ui_address(text: str) -> tuple[str, int] | None:
    """Return the address and port of the page; None for an empty text and for a malformed one."""
    return address_and_port(with_port(text, UI_PORT))


def ports(text: str) -> PortRange:
    """Read ``FIRST-LAST``. Raises ``ValueError`` for anything else."""
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal()):
        raise ValueError(f"must be FIRST-LAST, not {text!r}")
    return PortRange(int(first), int(last))
