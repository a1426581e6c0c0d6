"""What stands at a tc hook, and what can stand in the way there. Values and errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bpfsvc.errors import BpfsvcError

NAME_PREFIX = "bpfsvc"
"""Begins the name of every filter of ours, and of nobody else's."""

HANDLE = 0xB5
PRIORITY = 0xB5
"""Far from 1, where most programs sit, and before what the kernel numbers itself (49152 down)."""

ALL_PROTOCOLS = 0x0003
"""ETH_P_ALL: a filter of it sees every packet."""


class Hook(Enum):
    """A tc hook; the value is the parent that stands for it in the kernel."""

    INGRESS = 0xFFFFFFF2
    EGRESS = 0xFFFFFFF3

    def __str__(self) -> str:
        return self.name.lower()


class DeviceGone(BpfsvcError):
    """The interface went away meanwhile: everyday on a node, and nobody's mistake."""

    def __init__(self, ifindex: int) -> None:
        super().__init__(f"interface {ifindex} is gone", "nothing needs to be done")
        self.ifindex = ifindex


class ForeignFilter(BpfsvcError):
    """Another program's filter stands exactly where ours should."""


class ForeignQdisc(BpfsvcError):
    """Another program's qdisc leaves no place for a clsact qdisc."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter on a hook, ours or foreign. ``program`` is the id of a bpf filter's program, or 0.

    ``protocol`` is the EtherType it looks at, in host order, or ALL_PROTOCOLS.
    """

    hook: Hook
    chain: int
    priority: int
    handle: int
    protocol: int
    kind: str
    name: str
    program: int

    @property
    def ours(self) -> bool:
        """Whether bpfsvc put it there."""
        return self.kind == "bpf" and self.name.startswith(NAME_PREFIX)

    def __str__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        return f"{self.kind}{label} at priority {self.priority}, handle {self.handle:#x}"


@dataclass(frozen=True, slots=True)
class Attachment:
    """What ``attach`` did and met.

    ``ahead`` are the foreign filters that see packets before ours. One that answers anything but
    "unspecified" or "continue" ends the walk, and ours never sees the packet: worth a warning.
    """

    made_qdisc: bool
    replaced: bool
    ahead: tuple[Filter, ...]
