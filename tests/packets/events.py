"""What the programs tell about packets, read from the kernel's ring as the agent reads it."""

from __future__ import annotations

from typing import Any

from bpfsvc.base.address import endpoint_text
from bpfsvc.datapath.maps.ring_buffer import RingBuffer
from tests.packets.node import Node

KINDS = ("made", "answered", "repeated", "refused", "dropped", "ended")
"""What the programs tell of themselves."""

ELSEWHERE = "dropped_elsewhere"


class Events:
    """Asks the programs of a node for events, of all kinds at first."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._layout = node.pinned.layout
        ring = node.pinned.map("events")
        self._ring = RingBuffer(ring.fd, ring.max_entries)
        self._record = self._layout.struct("event")
        numbers = {kind: f"EVENT_{kind.upper()}" for kind in (*KINDS, ELSEWHERE)}
        self._kinds = {self._layout.constant(name): kind for kind, name in numbers.items()}
        self._reasons = self._layout.constants_named("EVENT_REASON_")
        self._paths = self._layout.constants_named("EVENT_BY_")
        self._ring.skip()
        self.ask(*KINDS)

    def ask(self, *kinds: str, connections: int = 0, failures: int = 0) -> None:
        """Ask for these kinds; the others are masks of samples."""
        numbers = [self._layout.constant(f"EVENT_{kind.upper()}") for kind in kinds]
        entry = {
            "kinds": sum(1 << number for number in numbers),
            "connections": connections,
            "failures": failures,
        }
        record = self._layout.maps["observed"].value
        self._node.pinned.map("observed").update(bytes(4), record.pack(entry))

    def read(self) -> list[dict[str, Any]]:
        """Return what has come: numbers of enums by their names, and ends as texts."""
        return [self._named(self._record.unpack(raw)) for raw in self._ring.read(1 << 20)]

    @property
    def room(self) -> int:
        """Of how many events the ring has room."""
        return int(self._node.pinned.map("events").max_entries // (self._record.size + 8))

    def fill(self, frame: bytes) -> list[dict[str, Any]]:
        """Do :meth:`fill_up`; return the events. The next ones have the memory of these."""
        self.fill_up(frame)
        return self.read()

    def fill_up(self, frame: bytes) -> None:
        """Send a frame that an event tells of until the ring is full."""
        for _ in range(self.room + 25):
            self._node.run_frame("ingress", frame)

    def close(self) -> None:
        """Ask for nothing any more."""
        self.ask()
        self._ring.close()

    def _named(self, event: dict[str, Any]) -> dict[str, Any]:
        for name in ("client", "frontend", "backend"):
            address, port = event.pop(name), event.pop(f"{name}_port")
            event[name] = endpoint_text(address, port) if any(address) else ""
            assert any(address) or not port
        event["kind"] = self._kinds[event["kind"]]
        event["reason"] = self._reasons[event["reason"]]
        event["path"] = self._paths[event["path"]]
        assert not event.pop("zero")
        return event
