"""Attach, list and detach programs at the tc hooks of an interface.

Other programs use the same hooks: CNIs, observers and policy agents put filters beside ours. Four
rules keep them apart. Our filters are known by name, and no other filter is ever replaced or
removed. Our filters have a priority and a handle that other programs do not use by habit. Filters
that run before ours, and might keep packets from ours, are reported. And the clsact qdisc that
carries the hooks is removed only if bpfsvc made the qdisc and no filter is left in it.

A later process, perhaps after a crash, has to know who made the qdisc, and the interface's index
may then belong to another interface. So the mark is in the qdisc itself and goes with it: an empty
filter chain with a number of ours, which no packet ever enters.

pyroute2 0.9.7 knows neither filter chains nor the attribute for the id of a filter's program
(TCA_BPF_ID), so qdiscs, filters and chains have message classes of this module.

Each function opens a socket of its own, so they may be called from several threads.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from bpfsvc.base.attachment import PRIORITY
from bpfsvc.base.errors import KernelError
from bpfsvc.datapath.netlink.hooks import (
    ALL_PROTOCOLS,
    HANDLE,
    NAME_PREFIX,
    Attachment,
    DeviceGone,
    Filter,
    ForeignFilter,
    ForeignQdisc,
    Hook,
)
from bpfsvc.datapath.netlink.rtnetlink import (
    CREATE,
    CREATE_NEW,
    REMOVE,
    NetlinkError,
    Rtnetlink,
    nla,
    nlmsg,
    reason,
    rtnetlink,
    rtnl,
    tcmsg,
)

_MARK = 0xB5FC
_CLSACT = 0xFFFFFFF1  # the parent of clsact and ingress qdiscs
_CLSACT_HANDLE = 0xFFFF0000
_DIRECT_ACTION = 1  # TCA_BPF_FLAG_ACT_DIRECT
_NO_QDISC = {errno.EINVAL, errno.ENOENT}
_RTM_NEWCHAIN, _RTM_GETCHAIN = 100, 102

Lister = Callable[[int, Hook], tuple[Filter, ...]]
"""Returns the filters on a hook of an interface."""


class _Message(nlmsg):  # type: ignore[misc]
    """``struct tcmsg`` of a qdisc, a chain or a filter, with what pyroute2's own class leaves out.

    Not a subclass of that class: pyroute2 compiles the table of attributes once for a class and all
    its subclasses.
    """

    __slots__ = ()
    fields = tcmsg.fields
    nla_map: ClassVar[tuple[tuple[int, str, str], ...]] = (
        (1, "TCA_KIND", "asciiz"),
        (2, "TCA_OPTIONS", "options"),
        (11, "TCA_CHAIN", "uint32"),
    )

    @staticmethod
    def options(message: Any, **_: object) -> Any:
        """Return the class of ``TCA_OPTIONS``, which depends on the kind of filter."""
        return _BpfOptions if message.get_attr("TCA_KIND") == "bpf" else message.hex


class _BpfOptions(nla):  # type: ignore[misc]
    """``TCA_OPTIONS`` of a bpf filter."""

    __slots__ = ()
    nla_map: ClassVar[tuple[tuple[int, str, str], ...]] = (
        (6, "TCA_BPF_FD", "uint32"),
        (7, "TCA_BPF_NAME", "asciiz"),
        (8, "TCA_BPF_FLAGS", "uint32"),
        (11, "TCA_BPF_ID", "uint32"),
    )


_POLICY = dict.fromkeys((rtnl.RTM_NEWQDISC, rtnl.RTM_NEWTFILTER, _RTM_NEWCHAIN), _Message)


def attach(
    ifindex: int, hook: Hook, program_fd: int, name: str, priority: int = PRIORITY
) -> Attachment:
    """Put a direct-action program on a hook, or replace our former filter, atomically.

    Makes the clsact qdisc if there is none. Filters of ours at other priorities (from a run with
    another ``--tc-priority``) are removed after that. ``name`` begins with ``bpfsvc``.

    Raises :class:`DeviceGone`, :class:`ForeignFilter`, :class:`ForeignQdisc`, or ``KernelError``.
    """
    if not name.startswith(NAME_PREFIX):
        raise ValueError(f"the name of a filter must begin with {NAME_PREFIX!r}: {name!r}")
    with _interface(ifindex, f"attach {name}") as netlink:
        made = _make_qdisc(netlink, ifindex)
        before = _filters(netlink, ifindex, hook)
        _refuse_foreign(ifindex, before, priority)
        replaced = any(_is_at(existing, priority) for existing in before)
        _install(netlink, ifindex, hook, program_fd, name, priority, is_new=not replaced)
        for existing in before:
            if existing.ours and not _is_at(existing, priority):
                _remove(netlink, ifindex, existing)
    ahead = tuple(
        existing
        for existing in before
        if not existing.ours and not existing.chain and existing.priority <= priority
    )
    return Attachment(made, replaced, ahead)


def attached(ifindex: int, hook: Hook) -> tuple[Filter, ...]:
    """Return all filters of a hook in the order of their priorities.

    Raises :class:`DeviceGone` or ``KernelError``.
    """
    with lister() as filters:
        return filters(ifindex, hook)


@contextmanager
def lister() -> Iterator[Lister]:
    """Open a socket for many calls of a function that does what :func:`attached` does."""
    with rtnetlink(_POLICY) as netlink:

        def filters(ifindex: int, hook: Hook) -> tuple[Filter, ...]:
            with _explained(ifindex, f"list the {hook} filters"):
                return _filters(netlink, ifindex, hook)

        yield filters


def detach(ifindex: int) -> bool:
    """Remove our filters, then the clsact qdisc if we made it and no filter is left in it.

    Returns True if there was anything of ours. Raises :class:`DeviceGone` or ``KernelError``.
    """
    with _interface(ifindex, "detach") as netlink:
        filters = [existing for hook in Hook for existing in _filters(netlink, ifindex, hook)]
        ours = [existing for existing in filters if existing.ours]
        for existing in ours:
            _remove(netlink, ifindex, existing)
        marked = _is_marked(netlink, ifindex)
        if marked and len(ours) == len(filters):
            netlink.request(_message(ifindex, _CLSACT, _CLSACT_HANDLE), rtnl.RTM_DELQDISC, REMOVE)
        return bool(ours) or marked


@contextmanager
def _interface(ifindex: int, task: str) -> Iterator[Rtnetlink]:
    """Open a socket for one task on one interface; see :func:`_explained`."""
    with rtnetlink(_POLICY) as netlink, _explained(ifindex, task):
        yield netlink


@contextmanager
def _explained(ifindex: int, task: str) -> Iterator[None]:
    """Raise refusals with the interface's name and the task, or as :class:`DeviceGone`."""
    try:
        yield
    except NetlinkError as refusal:
        # The kernel may name another cause first: no qdisc on it, no such parent.
        name = _name(ifindex)
        if not name:
            raise DeviceGone(ifindex) from refusal
        raise KernelError(
            f"{name}: cannot {task}: {reason(refusal)}",
            f"exclude the interface with --devices '!{name}'",
        ) from refusal


