"""A node of tests: objects as the API writes them, and connections as netfilter tracks them."""

from __future__ import annotations

from bpfsvc.base.address import pack
from bpfsvc.base.ports import NODE_PORTS
from bpfsvc.base.protocols import PROTOCOLS
from bpfsvc.migration.shadow.comparison import Comparer, Comparison
from bpfsvc.migration.shadow.flow import Flow
from bpfsvc.migration.shadow.history import History
from bpfsvc.migration.shadow.node_view import NodeView
from bpfsvc.model import ModelObject, Node, ObjectKey
from bpfsvc.services.cache import Cache
from bpfsvc.services.planner import Planner
from bpfsvc.services.rules.context import ServiceConfig
from bpfsvc.services.rules.nodeport_addresses import NodePortAddresses
from tests.migration.values import network, place

TOLERANCE = 10.0

POD, OTHER_POD = "10.244.1.5", "10.244.2.7"
OUTSIDE = "203.0.113.9"
NODE = "192.168.50.11"


VIEW = NodeView(
    addresses=frozenset({pack(NODE), pack("127.0.0.1")}),
    pods=(network("10.244.0.0/16"),),
    node_ports=NodePortAddresses(),
    node_port_range=NODE_PORTS,
    service_networks=frozenset({network("10.96.0.0/12")}),
)


class ShadowNode:
    """A node; its clock stands still until it is moved."""

    def __init__(
        self,
        *objects: ModelObject,
        view: NodeView = VIEW,
        mode: str = "nftables",
        config: ServiceConfig | None = None,
    ) -> None:
        self.now = 0.0
        cache = Cache("here")
        cache.apply([Node("here", addresses=(pack(NODE),))], ())
        self.planner = Planner(cache, config or ServiceConfig(), max_backends=1 << 20)
        self.history = History(self.planner, view, TOLERANCE)
        self._comparer = Comparer(self.history, seconds=TOLERANCE, is_iptables=mode == "iptables")
        self.apply(*objects)
        self.wait(2 * TOLERANCE)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.history.forget(self.now)

    def apply(self, *puts: ModelObject, gone: tuple[str, ...] = ()) -> None:
        """Put objects, and delete Services by name."""
        keys = [ObjectKey("Service", "default", name) for name in gone]
        touched = self.planner.cache.apply(puts, keys)
        self.planner.sync(touched, self.now, self.history.writer(self.now))

    def compare(
        self,
        client: str,
        asked: str,
        backend: str = "",
        *,
        seen: str = "",
        protocol: str = "TCP",
        ago: float = 0.0,
    ) -> Comparison | None:
        """Compare a connection of the address ``client``.

        Without ``backend`` it is not translated, without ``seen`` the backend sees the client.
        """
        flow = Flow(
            PROTOCOLS[protocol],
            (pack(client), 40000),
            place(asked),
            place(backend or asked),
            pack(seen or client),
        )
        return self._comparer.compare(flow, self.now - ago)

    def kind(self, *words: str, **more: object) -> str:
        """Return the kind of difference; ``-`` if the connection is not one to a Service."""
        comparison = self.compare(*words, **more)  # type: ignore[arg-type]
        return comparison.kind if comparison else "-"
