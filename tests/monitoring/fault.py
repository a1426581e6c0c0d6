"""What a fault is: a row, its context manager, and what several faults are made with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.pod import LabPod
from tests.monitoring.scene import FACTOR, Scene

Act = Callable[[], object]
Made = Iterator[Act]


class Fault(NamedTuple):
    """A row: the alerts that fire, the fault that makes them fire, and labels that they have."""

    alerts: tuple[str, ...]
    made: Callable[[Scene], AbstractContextManager[Act]]
    labels: Mapping[str, str] = {}
    part: str = ""
    """The part of the node whose agent the alert names."""
    after: Callable[[Scene], object] = lambda _: None
    """What clients do while the alert is awaited to end."""
    factor: int = FACTOR

    def is_told_by(self, alert: Mapping[str, str], instance: str) -> bool:
        """True for the labels of an alert of this fault; one that sums up has fewer labels."""
        wanted = {**self.labels, **({"instance": instance} if instance else {})}
        return alert["alertname"] in self.alerts and all(
            alert.get(name, value) == value for name, value in wanted.items()
        )


def nothing() -> None:
    """Do no more than the fault itself."""


@contextmanager
def filtered(host: LabNode | LabPod, name: str, hook: str, rule: str) -> Iterator[None]:
    """Have netfilter of a node or a pod act on packets, until the end of the block."""
    host.run(["nft", f"add table inet {name}"])
    host.run(["nft", f"add chain inet {name} c {{ type filter hook {hook} priority 0; }}"])
    host.run(["nft", f"add rule inet {name} c {rule}"])
    try:
        yield
    finally:
        host.run(["nft", f"delete table inet {name}"])
