"""Collect the facts for ``bpfsvc status``: maps, attachments, the agent, and the node's sysctls."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from bpfsvc.base import http_client
from bpfsvc.base.fast_path import ESTABLISHED, FAST
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.base.texts import SERVER_NAME
from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_PROGRAMS
from bpfsvc.datapath import syscall, sysctl
from bpfsvc.datapath.attach import cgroup, tcx, xdp
from bpfsvc.datapath.loader import features
from bpfsvc.datapath.loader.bytecode_cache import Unusable
from bpfsvc.datapath.loader.compiler import SOCKET_PROGRAMS
from bpfsvc.datapath.loader.shipped import ShippedPrograms
from bpfsvc.datapath.loader.source import CSource, load
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.datapath.maps.registry import MAPS, Role, map_info
from bpfsvc.datapath.netlink import tc
from bpfsvc.datapath.netlink.hooks import DeviceGone, Filter, Hook
from bpfsvc.inspect.agent_questions import ask_state
from bpfsvc.inspect.fields import chooser, interface_text, lacks
from bpfsvc.inspect.maps import node
from bpfsvc.inspect.node_health import AgentHealth, InterfaceFacts, MapUse, NodeFacts
from bpfsvc.inspect.reader import PinnedReader, Reader, is_running, open_pinned
from bpfsvc.inspect.recent_failures import Carried, ask_failures, carried

_HEALTH_SECONDS = 2

_FILL_UP = ("hash", "percpu_hash", "lpm_trie")
"""Types of maps that refuse a new entry when they are full."""


def collect_status(root: PinRoot, healthz: tuple[str, int] | None) -> NodeFacts:
    """Return the facts about the agent at ``root``, which serves health at ``healthz``.

    Raises ``NotLoaded`` if nothing is loaded, and what :func:`open_pinned` raises.
    """
    with open_pinned(root) as pinned:
        reader = PinnedReader(pinned)
        layout = reader.layout
        running = is_running(root)
        ports = node.masquerade_ports(reader)
        attached, stale = _sockets(root, pinned)
        services, families = _services(reader)
        source = load(_sizes(reader))
        state = ask_state(root.path) if running else None
        return NodeFacts(
            build=layout.digest,
            expected_build=source.digest,
            running=running,
            health=ask_health(healthz) if running and healthz else None,
            same_namespace=node.is_node_namespace(reader),
            interfaces=tuple(_interfaces(root, reader, pinned)),
            sockets=attached,
            stale_sockets=stale,
            all_sockets=len(SOCKET_PROGRAMS),
            services=services,
            frontends=reader.count("frontends"),
            backends=reader.count("endpoints"),
            connections=reader.count("connections"),
            new_connections=reader.count("new_connections") + 2 * _held(reader),
            max_connections=layout.maps["connections"].max_entries,
            drops=_drops(reader),
            families=families,
            forwarding=tuple(family for family in (4, 6) if sysctl.forwards(family)),
            masquerade_ports=str(ports or ""),
            masquerade_reserved=ports is not None and _is_reserved(ports),
            fast_path=_fast_path(reader),
            carries=_carries(root, reader) if running else None,
            kernel_without=tuple(feature.name for feature in features.of_this_kernel().missing()),
            lag_seconds=state.lag_seconds if state else None,
            repaired=state.repaired if state else None,
            maps=_map_uses(reader),
            copied_maps=_copied_maps(layout, source),
        )


def _map_uses(reader: Reader) -> dict[str, MapUse]:
    """Return how full the maps are that people enlarge, and that refuse entries when full."""
    return {
        name: MapUse(reader.count(name), layout.max_entries)
        for name, layout in sorted(reader.layout.maps.items())
        if layout.type in _FILL_UP and map_info(name).option and map_info(name).role is Role.STATE
    }


def _copied_maps(loaded: Layout, source: CSource) -> tuple[str, ...] | None:
    """Return the maps of state of which ``source`` has another layout; None if that is not known.

    What was compiled comes with an image; without it, the layout is known after compiling only.
    """
    if loaded.digest == source.digest:
        return ()
    try:
        compiled = ShippedPrograms(DEFAULT_PROGRAMS, source.code_digest).read()
    except Unusable:
        compiled = None
    if compiled is None:
        return None
    maps = compiled.sized(source, features.of_this_kernel().numbers()).layout.maps
    return tuple(
        name
        for name, before in sorted(loaded.maps.items())
        if map_info(name).role is not Role.PER_BUILD and name in maps and maps[name] != before
    )


def _carries(root: PinRoot, reader: Reader) -> Carried | None:
    answer = ask_failures(root.path)
    return carried(reader, answer) if answer else None


def _held(reader: Reader) -> int:
    """Return how many connections with two entries are not established."""
    if "half_open" not in reader.layout.maps:
        return 0
    raw = reader.value("half_open", bytes(4)) or b""
    return max(0, int.from_bytes(raw, sys.byteorder, signed=True))


def ask_health(address: tuple[str, int]) -> AgentHealth:
    """Return what the agent answers at ``/healthz``, with its problems in its own words.

    Only an answer of an agent counts: kube-proxy, or any program, may listen there.
    """
    try:
        client = http_client.connect(address, _HEALTH_SECONDS)
    except OSError:
        return AgentHealth(status=0)
    try:
        with client:
            answer = http_client.get(client, "/healthz")
    except OSError as error:
        # No answer is a fact too: the kernel accepts connections of a process that is stopped.
        return AgentHealth(status=0, silent=isinstance(error, TimeoutError))
    if answer.server != SERVER_NAME:
        return AgentHealth(status=0, foreign=True)
    try:
        details = json.loads(answer.body)
    except ValueError:
        return AgentHealth(status=answer.status)
    return AgentHealth(
        status=answer.status, problems=_texts(details, "problems"), notes=_texts(details, "notes")
    )


def _texts(answer: object, field: str) -> tuple[str, ...]:
    texts = answer.get(field) if isinstance(answer, dict) else None
    return tuple(str(line) for line in texts.values()) if isinstance(texts, dict) else ()


def _sizes(reader: Reader) -> Sizes:
    """Return the sizes the loaded build was made with: they are part of its digest."""
    given: dict[str, int] = {}
    for name, info in MAPS.items():
        if info.option and name in reader.layout.maps:
            size = info.option.removeprefix("--").replace("-", "_")
            entries = reader.layout.maps[name].max_entries
            # Of the maps with the same option, backend_counters has one entry more.
            given[size] = min(entries, given.get(size, entries))
    return Sizes(**given)


def _fast_path(reader: Reader) -> str:
    layout, raw = reader.layout.maps["settings"], reader.value("settings", bytes(4))
    for field, level in (("fast_path", FAST), ("established", ESTABLISHED)):
        if raw and not lacks(layout.value, (field,)) and chooser(layout.value, (field,))(raw)[0]:
            return level
    return ""


def _interfaces(root: PinRoot, reader: Reader, pinned: Pinned) -> Iterator[InterfaceFacts]:
    ours = {
        hook: {syscall.program_id(pinned.program(f"{hook}{suffix}")) for suffix in ("", "_l3")}
        for hook in Hook
    }
    current_xdp, wanted_xdp = _xdp(root, reader, pinned)
    for index in _indices_with_programs(reader):
        missing, stale, ahead = [], [], []
        for hook in Hook:
            try:
                filters = tc.attached(index, hook)
            except DeviceGone:
                filters = ()
            linked = tcx.program_id(root, index, hook)
            own = [filter_ for filter_ in filters if filter_.ours]
            if not own and not linked:
                missing.append(str(hook))
            elif not {linked, *(filter_.program for filter_ in own)} & ours[hook]:
                stale.append(str(hook))
            ahead += [f"{hook}: {filter_}" for filter_ in _ahead(filters, own)]
        if index in wanted_xdp and index not in current_xdp:
            missing.append("xdp")
        elif not current_xdp.get(index, True):
            stale.append("xdp")
        yield InterfaceFacts(
            name=interface_text(index),
            missing=tuple(missing),
            stale=tuple(stale),
            ahead=tuple(ahead),
            xdp=current_xdp.get(index, False),
        )


def _indices_with_programs(reader: Reader) -> list[int]:
    """Return the indices of all interfaces that are known, without bridges."""
    layout = reader.layout.maps["interfaces"]
    key, entries = chooser(layout.key, ("value",)), reader.entries("interfaces")
    if lacks(layout.value, ("bridge",)):
        return sorted(key(raw)[0] for raw, _ in entries)
    bridge = chooser(layout.value, ("bridge",))
    return sorted(key(raw)[0] for raw, value in entries if bridge(value)[0] != key(raw)[0])


def _xdp(root: PinRoot, reader: Reader, pinned: Pinned) -> tuple[dict[int, bool], set[int]]:
    """Return interface -> True if its XDP program is of this build; and those that should have one.

    The ports of a bond have entries of their own; their program is attached to the bond.
    """
    if "uplinks" not in reader.layout.maps:
        return {}, set()
    ours = syscall.program_id(pinned.program("xdp"))
    served = chooser(reader.layout.maps["uplinks"].value, ("ifindex",))
    return (
        {index: program == ours for index, program in xdp.attached(root).items()},
        {served(raw)[0] for _, raw in reader.entries("uplinks")},
    )


def _ahead(filters: tuple[Filter, ...], own: list[Filter]) -> Iterator[Filter]:
    """Yield the foreign filters that see a packet before the first of ours."""
    first = min((filter_.priority for filter_ in own), default=0)
    for filter_ in filters:
        if not filter_.ours and not filter_.chain and filter_.priority <= first:
            yield filter_


def _sockets(root: PinRoot, pinned: Pinned) -> tuple[int, int]:
    """Return the numbers of socket hooks: attached, and with a program of another build."""
    programs = cgroup.attached(root)
    stale = [
        name for name, id_ in programs.items() if id_ != syscall.program_id(pinned.program(name))
    ]
    return len(programs), len(stale)


def _services(reader: Reader) -> tuple[int, tuple[int, ...]]:
    value = chooser(reader.layout.maps["services"].value, ("namespace", "name", "family"))
    names, families = set(), set()
    for _, raw in reader.entries("services"):
        namespace, name, family = value(raw)
        names.add((namespace, name))
        families.add(family)
    return len(names), tuple(sorted(families))


def _drops(reader: Reader) -> dict[str, int]:
    drops = {}
    for event, reason, count in node.counters(reader).rows:
        if event == "dropped" and count:
            drops[str(reason)] = int(str(count))
    return drops


def _is_reserved(ports: node.MasqueradePorts) -> bool:
    reserved = sysctl.parse_ports(sysctl.read(sysctl.RESERVED_PORTS))
    return any(range_.first <= ports.first and ports.last <= range_.last for range_ in reserved)
