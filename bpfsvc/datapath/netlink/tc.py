"""Attach, list and detach programs at the tc hooks of an interface.

A hook belongs to everybody: CNIs, observers and policy agents put filters beside ours. Four rules
keep the peace. Ours are known by name, and nothing else is ever replaced or removed. Ours have a
priority and a handle that nobody else uses by habit. What runs before ours, and might keep packets
from it, is reported. And the clsact qdisc that carries the hooks is removed only if we made it and
nobody uses it any more.

Who made it has to be known by a later process, perhaps after a crash, and an index may then belong
to another interface. So the mark stands in the qdisc itself and shares its fate: an empty
filter chain with a number of ours, which no packet ever enters.

Each call opens its own socket: calls from several threads do not meet.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bpfsvc.datapath.netlink import messages as wire
from bpfsvc.datapath.netlink.conversation import Conversation, NetlinkRefused
from bpfsvc.datapath.netlink.hooks import (
    ALL_PROTOCOLS,
    HANDLE,
    NAME_PREFIX,
    PRIORITY,
    Attachment,
    DeviceGone,
    Filter,
    ForeignFilter,
    ForeignQdisc,
    Hook,
)
from bpfsvc.errors import KernelError

_MARK = 0xB5FC
_CLSACT = 0xFFFFFFF1
_CLSACT_HANDLE = 0xFFFF0000
_NO_QDISC = {errno.EINVAL, errno.ENOENT}


def attach(
    ifindex: int, hook: Hook, program_fd: int, name: str, priority: int = PRIORITY
) -> Attachment:
    """Put a direct-action program on a hook, or in the place of our former one, atomically.

    Makes the clsact qdisc if there is none. Filters of ours at other priorities (from a run with
    another ``--tc-priority``) go once the new one stands. ``name`` begins with ``bpfsvc``.

    Raises :class:`DeviceGone`, :class:`ForeignFilter`, :class:`ForeignQdisc`, or ``KernelError``.
    """
    if not name.startswith(NAME_PREFIX):
        raise ValueError(f"the name of a filter must begin with {NAME_PREFIX!r}: {name!r}")
    with _talk_about(ifindex, f"attach {name}") as talk:
        made = _make_qdisc(talk, ifindex)
        before = _filters(talk, ifindex, hook)
        _refuse_foreign(ifindex, before, priority)
        replaced = any(_is_at(each, priority) for each in before)
        _install(talk, ifindex, hook, program_fd, name, priority, fresh=not replaced)
        for each in before:
            if each.ours and not _is_at(each, priority):
                _remove(talk, ifindex, each)
    ahead = tuple(
        each for each in before if not each.ours and not each.chain and each.priority <= priority
    )
    return Attachment(made, replaced, ahead)


def attached(ifindex: int, hook: Hook) -> tuple[Filter, ...]:
    """Give all filters of a hook in the order of their priorities.

    Raises :class:`DeviceGone` or ``KernelError``.
    """
    with _talk_about(ifindex, f"list the {hook} filters") as talk:
        return _filters(talk, ifindex, hook)


def detach(ifindex: int) -> bool:
    """Remove our filters, then the clsact qdisc if we made it and nothing else is left in it.

    Gives whether there was anything of ours. Raises :class:`DeviceGone` or ``KernelError``.
    """
    with _talk_about(ifindex, "detach") as talk:
        filters = [each for hook in Hook for each in _filters(talk, ifindex, hook)]
        ours = [each for each in filters if each.ours]
        for each in ours:
            _remove(talk, ifindex, each)
        marked = _is_marked(talk, ifindex)
        if marked and len(ours) == len(filters):
            talk.ask(wire.RTM_DELQDISC, _message(ifindex, _CLSACT, _CLSACT_HANDLE))
        return bool(ours) or marked


def _message(ifindex: int, parent: int, handle: int = 0, info: int = 0) -> Any:
    message = wire.TrafficControl()
    message["index"] = ifindex
    message["parent"] = parent
    message["handle"] = handle
    message["info"] = info
    message["attrs"] = []
    return message


@contextmanager
def _talk_about(ifindex: int, what: str) -> Iterator[Conversation]:
    """Open a socket; name the interface and the deed in a refusal, and tell if it just vanished."""
    with Conversation() as talk:
        try:
            yield talk
        except NetlinkRefused as refusal:
            # Whatever the kernel complains of first: no interface, no qdisc on it, no such parent.
            name = _name(ifindex)
            if not name:
                raise DeviceGone(ifindex) from refusal
            raise KernelError(
                f"{name}: cannot {what}: {refusal.message}",
                f"exclude the interface with --devices '!{name}'",
            ) from refusal


def _name(ifindex: int) -> str:
    try:
        return socket.if_indextoname(ifindex)
    except OSError:
        return ""


def _make_qdisc(talk: Conversation, ifindex: int) -> bool:
    """Make the clsact qdisc and mark it as ours, unless there is one. Give whether it was made."""
    request = _message(ifindex, _CLSACT, _CLSACT_HANDLE)
    request["attrs"] = [("KIND", "clsact")]
    try:
        talk.ask(wire.RTM_NEWQDISC, request, wire.NLM_F_CREATE | wire.NLM_F_EXCL)
    except NetlinkRefused as refusal:
        if refusal.code != errno.EEXIST:
            raise
        _refuse_foreign_qdisc(talk, ifindex)
        return False
    mark = _message(ifindex, Hook.INGRESS.value)
    mark["attrs"] = [("CHAIN", _MARK)]
    talk.ask(wire.RTM_NEWCHAIN, mark, wire.NLM_F_CREATE | wire.NLM_F_EXCL)
    return True


def _refuse_foreign_qdisc(talk: Conversation, ifindex: int) -> None:
    """Tell an ``ingress`` qdisc from a clsact: it takes egress filters and runs them at ingress."""
    qdiscs = talk.dump(wire.RTM_GETQDISC, _message(ifindex, 0))
    kinds = {
        each.get_attr("KIND")
        for each in qdiscs
        if each["index"] == ifindex and each["parent"] == _CLSACT
    }
    if "ingress" in kinds:
        name = _name(ifindex)
        raise ForeignQdisc(
            f"{name}: another program has put an 'ingress' qdisc where a 'clsact' is needed",
            f"let that program use clsact, or 'tc qdisc del dev {name} ingress',"
            f" or --devices '!{name}'",
        )


def _is_marked(talk: Conversation, ifindex: int) -> bool:
    try:
        chains = talk.dump(wire.RTM_GETCHAIN, _message(ifindex, Hook.INGRESS.value))
    except NetlinkRefused as refusal:
        if refusal.code in _NO_QDISC and _name(ifindex):
            return False
        raise
    return any(chain.get_attr("CHAIN") == _MARK for chain in chains)


def _filters(talk: Conversation, ifindex: int, hook: Hook) -> tuple[Filter, ...]:
    try:
        messages = talk.dump(wire.RTM_GETTFILTER, _message(ifindex, hook.value))
    except NetlinkRefused as refusal:
        if refusal.code in _NO_QDISC and _name(ifindex):
            return ()
        raise
    if not messages and not _name(ifindex):
        raise DeviceGone(ifindex)  # the kernel lists nothing for an index that does not exist
    listed = [_filter(hook, message) for message in messages]
    # Every priority is announced by a line without a handle; it counts if nothing follows it.
    detailed = {(each.chain, each.priority) for each in listed if each.handle}
    return tuple(
        each for each in listed if each.handle or (each.chain, each.priority) not in detailed
    )


def _filter(hook: Hook, message: Any) -> Filter:
    kind = message.get_attr("KIND") or ""
    options = message.get_attr("OPTIONS") if kind == "bpf" else None
    return Filter(
        hook=hook,
        chain=message.get_attr("CHAIN") or 0,
        priority=message["info"] >> 16,
        handle=message["handle"],
        protocol=socket.ntohs(message["info"] & 0xFFFF),
        kind=kind,
        name=(options.get_attr("NAME") or "") if options is not None else "",
        program=(options.get_attr("ID") or 0) if options is not None else 0,
    )


def _is_at(each: Filter, priority: int) -> bool:
    return each.ours and each.chain == 0 and (each.priority, each.handle) == (priority, HANDLE)


def _refuse_foreign(ifindex: int, filters: tuple[Filter, ...], priority: int) -> None:
    """Refuse a priority that a foreign filter holds: by our handle, or by its kind or protocol.

    The kernel lets only filters of one kind and one protocol share a priority.
    """
    for each in filters:
        if each.ours or each.chain or each.priority != priority:
            continue
        if each.handle == HANDLE or each.kind != "bpf" or each.protocol != ALL_PROTOCOLS:
            raise ForeignFilter(
                f"{_name(ifindex)}: the place of bpfsvc at the {each.hook} hook is taken by"
                f" another program's filter: {each}",
                f"choose another place with --tc-priority N (now {priority})",
            )


def _install(
    talk: Conversation,
    ifindex: int,
    hook: Hook,
    program_fd: int,
    name: str,
    priority: int,
    *,
    fresh: bool,
) -> None:
    request = _message(ifindex, hook.value, HANDLE, priority << 16 | socket.htons(ALL_PROTOCOLS))
    options = [("FD", program_fd), ("NAME", name), ("FLAGS", wire.TCA_BPF_FLAG_ACT_DIRECT)]
    request["attrs"] = [("KIND", "bpf"), ("OPTIONS", {"attrs": options})]
    # Exclusive where nothing stood: if a foreign filter came in between, it is not replaced.
    flags = wire.NLM_F_CREATE | (wire.NLM_F_EXCL if fresh else 0)
    talk.ask(wire.RTM_NEWTFILTER, request, flags)


def _remove(talk: Conversation, ifindex: int, each: Filter) -> None:
    info = each.priority << 16 | socket.htons(each.protocol)
    request = _message(ifindex, each.hook.value, each.handle, info)
    request["attrs"] = [("KIND", each.kind), ("CHAIN", each.chain)]
    try:
        talk.ask(wire.RTM_DELTFILTER, request)
    except NetlinkRefused as refusal:
        if refusal.code != errno.ENOENT:  # somebody else removed it first
            raise
