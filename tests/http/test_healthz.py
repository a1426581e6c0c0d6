"""The responses of /healthz and /livez: kube-proxy's rules one by one, and our additions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from bpfsvc.http.healthz import Health, HealthServer, rfc3339
from tests.http.asking import ask

SECOND = 1_000_000_000
LIMIT = 60.0


class Clock:
    """Both clocks of a Health, set by the test."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds

    def wall(self) -> int:
        return 1_700_000_000 * SECOND + int(self.seconds * SECOND)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> Health:
    """The health of an agent that has started."""
    made = Health(LIMIT, monotonic=clock.monotonic, clock=clock.wall)
    made.clear_problem("start")
    return made


def answers(health: Health) -> tuple[bool, bool]:
    return health.livez()[0], health.healthz()[0]


def test_the_oldest_change_that_waits_says_how_far_the_agent_lags(
    health: Health, clock: Clock
) -> None:
    assert health.oldest_change() == 0
    health.queued([4])
    clock.seconds = 2
    health.queued()
    clock.seconds = 5
    assert health.oldest_change() == 5
    health.updated([4])
    assert health.oldest_change() == 3
    health.updated()
    assert health.oldest_change() == 0


def test_before_anything_was_queued_it_is_healthy(health: Health, clock: Clock) -> None:
    """The startup is healthy: families never seen are ignored, however long that takes."""
    clock.seconds = 10 * LIMIT
    assert answers(health) == (True, True)
    assert health.livez()[1]["status"] == {}


@pytest.mark.parametrize("family", [4, 6])
def test_a_family_is_unhealthy_once_a_change_has_waited_for_the_limit(
    health: Health, clock: Clock, family: int
) -> None:
    health.updated()
    health.queued([family])
    clock.seconds = LIMIT - 0.001
    assert answers(health) == (True, True)
    clock.seconds = LIMIT
    assert answers(health) == (False, False)
    status = health.livez()[1]["status"]
    assert isinstance(status, dict)
    assert {name: family_status["healthy"] for name, family_status in status.items()} == {
        "IPv4": family != 4,
        "IPv6": family != 6,
    }


def test_the_oldest_change_counts(health: Health, clock: Clock) -> None:
    health.queued([4])
    clock.seconds = LIMIT - 1
    health.queued([4])
    clock.seconds = LIMIT
    assert answers(health) == (False, False)


def test_an_update_makes_it_healthy_again(health: Health, clock: Clock) -> None:
    health.queued([4])
    clock.seconds = 2 * LIMIT
    health.updated([4])
    assert answers(health) == (True, True)
    clock.seconds = 9 * LIMIT
    assert answers(health) == (True, True)


def test_a_queue_that_is_never_empty_is_not_stuck(health: Health, clock: Clock) -> None:
    """It counts how long each change has waited, not for how long there have been changes."""
    health.queued([4])
    for _ in range(100):
        clock.seconds += LIMIT / 10
        health.queued([4])
        health.updated([4])
    assert answers(health) == (True, True)
    clock.seconds += LIMIT
    assert answers(health) == (False, False)


def test_several_changes_may_be_handled_at_once(health: Health, clock: Clock) -> None:
    for _ in range(3):
        health.queued()
    health.updated(changes=2)
    clock.seconds = LIMIT
    assert answers(health) == (False, False)
    health.updated()
    assert answers(health) == (True, True)


def test_nothing_waits_too_long_before_the_first_synchronisation(clock: Clock) -> None:
    """The compiler may take long, and a restart would only start it again."""
    health = Health(LIMIT, monotonic=clock.monotonic)
    health.queued()
    clock.seconds = 9 * LIMIT
    assert health.livez()[0]
    assert not health.healthz()[0]


def test_an_update_of_one_family_does_not_count_for_the_other(health: Health, clock: Clock) -> None:
    health.queued()
    clock.seconds = LIMIT
    health.updated([4])
    assert answers(health) == (False, False)


@pytest.mark.parametrize(
    ("eligible", "healthz"),
    [
        pytest.param(True, True, id="a node that stays"),
        pytest.param(False, False, id="a node that is about to go, or not known"),
        pytest.param(None, True, id="objects without nodes"),
    ],
)
def test_healthz_needs_an_eligible_node_and_livez_does_not(
    health: Health, eligible: bool | None, healthz: bool
) -> None:
    """Trap 14."""
    health.set_node_eligible(eligible)
    assert answers(health) == (True, healthz)
    body = health.healthz()[1]
    assert (body["healthy"], body["nodeEligible"]) == (True, eligible is not False)
    assert "nodeEligible" not in health.livez()[1]


