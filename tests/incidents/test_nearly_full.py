"""The table of connections is near its end: soon new connections will fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from bpfsvc.devtools.lab.dial import connect
from tests.incidents.operator import Operator
from tests.lab.testbed import Named, built_testbed, objects

pytestmark = pytest.mark.slow

CROWDED = Named("crowded", 72)
ROOM = 256


@pytest.fixture
def small() -> Iterator[Operator]:
    """Who looks at a node with a small table of connections."""
    with built_testbed(layout="routed", families=(4,)) as testbed:
        testbed.cluster.nodes = [testbed.node]
        testbed.cluster.start(options=["--max-connections", str(ROOM)])
        yield Operator(testbed)


def test_status_and_doctor_say_how_full_it_is_and_what_enlarges_it(small: Operator) -> None:
    small.apply(CROWDED, objects(CROWDED, small.testbed.lab.pods, families=(4,)))
    to = (small.testbed.node.address(4), CROWDED.node_port)
    with ExitStack() as clients:
        # Each connection has two entries at least; the last one may find no room.
        with suppress(TimeoutError):
            for _ in range(ROOM // 2):
                clients.enter_context(connect(small.testbed.client, *to)).who()
        agent, _ = small.status()
        finding = small.finding("map connections holds")
    enlarge = "enlarge it with --max-connections"
    assert agent == f"UNHEALTHY: the map of connections is nearly full: {enlarge}"
    _, _, held = finding["finding"].partition("map connections holds ")
    assert int(held.split()[0]) > 0.9 * ROOM
    assert held.endswith(f" of {ROOM} entries")
    assert finding["hint"].startswith(enlarge)
