"""One lab of two nodes with agents for all incidents; each incident has a Service of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bpfsvc.devtools.lab import sandbox
from tests.incidents.operator import Operator
from tests.lab.testbed import INGRESS, built_testbed


@pytest.fixture(autouse=True, scope="session")
def _in_a_sandbox() -> None:
    sandbox.require()


@pytest.fixture(scope="session")
def operator() -> Iterator[Operator]:
    """Who looks at the first node, while clients outside use its Services."""
    with built_testbed(served=True, layout="routed") as testbed:
        for address in INGRESS.values():
            testbed.lab.client.route(address, via=testbed.node)
        testbed.cluster.start()
        yield Operator(testbed)
