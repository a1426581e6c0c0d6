"""The time to connect to a Service is measured at the clients' sockets: with real sockets.

Of a pod that its node knows, sockets are translated and no packets are (``pod``); of the node too
(``node``); a pod's socket that is bound to a port goes by tc. (A client of another machine has no
socket here. In the lab, all machines share one kernel.)
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bpfsvc.devtools.lab.http_request import http_request
from tests.lab.test_quarantine import REFUSE, SICK, backends, broken, call, sick_testbed
from tests.lab.testbed import Testbed

pytestmark = pytest.mark.slow

FIRST_SYN_IS_LOST = "tcp dport 8080 tcp flags & (syn|ack) == syn numgen inc mod 2 == 0 counter drop"
METRIC = "bpfsvc_service_connect_seconds"


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """A lab with an API server; the first pod is a client, the others are backends."""
    with sick_testbed("") as testbed:
        yield testbed


def times(testbed: Testbed, family: int) -> dict[str, float]:
    """Return the histogram of the Service by the ends of its buckets, ``count`` and ``sum``."""
    _, text = http_request(testbed.node, "127.0.0.1", 10249, "/metrics")
    return {
        sample.labels.get("le", sample.name.removeprefix(f"{METRIC}_")): sample.value
        for shown in parse(text.decode())
        if shown.name == METRIC
        for sample in shown.samples
        if sample.labels["name"] == SICK.name and sample.labels["ip_family"] == f"IPv{family}"
    }


def measured(testbed: Testbed, where: str, family: int) -> tuple[dict[str, float], float]:
    """Connect once; return what the histogram has counted meanwhile, and the time that it took."""
    before = times(testbed, family)
    begun = time.monotonic()
    with call(testbed, where, family, patient=True):
        took = time.monotonic() - begun
    now = times(testbed, family)
    return {name: value - before.get(name, 0) for name, value in now.items()}, took


@pytest.mark.parametrize("where", ["pod", "bound pod", "node"])
def test_a_connect_is_counted_once_with_its_time(running: Testbed, where: str, family: int) -> None:
    counted, took = measured(running, where, family)
    assert counted["count"] == 1
    assert 0 < counted["sum"] < took
    for end, count in counted.items():
        if end not in ("count", "sum"):
            assert count == int(float(end) > counted["sum"]), end


@pytest.mark.parametrize("where", ["pod", "bound pod", "node"])
def test_a_connect_whose_first_syn_is_lost_took_a_second_longer(
    running: Testbed, where: str, family: int
) -> None:
    """It takes as long as a client waits until it sends its SYN again."""
    one, other = backends(running)
    with broken(one, FIRST_SYN_IS_LOST), broken(other, FIRST_SYN_IS_LOST):
        counted, took = measured(running, where, family)
    assert (counted["count"], counted["0.524288"]) == (1, 0)
    assert 0.9 < counted["sum"] < took


def test_services_stats_name_the_backend_that_is_slow(running: Testbed, family: int) -> None:
    slow, _ = backends(running)
    with broken(slow, FIRST_SYN_IS_LOST):
        for _ in range(14):
            with call(running, "node", family, patient=True):
                pass
    done = running.cluster.command(running.node, "services", SICK.name, "--rate")
    assert "CONNECT MEDIAN" in done.stdout
    words = ("services", f"{SICK.name}:web", "--stats", "-o", "json")
    shown = json.loads(running.cluster.command(running.node, *words).stdout)["services"]
    (port,) = (port for port in shown if port["family"] == f"IPv{family}")
    times = {backend["address"]: backend["connect_times"] for backend in port["backends"]}
    assert times[slow.address(family)]["p95_ms"][0] >= 500
    total = sum(known["connects"] for known in times.values() if known)
    assert port["connect_times"]["connects"] == total >= 14


@pytest.mark.parametrize("where", ["pod", "bound pod", "node"])
def test_a_connect_that_fails_is_not_counted(running: Testbed, where: str, family: int) -> None:
    one, other = backends(running)
    before = times(running, family)
    with broken(one, REFUSE), broken(other, REFUSE), pytest.raises(OSError, match="refused"):
        call(running, where, family, patient=True)
    assert times(running, family) == before
