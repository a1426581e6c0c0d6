"""Turn the facts about a node into "healthy" or a list of problems, and ten lines of detail.

Pure. The facts come from :mod:`~bpfsvc.inspect.status`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from bpfsvc import __version__
from bpfsvc.base.texts import count_text, list_text
from bpfsvc.inspect.recent_failures import Carried, carried_text

NEARLY_FULL = 0.9
"""Above this share of its entries, the map of connections will soon refuse new ones."""

_SHOWN = 3
"""How many names of a list a line shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHealth:
    """The answer of ``/healthz``.

    ``status`` 0: the agent does not answer; ``foreign``: another program does; ``silent``: a
    program listens there, and does not answer. ``notes`` are not problems.
    """

    status: int
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    foreign: bool = False
    silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceFacts:
    """One interface that should have our programs.

    ``missing``: hooks without our programs. ``stale``: those with programs of another build.
    ``ahead``: foreign filters that see packets first. ``xdp``: True if our XDP program is there.
    """

    name: str
    missing: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    xdp: bool = False


@dataclass(frozen=True, slots=True)
class MapUse:
    """The entries of a map, and how many it can have."""

    entries: int
    capacity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What ``bpfsvc status`` collects. Its JSON has these names.

    * ``expected_build``: the build this version would load with the same sizes.
    * ``sockets``, ``stale_sockets``, ``all_sockets``: socket hooks that are attached, those with
      programs of another build, and all there are.
    * ``families``: address families (4, 6) that have Services; ``forwarding``: those forwarded.
    * ``masquerade_ports``: empty if the agent has not set them.
    * ``kernel_without``: features of newer kernels that this kernel lacks, by name.
    * ``fast_path``: its level (``fast`` or ``established``), "" if it is not used.
    * ``carries``: what failed lately of the traffic; None if no agent says it.
    * ``lag_seconds``: for how long the oldest change that is not in the kernel has waited;
      ``repaired``: entries that another program had changed, since the agent began; None if no
      agent says it.
    * ``maps``: those that can become full, by name.
    * ``copied_maps``: whose entries this version copies when it replaces the loaded build; None if
      that is not known.
    """

    build: str
    expected_build: str
    running: bool
    health: AgentHealth | None
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
    fast_path: str = ""
    kernel_without: tuple[str, ...] = ()
    carries: Carried | None = None
    lag_seconds: float | None = None
    repaired: int | None = None
    maps: Mapping[str, MapUse] = field(default_factory=dict)
    copied_maps: tuple[str, ...] | None = ()


def problems(facts: NodeFacts) -> tuple[str, ...]:
    """Return the problems of a node, the most serious first; empty if it is healthy."""
    return (
        *_agent_problems(facts),
        *_attachment_problems(facts),
        *_capacity_problems(facts),
        *_sysctl_problems(facts),
    )


def _agent_problems(facts: NodeFacts) -> Iterator[str]:
    if not facts.same_namespace:
        yield "this command runs in another network namespace than the agent"
    if not facts.running:
        yield "the agent is not running"
    elif facts.health and facts.health.foreign:
        yield "another program answers at the address of /healthz, and the agent does not"
    elif facts.health and facts.health.silent and facts.same_namespace:
        yield "the agent accepts connections and does not answer /healthz: it is stopped or stuck"
    elif facts.health and facts.health.status not in (0, 200):
        yield "; ".join(facts.health.problems) or f"/healthz answers {facts.health.status}"
    if facts.build != facts.expected_build:
        yield f"build {facts.build} is loaded, but this version's build is {facts.expected_build}"


def _attachment_problems(facts: NodeFacts) -> Iterator[str]:
    if facts.same_namespace:
        missing = [interface.name for interface in facts.interfaces if interface.missing]
        stale = [
            interface.name
            for interface in facts.interfaces
            if interface.stale and not interface.missing
        ]
        if missing:
            yield f"programs are missing from {list_text(missing, _SHOWN)}"
        if stale:
            yield f"programs of another build are on {list_text(stale, _SHOWN)}"
    if facts.sockets and (facts.sockets < facts.all_sockets or facts.stale_sockets):
        yield "some socket hooks are not attached, or run another build"


def _capacity_problems(facts: NodeFacts) -> Iterator[str]:
    if facts.connections > NEARLY_FULL * facts.max_connections:
        yield "the map of connections is nearly full: enlarge it with --max-connections"


def _sysctl_problems(facts: NodeFacts) -> Iterator[str]:
    if not facts.same_namespace:
        return
    for family in facts.families:
        if family not in facts.forwarding:
            yield f"IPv{family} is not forwarded"
    if not facts.masquerade_ports:
        yield "the agent has not finished starting"
    elif not facts.masquerade_reserved:
        yield f"the masquerade ports {facts.masquerade_ports} are not reserved"


def lines(facts: NodeFacts) -> tuple[str, ...]:
    """Return whether the agent is healthy, whether its traffic is, and nine lines of detail.

    On an older kernel there is one line more.
    """
    problem_texts = problems(facts)
    forwarding = ", ".join(
        f"IPv{family} {'on' if family in facts.forwarding else 'off'}" for family in (4, 6)
    )
    version = "this version" if facts.build == facts.expected_build else "another version"
    reserved = "reserved" if facts.masquerade_reserved else "not reserved"
    table = {
        "carries": carried_text(facts.carries, facts.services),
        "build": f"{facts.build}, of {version}",
        "agent": _agent_text(facts),
        "interfaces": _interfaces_text(facts),
        "sockets": f"{facts.sockets} of {facts.all_sockets} hooks attached",
        "services": f"{facts.services}, with {count_text(facts.frontends, 'frontend')}"
        f" and {count_text(facts.backends, 'backend')}",
        "connections": f"{facts.connections} of {facts.max_connections} entries"
        f" ({100 * _use(facts):.1f} %), {facts.new_connections} not established",
        "drops": ", ".join(f"{reason} {count}" for reason, count in facts.drops.items()) or "none",
        "forwarding": forwarding,
        "masquerade": f"ports {facts.masquerade_ports or 'not set'}, {reserved}",
    }
    if facts.kernel_without:
        table["kernel"] = f"without {'; '.join(facts.kernel_without)} (bpfsvc doctor says more)"
    head = f"UNHEALTHY: {'; '.join(problem_texts)}" if problem_texts else "healthy"
    return head, *(f"{name + ':':<13}{text}" for name, text in table.items())


def as_object(facts: NodeFacts) -> dict[str, object]:
    """Return the JSON object: ``well``, ``reasons`` (the problems), ``version``, the facts."""
    problem_texts = problems(facts)
    head = {"well": not problem_texts, "reasons": problem_texts, "version": __version__}
    return {**head, **asdict(facts)}


def _use(facts: NodeFacts) -> float:
    """Return how full the map of connections is, from 0 to 1."""
    return facts.connections / facts.max_connections if facts.max_connections else 0.0


def _agent_text(facts: NodeFacts) -> str:
    if not facts.running:
        return "not running"
    if facts.health is None:
        return "running"
    if facts.health.foreign:
        return "running, another program answers /healthz"
    if not facts.health.status:
        return "running, /healthz not reachable"
    return "; ".join((f"running, /healthz {facts.health.status}", *facts.health.notes))


def _interfaces_text(facts: NodeFacts) -> str:
    attached = sum(not interface.missing and not interface.stale for interface in facts.interfaces)
    ahead = [
        f"{interface.name} {other}" for interface in facts.interfaces for other in interface.ahead
    ]
    by_xdp = [interface.name for interface in facts.interfaces if interface.xdp]
    return (
        f"{attached} of {len(facts.interfaces)} attached"
        + (f", XDP on {list_text(by_xdp, _SHOWN)}" if by_xdp else "")
        + (", with the fast path" if facts.fast_path else "")
        + (" for established connections" if facts.fast_path == "established" else "")
        + (f"; other programs first: {list_text(ahead, _SHOWN)}" if ahead else "")
    )
