"""Writing a rival's rules into a node, as kube-proxy does at its first sync and at a change.

What is timed is the tools, from the start of the first, and the kernel; the text they read is made
before. A layout may take minutes where a cluster is large (iptables-nft at 10,000 Services):
``TooSlow`` says so, and is a result of its own kind.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache, partial
from ipaddress import IPv4Network
from typing import Literal, NamedTuple, get_args
from weakref import WeakKeyDictionary

from bpfsvc.bench.rivals import counters, iptables, ipvs, nftables
from bpfsvc.bench.rivals.balanced import Backend, Balanced, Site, Step
from bpfsvc.bench.rivals.running import RivalFailed, Runner, Took
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.node import Node
from bpfsvc.lab.patience import stretched

Mode = Literal["iptables", "iptables-nft", "nftables", "ipvs"]
MODES: tuple[Mode, ...] = get_args(Mode)

LIMIT = 60.0
"""Seconds that programming may take unless the caller says otherwise."""


class Rival(NamedTuple):
    """What a mode needs of a machine."""

    programs: Mapping[str, str]
    """Those run, and the Debian package of each."""

    refusal: str
    """What it means when a kernel does not take the rules."""

    settings: Mapping[str, int]


_IPTABLES = "iptables"
_RIVALS: Mapping[Mode, Rival] = {
    "iptables": Rival(
        {"iptables-legacy-restore": _IPTABLES},
        "this kernel does not take rules of the legacy iptables",
        iptables.SETTINGS,
    ),
    "iptables-nft": Rival(
        {"iptables-nft-restore": _IPTABLES},
        "this kernel does not take rules of iptables by nftables",
        iptables.SETTINGS,
    ),
    "nftables": Rival({"nft": "nftables"}, "this kernel does not take nftables' rules", {}),
    "ipvs": Rival(
        {
            "ipvsadm": "ipvsadm",
            "ipset": "ipset",
            "iptables-legacy-restore": _IPTABLES,
            "ip": "iproute2",
        },
        "this kernel has no IPVS, or not all it needs",
        ipvs.SETTINGS,
    ),
}

_FIRST: Mapping[Mode, Callable[[Sequence[Balanced], Site], list[Step]]] = {
    "iptables": partial(iptables.first, "legacy"),
    "iptables-nft": partial(iptables.first, "nft"),
    "nftables": nftables.first,
    "ipvs": ipvs.first,
}


_TRIAL_SITE = Site("192.0.2.1", IPv4Network("10.244.1.0/24"), IPv4Network("10.244.0.0/16"))
_TRIAL = Balanced(
    "default/sample",
    "10.96.0.1",
    80,
    "tcp",
    30080,
    (("10.244.1.2", 80), ("10.244.2.2", 80)),
)


@dataclass(slots=True)
class _Programmed:
    """What stands in a node: ``stale`` are real servers that a change left for later."""

    mode: Mode
    site: Site
    services: dict[tuple[str, str], Balanced]
    runner: Runner
    stale: set[tuple[tuple[str, str], Backend]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Change:
    """A replacement of endpoints that is ready: the last that was prepared for its node."""

    _runner: Runner
    _limit: float

    def make(self) -> Took:
        """Make it."""
        return self._runner.run(self._limit, 1)

    def empty(self) -> Took:
        """Only start the first tool that would make it, with nothing to do.

        That is the one after which packets go elsewhere, in every mode.
        """
        return self._runner.run(self._limit, 1, empty=True)


_programmed: WeakKeyDictionary[Node, _Programmed] = WeakKeyDictionary()


def modes() -> dict[Mode, str]:
    """Give all modes, each with the reason why it cannot run here; empty if it can.

    That is found out by writing a small cluster into a namespace of its own.
    """
    return {mode: _obstacle(mode) for mode in MODES}


def program(
    node: Node, mode: str, services: Sequence[Balanced], pods: IPv4Network, limit: float = LIMIT
) -> float:
    """Write everything into a node that has nothing yet, and give the seconds that took.

    ``pods``: the range of all pods of the cluster. The order of ``services`` is that of the rules.
    """
    known = _known(mode)
    if node in _programmed:
        raise RivalFailed(f"{node.name} has rules of {_programmed[node].mode} already")
    own = IPv4Network(node.pod_cidrs[4])
    site = Site(node.address(4), own, pods, counted=_counted(known))
    runner = Runner(node, known)
    stands = _Programmed(known, site, {one.key: one for one in services}, runner)
    if len(stands.services) != len(services):
        raise RivalFailed("two of the Services have the same name and protocol")
    took = _write(node, runner, known, services, site, limit)
    runner.take(())  # what was read may be long
    _programmed[node] = stands
    return took.seconds


def prepare(node: Node, mode: str, service: Balanced, limit: float = LIMIT) -> Change:
    """Have the replacement of a Service's endpoints ready.

    The Service was programmed, and nothing but its ``backends`` may have changed. Flows that
    conntrack knows stay where they are; kube-proxy would end those of UDP that lead to an endpoint
    that is no more.
    """
    stands = _programmed.get(node)
    if stands is None or stands.mode != mode:
        raise RivalFailed(f"{node.name} has no rules of {mode} that could change")
    before = stands.services.get(service.key)
    if before is None:
        raise RivalFailed(f"{node.name} has no Service {service.name}, {service.protocol}")
    stands.runner.take(_changing(stands, before, service))
    return Change(stands.runner, stretched(limit))


def change(node: Node, mode: str, service: Balanced, limit: float = LIMIT) -> float:
    """Prepare the replacement of a Service's endpoints and make it; give the seconds of making."""
    return prepare(node, mode, service, limit).make().seconds


