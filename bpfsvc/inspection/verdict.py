"""What the facts about a node say: one verdict, and nine lines to check it by. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

CROWDED = 0.9
"""Above this share of its rows, the map of connections is about to refuse new ones."""

_SHOWN = 3
"""How many of a list of names stand in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The answer of ``/healthz``. ``status`` 0: nobody answered; ``notes`` are no problems."""

    status: int
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceFacts:
    """One interface that should carry our programs.

    ``missing`` are hooks without our programs, ``stale`` those with programs of another build,
    ``ahead`` foreign filters that see packets first. ``xdp``: packets are taken there by XDP, too.
    """

    name: str
    missing: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    xdp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is looked at.

    * ``expected_build``: the build this version would load with the same sizes.
    * ``sockets``, ``stale_sockets``, ``all_sockets``: hooks attached, with programs of another
      build, and known.
    * ``families``: address families (4, 6) that have Services; ``forwarding``: those forwarded.
    * ``masquerade_ports``: empty if the agent has not set them. ``fast_path``: it is in force.
    """

    build: str
    expected_build: str
    running: bool
    health: Health | None
    same_namespace: bool
    interfaces: tuple[InterfaceFacts, ...]
    sockets: int
    stale_sockets: int
    all_sockets: int
    services: int
    frontends: int
    backends: int
    connections: int
    new_connections: int
    max_connections: int
    drops: dict[str, int]
    families: tuple[int, ...]
    forwarding: tuple[int, ...]
    masquerade_ports: str
    masquerade_reserved: bool
    fast_path: bool = False


def reasons(facts: Facts) -> tuple[str, ...]:
    """Say what is not well, the gravest first; nothing if all is well."""
    return tuple(_reasons(facts))


def _reasons(facts: Facts) -> Iterator[str]:
    if not facts.same_namespace:
        yield "this is another network namespace than the agent's"
    if not facts.running:
        yield "the agent is not running"
    elif facts.health and facts.health.status not in (0, 200):
        yield "; ".join(facts.health.problems) or f"/healthz answers {facts.health.status}"
    if facts.build != facts.expected_build:
        yield f"build {facts.build} is loaded, not this version's {facts.expected_build}"
    if facts.same_namespace:
        missing = [each.name for each in facts.interfaces if each.missing]
        stale = [each.name for each in facts.interfaces if each.stale and not each.missing]
        if missing:
            yield f"programs are missing from {_some(missing)}"
        if stale:
            yield f"programs of another build are on {_some(stale)}"
    if facts.sockets and (facts.sockets < facts.all_sockets or facts.stale_sockets):
        yield "some socket hooks are not attached, or run another build"
    if facts.connections > CROWDED * facts.max_connections:
        yield "the map of connections is nearly full: enlarge it with --max-connections"
    if facts.same_namespace:
        for family in facts.families:
            if family not in facts.forwarding:
                yield f"IPv{family} is not forwarded"
        if not facts.masquerade_ports:
            yield "the agent has not finished starting"
        elif not facts.masquerade_reserved:
            yield f"the masquerade ports {facts.masquerade_ports} are not reserved"


def lines(facts: Facts) -> tuple[str, ...]:
    """Give the ten lines."""
    found = reasons(facts)
    attached = sum(not each.missing and not each.stale for each in facts.interfaces)
    ahead = [f"{each.name} {other}" for each in facts.interfaces for other in each.ahead]
    by_xdp = [each.name for each in facts.interfaces if each.xdp]
    forwarding = ", ".join(
        f"IPv{family} {'on' if family in facts.forwarding else 'off'}" for family in (4, 6)
    )
    table = {
        "build": facts.build
        + (", of this version" if facts.build == facts.expected_build else ", of another version"),
        "agent": _agent(facts),
        "interfaces": f"{attached} of {len(facts.interfaces)} attached"
        + (f", XDP on {_some(by_xdp)}" if by_xdp else "")
        + (", with the fast path" if facts.fast_path else "")
        + (f"; before us: {_some(ahead)}" if ahead else ""),
        "sockets": f"{facts.sockets} of {facts.all_sockets} hooks attached",
        "services": f"{facts.services}, with {facts.frontends} frontends"
        f" and {facts.backends} backends",
        "connections": f"{facts.connections} of {facts.max_connections} entries"
        f" ({100 * pressure(facts):.1f} %), {facts.new_connections} not established",
        "drops": ", ".join(f"{reason} {count}" for reason, count in facts.drops.items()) or "none",
        "forwarding": forwarding,
        "masquerade": f"ports {facts.masquerade_ports or 'not set'}"
        + (", reserved" if facts.masquerade_reserved else ", not reserved"),
    }
    verdict = f"NOT WELL: {'; '.join(found)}" if found else "well"
    return verdict, *(f"{name + ':':<13}{text}" for name, text in table.items())


def as_object(facts: Facts) -> dict[str, object]:
    """Give verdict and facts for programs."""
    found = reasons(facts)
    return {"well": not found, "reasons": found, **asdict(facts)}


def pressure(facts: Facts) -> float:
    """Give how full the map of connections is, from 0 to 1."""
    return facts.connections / facts.max_connections if facts.max_connections else 0.0


def _agent(facts: Facts) -> str:
    if not facts.running:
        return "not running"
    if facts.health is None:
        return "running"
    if not facts.health.status:
        return "running, /healthz not reachable"
    return "; ".join((f"running, /healthz {facts.health.status}", *facts.health.notes))


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