def test_health_check_ports_do_not_depend_on_the_node(health: Health) -> None:
    health.set_node_eligible(False)
    assert health.report()[0]


def test_before_the_first_synchronisation_it_is_live_and_not_ready() -> None:
    """A liveness probe must not end an agent that waits for its API server."""
    assert answers(Health()) == (True, False)


def test_livez_passes_where_a_restart_does_not_help(health: Health) -> None:
    health.set_problem("maps", "map backends is full")
    assert answers(health) == (True, False)
    assert health.healthz()[1]["problems"] == {"maps": "map backends is full"}
    assert health.healthz()[1]["healthy"] is False
    assert not health.report()[0]
    health.clear_problem("maps")
    assert answers(health) == (True, True)
    assert "problems" not in health.healthz()[1]


def test_a_note_changes_no_result(health: Health) -> None:
    health.set_note("source", "serving what was saved yesterday")
    assert answers(health) == (True, True)
    assert health.healthz()[1]["notes"] == {"source": "serving what was saved yesterday"}
    health.set_note("source", None)
    assert "notes" not in health.healthz()[1]


def test_a_healthy_agent_was_updated_now(health: Health, clock: Clock) -> None:
    health.updated()
    clock.seconds = 5
    body = health.healthz()[1]
    assert body["lastUpdated"] == body["currentTime"] == "2023-11-14T22:13:25Z"


def test_an_unhealthy_agent_was_updated_when_its_last_family_was(
    health: Health, clock: Clock
) -> None:
    health.updated([4])
    clock.seconds = 2.5
    health.updated([6])
    health.set_node_eligible(False)
    clock.seconds = 7
    body = health.healthz()[1]
    assert body["lastUpdated"] == "2023-11-14T22:13:22.5Z"
    assert body["currentTime"] == "2023-11-14T22:13:27Z"
    assert body["status"] == {
        "IPv4": {"lastUpdated": "2023-11-14T22:13:20Z", "healthy": True},
        "IPv6": {"lastUpdated": "2023-11-14T22:13:22.5Z", "healthy": True},
    }


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (None, "0001-01-01T00:00:00Z"),
        (0, "1970-01-01T00:00:00Z"),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (1_500_000_000, "1970-01-01T00:00:01.5Z"),
        (1_767_225_599_120_000_000, "2025-12-31T23:59:59.12Z"),
    ],
)
def test_times_are_written_as_go_writes_them(nanoseconds: int | None, text: str) -> None:
    assert rfc3339(nanoseconds) == text


# -- over HTTP --


@pytest.fixture
def counted() -> list[tuple[str, int]]:
    return []


@pytest.fixture
def server(health: Health, counted: list[tuple[str, int]]) -> Iterator[HealthServer]:
    made = HealthServer(
        ("127.0.0.1", 0), health, answered=lambda path, status: counted.append((path, status))
    )
    made.start()
    yield made
    made.stop()


def test_a_response_has_the_fields_of_kube_proxys(health: Health, server: HealthServer) -> None:
    health.updated()
    for path, more in (("/healthz", {"nodeEligible"}), ("/livez", set())):
        raw = ask(server.port, path)
        head, _, body = raw.decode().partition("\r\n\r\n")
        assert head.startswith("HTTP/1.1 200 OK\r\n")
        assert "\r\nContent-Type: application/json\r\n" in head
        assert "\r\nX-Content-Type-Options: nosniff\r\n" in head
        assert "X-Load-Balancing-Endpoint-Weight" not in head
        answer = json.loads(body)
        assert set(answer) == {"lastUpdated", "currentTime", "healthy", "status"} | more
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", answer["lastUpdated"])
        assert set(answer["status"]) == {"IPv4", "IPv6"}


def test_every_response_is_counted(
    health: Health, server: HealthServer, counted: list[tuple[str, int]]
) -> None:
    ask(server.port, "/livez")
    ask(server.port, "/healthz")
    health.set_node_eligible(False)
    assert ask(server.port, "/healthz").startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert ask(server.port, "/livez").startswith(b"HTTP/1.1 200 OK\r\n")
    assert counted == [("/livez", 200), ("/healthz", 200), ("/healthz", 503), ("/livez", 200)]