def _name(ifindex: int) -> str:
    try:
        return socket.if_indextoname(ifindex)
    except OSError:
        return ""


def _message(ifindex: int, parent: int, handle: int = 0, info: int = 0) -> _Message:
    message = _Message()
    message["index"], message["parent"] = ifindex, parent
    message["handle"], message["info"] = handle, info
    return message


def _make_qdisc(netlink: Rtnetlink, ifindex: int) -> bool:
    """Make the clsact qdisc and mark it as ours, unless there is one. True if it was made."""
    qdisc = _message(ifindex, _CLSACT, _CLSACT_HANDLE)
    qdisc["attrs"] = [("TCA_KIND", "clsact")]
    try:
        netlink.request(qdisc, rtnl.RTM_NEWQDISC, CREATE_NEW)
    except NetlinkError as refusal:
        if refusal.code != errno.EEXIST:
            raise
        if not _is_marked(netlink, ifindex):
            _refuse_foreign_qdisc(netlink, ifindex)
        return False
    mark = _message(ifindex, Hook.INGRESS.value)
    mark["attrs"] = [("TCA_CHAIN", _MARK)]
    netlink.request(mark, _RTM_NEWCHAIN, CREATE_NEW)
    return True


def _refuse_foreign_qdisc(netlink: Rtnetlink, ifindex: int) -> None:
    """Refuse an ``ingress`` qdisc: it takes egress filters and runs them at ingress."""
    # Of all interfaces: the kernel cannot list the qdiscs of one interface.
    qdiscs = netlink.list(_message(0, 0), rtnl.RTM_GETQDISC)
    kinds = {
        qdisc.get_attr("TCA_KIND")
        for qdisc in qdiscs
        if qdisc["index"] == ifindex and qdisc["parent"] == _CLSACT
    }
    if "ingress" in kinds:
        name = _name(ifindex)
        raise ForeignQdisc(
            f"{name}: another program has put an 'ingress' qdisc where a 'clsact' is needed",
            f"let that program use clsact, or 'tc qdisc del dev {name} ingress',"
            f" or --devices '!{name}'",
        )


