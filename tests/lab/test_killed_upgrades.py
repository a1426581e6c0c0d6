"""An agent is killed while it takes over from an older version, with another layout of connections.

The next agent goes on from there. Meanwhile the old programs serve, the new ones, or both.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.lab.crashes import counted_lines, crash_at, make_crashing
from tests.lab.mixed_load import mixed_load
from tests.lab.other_build import copy_of_package, copy_with_another_layout
from tests.lab.testbed import WEB, Testbed, built_testbed, objects

POINTS = 4
"""How many of the counted lines an agent is killed before; each takes some ten seconds."""

_STEPS = {
    "installation.py": (
        *("begin_install", "catch_up", "attach_begins", "call_replaced", "take_over"),
        *("put_in_force", "copy_last", "complete"),
    ),
    "node_sync.py": ("start", "_take_over", "follow_network", "_write"),
    "pins.py": ("clear_next", "mark_attached", "promote_next", "discard_others"),
    "all_attachments.py": ("follow_network", "attach_sockets"),
}
FUNCTIONS = {(file, name) for file, names in _STEPS.items() for name in names}


class Versions:
    """A lab with an agent of the older of two versions; copies of the package."""

    def __init__(self, testbed: Testbed, older: Path, newer: Path) -> None:
        self.testbed, self.older, self.newer = testbed, older, newer
        for directory in (older, newer):
            make_crashing(directory, FUNCTIONS)

    def upgrade(self, crashes: Sequence[int] = ()) -> None:
        """Replace the older version. Before that, agents of the newer one crash at these lines."""
        node, cluster = self.testbed.node, self.testbed.cluster
        cluster.kill(node)
        for line in crashes:
            agent = cluster.launch(node, cwd=self.newer, env=crash_at(line))
            assert agent.ended(timeout=60) == -signal.SIGKILL, agent.log
        cluster.start(node, cwd=self.newer)
        self.older, self.newer = self.newer, self.older


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Versions]:
    first, second = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    copy_of_package(first)
    copy_with_another_layout(second)
    with built_testbed(layout="routed") as testbed:
        testbed.cluster.put("services", *objects(WEB, testbed.lab.pods))
        testbed.cluster.start(cwd=first)
        yield Versions(testbed, first, second)


@pytest.fixture(scope="module")
def lines(versions: Versions) -> int:
    """How many lines the agent of an upgrade comes to that succeeds."""
    versions.upgrade()
    return len(counted_lines(versions.older))


@pytest.mark.slow
@pytest.mark.parametrize("point", range(POINTS))
def test_an_agent_that_is_killed_at_any_line_of_an_upgrade_loses_nothing(
    versions: Versions, lines: int, point: int
) -> None:
    """Neither until the next agent comes nor with it."""
    with mixed_load(versions.testbed, pause=0.01):
        versions.upgrade([1 + (2 * point + 1) * lines // (2 * POINTS)])


@pytest.mark.slow
def test_agents_that_are_killed_one_after_the_other_lose_nothing(
    versions: Versions, lines: int
) -> None:
    """As if each had too little memory: the first before it attaches, the last when it has."""
    with mixed_load(versions.testbed, pause=0.01):
        versions.upgrade([lines * part // 5 for part in range(1, 5)])
