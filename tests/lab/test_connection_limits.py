"""Backends at their limit of connections, with real sockets held open."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from socket import AF_INET, AF_INET6, SOCK_DGRAM

import pytest

from bpfsvc.devtools.lab.dial import OpenConnection, connect, tally
from bpfsvc.devtools.lab.patience import wait
from tests.lab.test_schedulers import SPREAD, WHERE, backends, explained, shown, spread_testbed
from tests.lab.testbed import Testbed, objects

pytestmark = pytest.mark.slow

LIMIT = 2


@pytest.fixture(scope="module")
def limited() -> Iterator[Testbed]:
    """A lab with a Service whose endpoints may have two connections each."""
    with spread_testbed() as testbed:
        annotations = {"bpfsvc.io/max-connections-per-backend": f"{LIMIT}"}
        made = objects(SPREAD, backends(testbed), annotations=annotations)
        testbed.cluster.apply("spread", *made)
        yield testbed


def dumped(testbed: Testbed, name: str) -> list[dict[str, object]]:
    done = testbed.cluster.command(testbed.node, "maps", "dump", "-o", "json", name)
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, object]] = json.loads(done.stdout)[name]
    return rows


def full_counted(testbed: Testbed) -> int:
    """Return how many connections were refused because all endpoints were full."""
    rows = dumped(testbed, "refusals")
    return sum(int(str(row["rejected__backends_full"])) for row in rows)


@pytest.mark.parametrize("where", WHERE)
def test_at_the_limit_a_connection_is_refused_and_counted_until_another_one_is_closed(
    limited: Testbed, where: str, family: int
) -> None:
    place, vip, pods = getattr(limited, where), SPREAD.vip(family), backends(limited)
    wait(lambda: shown(limited, family)["active"] == 0, "no connection is open")
    before = full_counted(limited)
    with ExitStack() as stack:

        def opened() -> OpenConnection:
            return stack.enter_context(connect(place, vip, 80))

        held = [opened() for _ in range(LIMIT * len(pods))]
        names = [connection.who().pod for connection in held]
        assert Counter(names) == {pod.name: LIMIT for pod in pods}
        assert full_counted(limited) == before
        assert tally(place, vip, 80, count=3) == {"refused": 3}
        assert full_counted(limited) == before + 3
        said = explained(limited, family)
        assert said.startswith("reject")
        assert "every endpoint has as many connections as it may have: rejected" in said
        held[0].close()
        wait(
            lambda: shown(limited, family)["active"] == LIMIT * len(pods) - 1,
            "the closed connection is not counted any more",
        )
        assert f"may have {LIMIT} open connections through this node" in explained(limited, family)
        again = opened()
        assert again.who().pod == names[0]
        assert all(connection.echo(b"still here") for connection in (*held[1:], again))
        assert tally(place, vip, 80, count=1) == {"refused": 1}


def test_connected_udp_sockets_of_the_node_are_limited(limited: Testbed, family: int) -> None:
    vip, count = SPREAD.vip(family), LIMIT * len(backends(limited))
    with ExitStack() as stack:

        def opened() -> None:
            made = stack.enter_context(
                limited.node.socket({4: AF_INET, 6: AF_INET6}[family], SOCK_DGRAM)
            )
            made.connect((vip, 80))

        for _ in range(count):
            opened()
        with pytest.raises(ConnectionRefusedError):
            opened()
    with ExitStack() as stack:
        opened()


def test_the_limit_is_shown_and_survives_a_restart(limited: Testbed) -> None:
    assert shown(limited, 4)["max_connections_per_backend"] == f"{LIMIT}"
    done = limited.cluster.command(limited.node, "services", f"{SPREAD.name}:web")
    assert f"max-connections-per-backend={LIMIT}" in done.stdout
    rows = dumped(limited, "frontends")
    assert f"{LIMIT}" in {row["max_connections_per_backend"] for row in rows}
    with ExitStack() as stack:
        for _ in range(LIMIT * len(backends(limited))):
            stack.enter_context(connect(limited.pod, SPREAD.vip(4), 80))
        limited.cluster.kill(limited.node)
        assert tally(limited.pod, SPREAD.vip(4), 80, count=1) == {"refused": 1}
        limited.cluster.start(limited.node)
        assert tally(limited.pod, SPREAD.vip(4), 80, count=1) == {"refused": 1}
