"""Maglev leads a client to the same endpoint on every node, whatever a node has seen before.

A node's history decides ids, generations and the names of slices that it knew, not the table.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.model import ModelObject, ObjectKey
from bpfsvc.services.entries import Frontend, Place
from bpfsvc.services.planner import Planner
from tests.services.kernel import Kernel, new_planner, restore_from
from tests.services.objects import endpoint_slice, frontend, service

VIP, BALANCER = frontend("10.96.0.1 80"), frontend("80.0.0.1 80")
ADDRESSES = [f"10.0.{number % 3}.{number}" for number in range(1, 13)]
NODES = ("here", "there", "elsewhere")
MAGLEV = service(
    type="LoadBalancer",
    ingress=({"ip": "80.0.0.1"},),
    annotations={"bpfsvc.io/scheduler": "mh,mh-port", "bpfsvc.io/weights": "node/there=2"},
)


def on(address: str) -> str:
    """Return an endpoint; its address decides where it is."""
    return f"{address} {NODES[int(address.rpartition('.')[2]) % len(NODES)]}"


SHARES = st.permutations([*map(on, ADDRESSES)]).flatmap(
    lambda order: st.integers(1, len(order) - 1).map(lambda at: (order[:at], order[at:]))
)
"""The same endpoints in two slices."""

HISTORY = st.lists(
    st.tuples(
        st.sampled_from(["other", "again", "slices", "restart"]),
        st.lists(st.sampled_from(ADDRESSES), min_size=1, max_size=6, unique=True),
    ),
    max_size=6,
)


class NodeAgent:
    """The planner of one node, and what it has written."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._kernel = Kernel()
        self._planner: Planner = new_planner(name)
        self._objects: dict[str, ModelObject] = {}

    def apply(self, objects: dict[str, ModelObject], *gone: ObjectKey) -> None:
        self._objects |= objects
        touched = self._planner.cache.apply(list(objects.values()), list(gone))
        self._kernel.sync(self._planner, touched, Random(1))

    def restart(self) -> None:
        self._planner = new_planner(self._name)
        self._planner.cache.apply(list(self._objects.values()), [])
        restore_from(self._kernel, self._planner)
        self._kernel.sync(self._planner, None, Random(1))

    def live_through(self, history: list[tuple[str, list[str]]]) -> None:
        """See other Services, other endpoints and restarts come and go."""
        for number, (kind, addresses) in enumerate(history):
            endpoints = [on(address) for address in addresses]
            if kind == "other":
                name = f"other-{number}"
                made = service(name, clusterIP=f"10.96.1.{number}")
                its = endpoint_slice(*endpoints, of=name, name=name)
                self.apply({name: made, f"{name}-slice": its})
            elif kind == "again":
                self.apply({"web": MAGLEV})
                self.apply({}, ObjectKey("Service", "default", "web"))
                self._objects.pop("web")
            elif kind == "slices":
                self.apply({"web": MAGLEV, "first": endpoint_slice(*endpoints, name="first")})
            else:
                self.restart()

    def end_with(self, shares: tuple[list[str], list[str]]) -> None:
        """See the Service and its endpoints as all nodes see them at last."""
        slices = {
            name: endpoint_slice(*share, name=name)
            for name, share in zip(("first", "second"), shares, strict=True)
        }
        self.apply({"web": MAGLEV, **slices})

    def places(self) -> list[list[Place]]:
        """Return, for each frontend, where each place of the table for clients outside leads."""
        return [self._places_at(one) for one in (VIP, BALANCER)]

    def _places_at(self, at: Frontend) -> list[Place]:
        entry = self._kernel.frontends[at]
        policy = entry.policies.other
        found = []
        for slot in self._kernel.table(entry, policy):
            key = (entry.service_id, entry.generation, policy.first + slot)
            backend = self._kernel.backends[key]
            found.append((backend.address, backend.port))
        return found


@settings(max_examples=40, deadline=None)
@given(SHARES, SHARES, HISTORY)
def test_every_node_has_the_same_table_whatever_happened_before(
    shares: tuple[list[str], list[str]],
    otherwise: tuple[list[str], list[str]],
    history: list[tuple[str, list[str]]],
) -> None:
    """Also if slices divide the endpoints in another way."""
    fresh, old = NodeAgent("here"), NodeAgent("elsewhere")
    fresh.end_with(shares)
    old.live_through(history)
    old.end_with(otherwise)
    assert fresh.places() == old.places()
    assert len(fresh.places()[0]) == 4093
