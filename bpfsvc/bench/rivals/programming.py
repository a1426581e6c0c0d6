"""Writing a rival's rules into a node, as kube-proxy does at its first sync and at a change.

What is timed is the tools and the kernel; the text they read is made before. A layout may take
minutes where a cluster is large (iptables-nft at 10,000 Services): ``TooSlow`` says so, and is a
result of its own kind.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv4Network
from typing import Literal, NamedTuple, get_args
from weakref import WeakKeyDictionary

from bpfsvc.bench.rivals import iptables, ipvs, nftables
from bpfsvc.bench.rivals.balanced import Backend, Balanced, Site, Step
from bpfsvc.errors import BpfsvcError
from bpfsvc.lab.namespace import LabError, Namespace
from bpfsvc.lab.node import Node
from bpfsvc.lab.patience import stretched

Mode = Literal["iptables", "iptables-nft", "nftables", "ipvs"]
MODES: tuple[Mode, ...] = get_args(Mode)

LIMIT = 60.0
"""Seconds that programming may take unless the caller says otherwise."""


class RivalFailed(BpfsvcError):
    """A rival's rules could not be written."""


class TooSlow(RivalFailed):
    """A rival's rules were not written within the limit; what of them stands is unknown."""


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


@dataclass(slots=True)
class _Programmed:
    """What stands in a node: ``stale`` are endpoints whose traces a change left for later."""

    mode: Mode
    site: Site
    services: dict[tuple[str, str], Balanced]
    stale: set[tuple[tuple[str, str], Backend]] = field(default_factory=set)


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
    stands = _Programmed(
        known, Site(node.address(4), own, pods), {one.key: one for one in services}
    )
    if len(stands.services) != len(services):
        raise RivalFailed("two of the Services have the same name and protocol")
    seconds = _run(node, known, _FIRST[known](services, stands.site), limit, len(services))
    _set(node, known)
    _programmed[node] = stands
    return seconds


def prepare(node: Node, mode: str, service: Balanced, limit: float = LIMIT) -> Callable[[], float]:
    """Have the replacement of a Service's endpoints ready: calling what is given makes it.

    That gives the seconds it took. The Service was programmed, and nothing but its ``backends`` may
    have changed. Flows that conntrack knows stay where they are; kube-proxy would end those of UDP
    that lead to an endpoint that is no more.
    """
    stands = _programmed.get(node)
    if stands is None or stands.mode != mode:
        raise RivalFailed(f"{node.name} has no rules of {mode} that could change")
    before = stands.services.get(service.key)
    if before is None:
        raise RivalFailed(f"{node.name} has no Service {service.name}, {service.protocol}")
    return partial(_run, node, stands.mode, _changing(stands, before, service), limit, 1)


def change(node: Node, mode: str, service: Balanced, limit: float = LIMIT) -> float:
    """Prepare the replacement of a Service's endpoints and make it; give the seconds of making."""
    return prepare(node, mode, service, limit)()


def _changing(stands: _Programmed, before: Balanced, after: Balanced) -> list[Step]:
    """Give what is to be run, and note what stands then."""
    services, site, key = stands.services, stands.site, after.key
    services[key] = after
    if stands.mode == "iptables" or stands.mode == "iptables-nft":
        flavour = "legacy" if stands.mode == "iptables" else "nft"
        return iptables.change(flavour, list(services.values()), before, after, site)
    # An endpoint that comes again is no longer stale, whatever is left of it.
    again = [each for each in after.endpoints if (key, each) in stands.stale]
    stands.stale -= {(key, each) for each in again}
    if stands.mode == "nftables":
        steps = nftables.change(after, [(services[of], each) for of, each in stands.stale], site)
        stands.stale.clear()
    else:
        steps = ipvs.change(before, after, again, site)
    if stands.mode == "nftables" or ipvs.drains(after):
        gone = set(before.endpoints) - set(after.endpoints)
        stands.stale |= {(key, each) for each in gone}
    return steps


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
    site = Site("192.0.2.1", IPv4Network("10.244.1.0/24"), IPv4Network("10.244.0.0/16"))
    backends = (("10.244.1.2", 80), ("10.244.2.2", 80))
    sample = Balanced("default/sample", "10.96.0.1", 80, "tcp", 30080, backends)
    with closing(Namespace(f"trial-{mode}")) as place:
        try:
            _run(place, mode, _FIRST[mode]([sample], site), LIMIT, 1)
            _set(place, mode)
        except (RivalFailed, OSError) as error:
            return f"{rival.refusal}: {str(error).removeprefix(f'{place.name}: ')}"
    return ""


def _run(place: Namespace, mode: Mode, steps: Iterable[Step], limit: float, services: int) -> float:
    """Run tools one after the other, and give the seconds they took."""
    limit = stretched(limit)
    begun = time.monotonic()
    for step in steps:
        left = begun + limit - time.monotonic()
        try:
            place.run(step.command, input=step.text, timeout=max(left, 0))
        except subprocess.TimeoutExpired:
            number = "1 Service" if services == 1 else f"{services} Services"
            raise TooSlow(f"{mode}: {number} not programmed within {limit:g} s") from None
        except LabError as error:
            # Tools may say a line for each of thousands of rules.
            raise RivalFailed(error.message.splitlines()[0]) from error
    return time.monotonic() - begun


def _set(place: Namespace, mode: Mode) -> None:
    for key, value in _RIVALS[mode].settings.items():
        place.sysctl(key, value)
