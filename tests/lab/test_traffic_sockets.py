"""Every case of traffic again, with pods whose sockets the hooks translate.

Whoever translates a call, both of its ends see the same: so the same tests hold. What the hooks
leave to tc is part of that, and is what ``test_traffic_pod_sockets`` is about.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import test_traffic_cases
from tests.lab.known_pods import make_known
from tests.lab.testbed import NETWORKS, Testbed, running_testbed

_CASES = {name: case for name, case in vars(test_traffic_cases).items() if name.startswith("test_")}

globals().update(_CASES)

# The hooks know nothing of the network below; its other kinds are asked again when there is time.
_NETWORKS = [
    pytest.param(network, id=name, marks=() if name == "routed" else pytest.mark.slow)
    for name, network in NETWORKS.items()
]


@pytest.fixture(scope="module", params=_NETWORKS)
def testbed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    """A lab of every kind, whose pods are below the cgroups of their nodes and known there."""
    with running_testbed(**request.param, holds_pods=True) as made:
        make_known(made)
        yield made


def test_all_cases_are_checked() -> None:
    assert len(_CASES) > 20
