"""Who else is seen on this node. Apart from the other facts, because the agent looks for it too."""

from __future__ import annotations

from typing import NamedTuple

from bpfsvc.takeover.rules import Table


class Attached(NamedTuple):
    """A foreign program on an interface.

    ``hook`` is ``ingress``, ``egress`` or ``xdp``; ``way`` is ``tcx``, ``clsact`` or ``xdp``;
    ``priority`` is that of a filter. ``bpfsvc``: whether it is another bpfsvc's.
    """

    interface: str
    hook: str
    way: str
    name: str = ""
    kind: str = "bpf"
    priority: int = 0
    bpfsvc: bool = False


class Others(NamedTuple):
    """Signs of somebody else who does Services.

    * ``devices``: names of the interfaces here. ``attached``: foreign programs on them.
    * ``loaded``: names of programs and maps of the whole machine, None if they cannot be seen.
    * ``pinned``: paths of known pins that exist.
    * ``gateway``: the interface by which Antrea's address for Services is reached, or "".
    """

    devices: frozenset[str] = frozenset()
    attached: tuple[Attached, ...] = ()
    loaded: frozenset[str] | None = frozenset()
    pinned: frozenset[str] = frozenset()
    gateway: str = ""


class Chain(NamedTuple):
    """A chain of nftables: its family (``ip``, ``inet``, ``netdev`` ...), table and name."""

    family: str
    table: str
    name: str


class Guards(NamedTuple):
    """What stands in the way of forwarded packets, and the fast path would pass by.

    * ``devices``: names of the interfaces. ``pinned``: known pins that exist.
    * ``tables``: those of iptables, each after the flavour it is of.
    * ``chains``: those of nftables that filter what is forwarded.
    * ``ipsec``: policies of IPsec. ``unseen``: what could not be looked at, a sentence each.
    """

    devices: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()
    tables: tuple[tuple[str, Table], ...] = ()
    chains: tuple[Chain, ...] = ()
    ipsec: int = 0
    unseen: tuple[str, ...] = ()
