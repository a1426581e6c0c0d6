"""Failed connections are counted for every Service, by packets and by sockets: with real sockets.

Of a pod that its node knows, sockets are translated and no packets are (``pod``); of the node too
(``node``); a client outside, and a pod's socket that is bound to a port, go by tc.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

from bpfsvc.devtools.lab.patience import wait
from tests.lab.test_quarantine import (
    REFUSE,
    SICK,
    SILENT,
    WHERE,
    ask,
    backends,
    broken,
    sick_testbed,
)
from tests.lab.testbed import Testbed

pytestmark = pytest.mark.slow

REASONS = ("refused", "unanswered", "unreachable")


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """A lab with an API server; the first pod is a client, the others are backends."""
    with sick_testbed("") as testbed:
        yield testbed


def counted(testbed: Testbed, family: int) -> dict[str, dict[str, int]]:
    """Return the failures of each backend by reason, as ``bpfsvc services`` shows them."""
    name = f"{SICK.name}:web"
    shown = testbed.cluster.command(testbed.node, "services", name, "--stats", "-o", "json")
    (port,) = (
        service
        for service in json.loads(shown.stdout)["services"]
        if service["family"] == f"IPv{family}"
    )
    return {
        backend["address"]: {reason: backend["counts"][reason] for reason in REASONS}
        for backend in port["backends"]
    }


@pytest.mark.parametrize(
    ("rule", "reason"), [(REFUSE, "refused"), (SILENT, "unanswered")], ids=["refuses", "is silent"]
)
@pytest.mark.parametrize("where", WHERE)
def test_each_failure_is_counted_once_for_the_backend_at_fault(
    running: Testbed, where: str, rule: str, reason: str, family: int
) -> None:
    sick, well = backends(running)
    before = counted(running, family)
    failed = 0
    with broken(sick, rule):
        while failed < 3:
            try:
                assert ask(running, where, family).pod == well.name
            except OSError:
                failed += 1
    before[sick.address(family)][reason] += failed
    wait(lambda: counted(running, family) == before, "each failure is counted")
    with suppress(OSError):
        ask(running, where, family)
    assert counted(running, family) == before
