"""The rtnetlink messages used here, in pyroute2's notation.

Only the attributes that are read or written are declared: the others of a message are skipped when
it is decoded. pyroute2's own tc message cannot serve, because it does not know the attribute that
tells which program a filter runs (``TCA_BPF_ID``). Numbers are those of the kernel's
``linux/rtnetlink.h``, ``if_link.h``, ``if_addr.h`` and ``pkt_cls.h``; they are ABI.
"""

from __future__ import annotations

from typing import Any, ClassVar

from bpfsvc.bare import bare_package

with bare_package("pyroute2"):
    from pyroute2.netlink import nla, nlmsg

RTM_NEWLINK, RTM_GETLINK = 16, 18
RTM_GETADDR = 22
RTM_NEWROUTE, RTM_DELROUTE, RTM_GETROUTE = 24, 25, 26
RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
RTM_NEWTFILTER, RTM_DELTFILTER, RTM_GETTFILTER = 44, 45, 46
RTM_NEWCHAIN, RTM_GETCHAIN = 100, 102

NLM_F_REQUEST, NLM_F_ACK, NLM_F_DUMP_INTR, NLM_F_DUMP = 0x1, 0x4, 0x10, 0x300
NLM_F_EXCL, NLM_F_CREATE = 0x200, 0x400
NLM_F_CAPPED, NLM_F_ACK_TLVS = 0x100, 0x200

NLMSG_ERROR, NLMSG_DONE = 2, 3

RTEXT_FILTER_SKIP_STATS = 8
"""Leaves the counters out of a list of links: more than half of it, and unused."""

TCA_BPF_FLAG_ACT_DIRECT = 1

Attribute = tuple[int, str, str]


class Link(nlmsg):  # type: ignore[misc]
    """``struct ifinfomsg``."""

    __slots__ = ()
    fields = (
        ("family", "B"),
        ("pad", "B"),
        ("type", "H"),
        ("index", "i"),
        ("flags", "I"),
        ("change", "I"),
    )
    nla_map: ClassVar[tuple[Attribute, ...]] = (
        (1, "ADDRESS", "cdata"),
        (3, "NAME", "asciiz"),
        (6, "QDISC", "asciiz"),
        (10, "MASTER", "uint32"),
        (18, "INFO", "info"),
        (29, "EXT_MASK", "uint32"),
        (37, "LINK_NETNSID", "int32"),
    )

    class info(nla):  # type: ignore[misc]  # noqa: N801 (the notation names a class by its attribute)
        """``IFLA_LINKINFO``."""

        __slots__ = ()
        nla_map: ClassVar[tuple[Attribute, ...]] = ((1, "KIND", "asciiz"),)


class Address(nlmsg):  # type: ignore[misc]
    """``struct ifaddrmsg``. ``LOCAL`` is the interface's own address where there is a peer."""

    __slots__ = ()
    fields = (("family", "B"), ("prefixlen", "B"), ("flags", "B"), ("scope", "B"), ("index", "I"))
    nla_map: ClassVar[tuple[Attribute, ...]] = (
        (1, "ADDRESS", "cdata"),
        (2, "LOCAL", "cdata"),
        (8, "FLAGS", "uint32"),
    )


class Route(nlmsg):  # type: ignore[misc]
    """``struct rtmsg``."""

    __slots__ = ()
    fields = (
        ("family", "B"),
        ("dst_len", "B"),
        ("src_len", "B"),
        ("tos", "B"),
        ("table", "B"),
        ("proto", "B"),
        ("scope", "B"),
        ("type", "B"),
        ("flags", "I"),
    )
    nla_map: ClassVar[tuple[Attribute, ...]] = ((1, "DST", "cdata"), (4, "OIF", "uint32"))


class TrafficControl(nlmsg):  # type: ignore[misc]
    """``struct tcmsg``: a qdisc, a chain or a filter."""

    __slots__ = ()
    fields = (
        ("family", "B"),
        ("pad1", "B"),
        ("pad2", "H"),
        ("index", "i"),
        ("handle", "I"),
        ("parent", "I"),
        ("info", "I"),
    )
    nla_map: ClassVar[tuple[Attribute, ...]] = (
        (1, "KIND", "asciiz"),
        (2, "OPTIONS", "options_of_kind"),
        (11, "CHAIN", "uint32"),
    )

    @staticmethod
    def options_of_kind(message: Any, **_: object) -> Any:
        """Give the class of ``TCA_OPTIONS``, which depends on what stands in ``TCA_KIND``."""
        return TrafficControl.bpf_options if message.get_attr("KIND") == "bpf" else message.cdata

    class bpf_options(nla):  # type: ignore[misc]  # noqa: N801
        """``TCA_OPTIONS`` of a bpf filter."""

        __slots__ = ()
        nla_map: ClassVar[tuple[Attribute, ...]] = (
            (6, "FD", "uint32"),
            (7, "NAME", "asciiz"),
            (8, "FLAGS", "uint32"),
            (11, "ID", "uint32"),
        )
