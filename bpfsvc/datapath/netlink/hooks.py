"""The filters of a tc hook, and what can prevent an attachment there. Values and errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bpfsvc.base.errors import BpfsvcError

NAME_PREFIX = "bpfsvc"
"""The name of every filter of ours begins so, and no other program's."""

HANDLE = 0xB5

ALL_PROTOCOLS = 0x0003
"""ETH_P_ALL: a filter for this protocol sees every packet."""


class Hook(Enum):
    """A tc hook; the value is its parent number in the kernel."""

    INGRESS = 0xFFFFFFF2
    EGRESS = 0xFFFFFFF3

    def __str__(self) -> str:
        return self.name.lower()


class DeviceGone(BpfsvcError):
    """The interface has been removed meanwhile, as happens every day on a node."""

    def __init__(self, ifindex: int) -> None:
        super().__init__(f"interface {ifindex} is gone", "nothing needs to be done")
        self.ifindex = ifindex


class ForeignFilter(BpfsvcError):
    """Another program's filter is exactly where ours should be."""


class ForeignQdisc(BpfsvcError):
    """Another program's qdisc is where a clsact qdisc should be."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter on a hook. ``program`` is the id of a bpf filter's program, or 0.

    ``protocol`` is the EtherType of the packets it sees, in host order, or ALL_PROTOCOLS.
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
        """True if bpfsvc put it there."""
        return self.kind == "bpf" and self.name.startswith(NAME_PREFIX)

    def __str__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        return f"{self.kind}{label} at priority {self.priority}, handle {self.handle:#x}"


@dataclass(frozen=True, slots=True)
class Attachment:
    """What ``attach`` did.

    ``ahead``: the filters of other programs that see packets before ours. If one returns anything
    but "unspecified" or "continue", ours does not see the packet: worth a warning.
    """

    made_qdisc: bool
    replaced: bool
    ahead: tuple[Filter, ...]
