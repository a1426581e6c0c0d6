"""Look at everything a verdict needs: maps, attachments, the agent, and this node's sysctls."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException

from bpfsvc.datapath import bpf, sockets, sysctls, tcx, xdp
from bpfsvc.datapath.compiler import SOCKET_PROGRAMS
from bpfsvc.datapath.netlink import tc
from bpfsvc.datapath.netlink.hooks import DeviceGone, Filter, Hook
from bpfsvc.datapath.pins import Pinned, PinRoot
from bpfsvc.datapath.source import MAP_FLAGS, Sizes, load
from bpfsvc.inspection import node
from bpfsvc.inspection.fields import chooser, interface_text, lacks
from bpfsvc.inspection.reader import PinnedReader, Reader, open_pinned, reading
from bpfsvc.inspection.verdict import Facts, Health, InterfaceFacts

_HEALTH_SECONDS = 2
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def look(root: PinRoot, healthz: tuple[str, int] | None) -> Facts:
    """Gather the facts about the agent at ``root``, which serves health at ``healthz``.

    Raises ``NotLoaded`` if nothing is loaded, and what :func:`open_pinned` raises.
    """
    with open_pinned(root) as pinned:
        reader = PinnedReader(pinned)
        layout = reader.layout
        running = is_running(root)
        ports = node.masquerade_ports(reader)
        attached, stale = _sockets(root, pinned)
        services, families = _services(reader)
        return Facts(
            build=layout.digest,
            expected_build=load(_sizes(reader)).digest,
            running=running,
            health=ask_health(healthz) if running and healthz else None,
            same_namespace=_same_namespace(reader),
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
            forwarding=tuple(family for family in (4, 6) if sysctls.forwards(family)),
            masquerade_ports=str(ports or ""),
            masquerade_reserved=ports is not None and _is_reserved(ports),
            fast_path=_has_fast_path(reader),
        )


def _held(reader: Reader) -> int:
    """Count the pairs among the connections that are not established."""
    if "half_open" not in reader.layout.maps:
        return 0
    raw = reader.row("half_open", bytes(4)) or b""
    return max(0, int.from_bytes(raw, sys.byteorder, signed=True))


def is_running(root: PinRoot) -> bool:
    """Whether an agent holds the lock of ``root``, as a running one does.

    The shared lock tried here lasts for microseconds.
    """
    with reading(root.path):
        fd = os.open(root.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False


def ask_health(address: tuple[str, int]) -> Health:
    """Ask ``/healthz``; its problems as it words them."""
    host, port = address
    talk = HTTPConnection(_EVERYWHERE.get(host, host), port, timeout=_HEALTH_SECONDS)
    try:
        talk.request("GET", "/healthz")
        answer = talk.getresponse()
        body = answer.read()
    except (OSError, HTTPException):
        return Health(status=0)  # that nobody answers is an answer
    finally:
        talk.close()
    try:
        found = json.loads(body)
    except ValueError:
        return Health(status=answer.status)
    return Health(
        status=answer.status, problems=_words(found, "problems"), notes=_words(found, "notes")
    )


def _words(found: object, field: str) -> tuple[str, ...]:
    told = found.get(field) if isinstance(found, dict) else None
    return tuple(str(each) for each in told.values()) if isinstance(told, dict) else ()


def _sizes(reader: Reader) -> Sizes:
    """Give the sizes the loaded build was made with: they are part of its digest."""
    given: dict[str, int] = {}
    for name, option in MAP_FLAGS.items():
        if name in reader.layout.maps:
            size = option.removeprefix("--").replace("-", "_")
            rows = reader.layout.maps[name].max_entries
            # Of the maps with one option, the counters of backends have a row more.
            given[size] = min(rows, given.get(size, rows))
    return Sizes(**given)


def _same_namespace(reader: Reader) -> bool:
    layout, raw = reader.layout.maps["settings"], reader.row("settings", bytes(4))
    if raw is None or lacks(layout.value, ("netns_cookie",)):
        return True
    cookie = chooser(layout.value, ("netns_cookie",))(raw)[0]
    return cookie in (0, sockets.netns_cookie())


def _has_fast_path(reader: Reader) -> bool:
    layout, raw = reader.layout.maps["settings"], reader.row("settings", bytes(4))
    if raw is None or lacks(layout.value, ("fast_path",)):
        return False
    return bool(chooser(layout.value, ("fast_path",))(raw)[0])


def _interfaces(root: PinRoot, reader: Reader, pinned: Pinned) -> Iterator[InterfaceFacts]:
    ours = {
        hook: {bpf.program_id(pinned.program(f"{hook}{suffix}")) for suffix in ("", "_l3")}
        for hook in Hook
    }
    key = chooser(reader.layout.maps["interfaces"].key, ("value",))
    edge, uplinks = _edge(root, reader, pinned)
    for index in sorted(key(raw_key)[0] for raw_key, _ in reader.rows("interfaces")):
        missing, stale, ahead = [], [], []
        for hook in Hook:
            try:
                filters = tc.attached(index, hook)
            except DeviceGone:
                filters = ()
            linked = tcx.program_id(root, index, hook)
            mine = [each for each in filters if each.ours]
            if not mine and not linked:
                missing.append(str(hook))
            elif not {linked, *(each.program for each in mine)} & ours[hook]:
                stale.append(str(hook))
            ahead += [f"{hook}: {each}" for each in _ahead(filters, mine)]
        if index in uplinks and index not in edge:
            missing.append("xdp")
        elif not edge.get(index, True):
            stale.append("xdp")
        yield InterfaceFacts(
            name=interface_text(index),
            missing=tuple(missing),
            stale=tuple(stale),
            ahead=tuple(ahead),
            xdp=edge.get(index, False),
        )


def _edge(root: PinRoot, reader: Reader, pinned: Pinned) -> tuple[dict[int, bool], set[int]]:
    """Give the interfaces with XDP, and whether it is this build's; and those that should have it.

    A bond's ports have rows of their own, and the program by way of the bond.
    """
    if "uplinks" not in reader.layout.maps:
        return {}, set()
    ours = bpf.program_id(pinned.program("edge"))
    served = chooser(reader.layout.maps["uplinks"].value, ("ifindex",))
    return (
        {index: program == ours for index, program in xdp.attached(root).items()},
        {served(raw)[0] for _, raw in reader.rows("uplinks")},
    )


def _ahead(filters: tuple[Filter, ...], mine: list[Filter]) -> Iterator[Filter]:
    """Give the foreign filters that see a packet before the first of ours."""
    first = min((each.priority for each in mine), default=0)
    for each in filters:
        if not each.ours and not each.chain and each.priority <= first:
            yield each


def _sockets(root: PinRoot, pinned: Pinned) -> tuple[int, int]:
    """Count the socket hooks that are attached, and those with another build's program."""
    found = sockets.attached(root)
    stale = [name for name, id_ in found.items() if id_ != bpf.program_id(pinned.program(name))]
    return len(found), len(stale)


def _services(reader: Reader) -> tuple[int, tuple[int, ...]]:
    value = chooser(reader.layout.maps["services"].value, ("namespace", "name", "family"))
    names, families = set(), set()
    for _, raw in reader.rows("services"):
        namespace, name, family = value(raw)
        names.add((namespace, name))
        families.add(family)
    return len(names), tuple(sorted(families))


def _drops(reader: Reader) -> dict[str, int]:
    found = {}
    for event, reason, count in node.counters(reader).rows:
        if event == "dropped" and count:
            found[str(reason)] = int(str(count))
    return found


def _is_reserved(ports: node.MasqueradePorts) -> bool:
    reserved = sysctls.parse_ports(sysctls.read(sysctls.RESERVED_PORTS))
    return any(each.first <= ports.first and ports.last <= each.last for each in reserved)