def _is_marked(netlink: Rtnetlink, ifindex: int) -> bool:
    try:
        chains = netlink.list(_message(ifindex, Hook.INGRESS.value), _RTM_GETCHAIN)
    except NetlinkError as refusal:
        if refusal.code in _NO_QDISC and _name(ifindex):
            return False
        raise
    return any(chain.get_attr("TCA_CHAIN") == _MARK for chain in chains)


def _filters(netlink: Rtnetlink, ifindex: int, hook: Hook) -> tuple[Filter, ...]:
    try:
        messages = netlink.list(_message(ifindex, hook.value), rtnl.RTM_GETTFILTER)
    except NetlinkError as refusal:
        if refusal.code in _NO_QDISC and _name(ifindex):
            return ()
        raise
    if not messages and not _name(ifindex):
        raise DeviceGone(ifindex)  # the kernel lists nothing for an index that does not exist
    filters = [_filter(hook, message) for message in messages]
    # The kernel writes a line without a handle for every priority, and its filters after that.
    detailed = {(item.chain, item.priority) for item in filters if item.handle}
    return tuple(
        item for item in filters if item.handle or (item.chain, item.priority) not in detailed
    )


def _filter(hook: Hook, message: Any) -> Filter:
    kind = message.get_attr("TCA_KIND") or ""
    options = message.get_attr("TCA_OPTIONS") if kind == "bpf" else None
    return Filter(
        hook=hook,
        chain=message.get_attr("TCA_CHAIN") or 0,
        priority=message["info"] >> 16,
        handle=message["handle"],
        protocol=socket.ntohs(message["info"] & 0xFFFF),
        kind=kind,
        name=(options.get_attr("TCA_BPF_NAME") or "") if options is not None else "",
        program=(options.get_attr("TCA_BPF_ID") or 0) if options is not None else 0,
    )


def _is_at(existing: Filter, priority: int) -> bool:
    return (
        existing.ours
        and existing.chain == 0
        and (existing.priority, existing.handle) == (priority, HANDLE)
    )


def _refuse_foreign(ifindex: int, filters: tuple[Filter, ...], priority: int) -> None:
    """Refuse a priority that another program's filter has: by our handle, its kind or protocol.

    The kernel lets only filters of one kind and one protocol share a priority.
    """
    for existing in filters:
        if existing.ours or existing.chain or existing.priority != priority:
            continue
        if (
            existing.handle == HANDLE
            or existing.kind != "bpf"
            or existing.protocol != ALL_PROTOCOLS
        ):
            raise ForeignFilter(
                f"{_name(ifindex)}: the place of bpfsvc at the {existing.hook} hook is taken by"
                f" another program's filter: {existing}",
                f"choose another place with --tc-priority N (now {priority})",
            )


def _install(
    netlink: Rtnetlink,
    ifindex: int,
    hook: Hook,
    program_fd: int,
    name: str,
    priority: int,
    *,
    is_new: bool,
) -> None:
    filter_ = _message(ifindex, hook.value, HANDLE, priority << 16 | socket.htons(ALL_PROTOCOLS))
    options = [
        ("TCA_BPF_FD", program_fd),
        ("TCA_BPF_NAME", name),
        ("TCA_BPF_FLAGS", _DIRECT_ACTION),
    ]
    filter_["attrs"] = [("TCA_KIND", "bpf"), ("TCA_OPTIONS", {"attrs": options})]
    # A new one only where none was: a filter that another program put there meanwhile stays.
    netlink.request(filter_, rtnl.RTM_NEWTFILTER, CREATE_NEW if is_new else CREATE)


def _remove(netlink: Rtnetlink, ifindex: int, existing: Filter) -> None:
    info = existing.priority << 16 | socket.htons(existing.protocol)
    filter_ = _message(ifindex, existing.hook.value, existing.handle, info)
    filter_["attrs"] = [("TCA_KIND", existing.kind), ("TCA_CHAIN", existing.chain)]
    try:
        netlink.request(filter_, rtnl.RTM_DELTFILTER, REMOVE)
    except NetlinkError as refusal:
        if refusal.code != errno.ENOENT:  # another program removed it first
            raise
