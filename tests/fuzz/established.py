"""The agent at the level ``established``: it asks netfilter, which here is the model."""

from __future__ import annotations

from socket import ntohs

from bpfsvc.agent.flows.established_flows import ListedPorts
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow
from tests.fuzz.frames import End
from tests.fuzz.model import Model


class Agent:
    """Makes flows fast that the programs propose, as far as the model has them established."""

    def __init__(self, pinned: Pinned) -> None:
        self._pinned = pinned
        layout = pinned.layout.maps["established_flows"]
        self._key = layout.key.pick(*TranslatedFlow._fields)
        self._state = layout.value.pick("state")
        self._candidate, self._fast = (
            pinned.layout.constant(f"ESTABLISHED_{name}") for name in ("CANDIDATE", "FAST")
        )
        self.begin()

    def begin(self) -> None:
        """Begin a history: no ports are listed."""
        self._ports = ListedPorts(self._pinned)

    def look(self, model: Model) -> None:
        """Decide on all candidates."""
        table = self._pinned.map("established_flows")
        flows = {
            TranslatedFlow(*self._key.unpack(key)): self._state.unpack(value)[0]
            for key, value in table.items()
        }
        self._ports.write(flows)
        for flow, state in flows.items():
            if state != self._candidate:
                continue
            if not _is_established(model, flow):
                table.delete(self._key.pack(*flow))
                continue
            model.seen["flows made fast in their middle"] += 1
            for direction in (flow, flow.reverse()):
                table.update(self._key.pack(*direction), self._state.pack(self._fast))


def _is_established(model: Model, flow: TranslatedFlow) -> bool:
    source: End = flow.source, ntohs(flow.source_port)
    destination: End = flow.destination, ntohs(flow.destination_port)
    known = {(flow.protocol, source, destination), (flow.protocol, destination, source)}
    return any(
        connection.established and connection.is_open
        for connection in model.connections.values()
        if (connection.protocol, connection.routed, connection.backend) in known
    ) or not known.isdisjoint(model.direct)
