"""The level of the fast path follows a node's rules while connections run, and cuts none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product

import pytest

from bpfsvc.devtools.lab.dial import OpenConnection, connect
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from tests.lab.established import become_fast, enforce_policy
from tests.lab.fast_path import Counts, Download, fast, fast_packets
from tests.lab.testbed import FAMILIES, ONE, Testbed

pytestmark = pytest.mark.slow

SHOWN = {
    "fast": ("with the fast path",),
    "established": ("with the fast path for established connections", "inet guard forward"),
    "stack": (
        "no fast path: a rule in iptables (nft), IPv4 may have to see each packet",
        "NFQUEUE",
    ),
}
"""By level: what ``bpfsvc status`` shows, with the reason."""

LINES = {
    "the fast path is used: ": "fast",
    "the fast path is used in the middle of connections only: ": "established",
    "the fast path is not used: ": "stack",
}
"""Lines of the log about the level."""

_QUEUE = ["FORWARD", "-s", "10.9.0.0/16", "-j", "NFQUEUE", "--queue-num", "1"]


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """Pods with separate host interfaces: all can be fast."""
    with fast(layout="routed", cni_masquerade=True) as made:
        yield made


def set_rules(testbed: Testbed, level: str) -> None:
    """Install the rules that leave a level to a node, and remove those of other levels."""
    node = testbed.node
    if level == "established":
        enforce_policy(node, testbed.pod)
    if level == "stack":
        node.run(["iptables", "-w", "-I", *_QUEUE])
    elif "NFQUEUE" in node.run(["iptables-save"]).stdout:
        node.run(["iptables", "-w", "-D", *_QUEUE])
    if level != "established":
        node.run(["nft", "add table inet guard; delete table inet guard"])


def is_at(testbed: Testbed, level: str) -> bool:
    """True if a node's status shows a level and its reason, and no other level."""
    shown = testbed.cluster.command(testbed.node, "status").stdout
    others = {text for other in SHOWN for text in SHOWN[other]} - {*SHOWN[level], *SHOWN["fast"]}
    return all(text in shown for text in SHOWN[level]) and not any(text in shown for text in others)


def told(testbed: Testbed) -> list[str]:
    """Return the levels that the node's agent has logged."""
    log = testbed.agent.log.splitlines()
    return [level for line in log for text, level in LINES.items() if text in line]


def served_at(level: str, opened: Sequence[OpenConnection], node: LabNode, older: int) -> None:
    """Assert that connections are served at a level. The ``older`` first ones began before it."""
    if level == "established":
        for connection in opened:
            become_fast(connection, node)
        return
    for connection in opened[older:] if level == "fast" else opened:
        before = fast_packets(node)
        assert connection.echo(b"by which way?")
        assert (fast_packets(node) > before) is (level == "fast")


@pytest.mark.parametrize(
    "levels",
    [
        ("established", "fast"),
        ("established", "stack", "established", "fast", "stack", "fast"),
    ],
    ids=["a firewall comes and goes", "all changes"],
)
def test_rules_that_come_and_go_change_the_level_and_cut_no_connection(
    testbed: Testbed, levels: tuple[str, ...]
) -> None:
    node, log = testbed.node, len(told(testbed))
    counts = [Counts(node, family) for family in FAMILIES]
    opened: list[OpenConnection] = []
    wait(lambda: is_at(testbed, "fast"), "the node is at its first level")
    with ExitStack() as stack:

        def begin() -> None:
            for backend, family in product((1, 2), FAMILIES):
                for to in (
                    (testbed.lab.pods[backend].address(family), 8080),
                    (ONE[backend].vip(family), 80),
                ):
                    opened.append(stack.enter_context(connect(testbed.pod, *to, timeout=20)))
                    opened[-1].who()

        def goes_on(level: str) -> bool:
            return all(made.echo(b"meanwhile") for made in opened) and is_at(testbed, level)

        begin()
        large = stack.enter_context(connect(testbed.pod, ONE[2].vip(4), 80, timeout=20))
        download = Download(large, 64 << 20)
        for level in levels:
            set_rules(testbed, level)
            wait(lambda level=level: goes_on(level), f"the level is {level}", 15)  # type: ignore[misc]
            older = len(opened)
            begin()
            served_at(level, opened, node, older)
        download.finish()
    assert told(testbed)[log:] == list(levels)
    assert [count.since()[2] for count in counts] == [0, 0]