def _changing(stands: _Programmed, before: Balanced, after: Balanced) -> list[Step]:
    """Give what is to be run, and note what stands then."""
    services, site, key = stands.services, stands.site, after.key
    services[key] = after
    if stands.mode == "iptables" or stands.mode == "iptables-nft":
        flavour = "legacy" if stands.mode == "iptables" else "nft"
        return iptables.change(flavour, list(services.values()), before, after, site)
    if stands.mode == "nftables":
        return nftables.change(after, site)
    # An endpoint that comes again is no longer stale.
    again = [each for each in after.endpoints if (key, each) in stands.stale]
    stands.stale -= {(key, each) for each in again}
    if ipvs.drains(after):
        gone = set(before.endpoints) - set(after.endpoints)
        stands.stale |= {(key, each) for each in gone}
    return ipvs.change(services.values(), before, after, again, site)


def _known(mode: str) -> Mode:
    for each in MODES:
        if each == mode:
            return each
    raise RivalFailed(f"no such rival: {mode!r}", f"give one of {', '.join(MODES)}")


def _obstacle(mode: Mode) -> str:
    rival = _RIVALS[mode]
    missing = [name for name in rival.programs if shutil.which(name) is None]
    if missing:
        packages = " ".join(dict.fromkeys(rival.programs[name] for name in missing))
        return f"{', '.join(missing)} not found (apt install {packages})"
    return "" if _counted(mode) else _refusal(mode, _TRIAL_SITE)


@cache
def _counted(mode: Mode) -> bool:
    """Whether the rules of a mode refer to counters here: they do if they can."""
    if mode != "iptables" and mode != "iptables-nft":
        return False
    return not _refusal(mode, _TRIAL_SITE._replace(counted=True))


def _refusal(mode: Mode, site: Site) -> str:
    """Write a small cluster somewhere, and say why that fails; empty if it does not."""
    with closing(Namespace(f"trial-{mode}")) as place:
        try:
            _write(place, Runner(place, mode), mode, [_TRIAL], site, LIMIT)
        except (RivalFailed, OSError) as error:
            return f"{_RIVALS[mode].refusal}: {error}"
    return ""


def _write(
    place: Namespace,
    runner: Runner,
    mode: Mode,
    services: Sequence[Balanced],
    site: Site,
    limit: float,
) -> Took:
    """Write everything where nothing is yet."""
    if site.counted:
        counters.make(place)
    runner.take(_FIRST[mode](services, site))
    took = runner.run(stretched(limit), len(services))
    for key, value in _RIVALS[mode].settings.items():
        place.sysctl(key, value)
    return took
