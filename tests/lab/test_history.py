"""``bpfsvc history``: what an operator sees of changes and of failed connections, afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.test_quarantine import GIVES_UP, REFUSE, SILENT, broken
from tests.lab.testbed import EMPTY, ONE, WEB, Testbed, built_testbed, objects

pytestmark = pytest.mark.slow

NAME, OTHER = f"default/{WEB.name}", f"default/{ONE[0].name}"


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """A node whose Services have changed since its agent's start."""
    with built_testbed(layout="routed", nodes=1) as made:
        cluster, pods = made.cluster, made.lab.pods
        cluster.put("other", *objects(ONE[0], [pods[1]]))
        cluster.put("empty", *objects(EMPTY, []))
        cluster.start()
        for backends in (pods[:1], pods[:2], pods[1:2]):
            cluster.put("web", *objects(WEB, backends))
            cluster.settle()
        yield made


def asked(testbed: Testbed, *words: str) -> list[dict[str, Any]]:
    """Return the changes of ``bpfsvc history``."""
    done = testbed.cluster.command(testbed.node, "history", "-o", "json", *words)
    assert not done.stderr
    records: list[dict[str, Any]] = json.loads(done.stdout)["changes"]
    return records


def test_a_services_endpoints_came_and_went_in_this_order(testbed: Testbed) -> None:
    first, second, *_ = (f"{pod.address(4)}:8080" for pod in testbed.lab.pods)
    records = asked(testbed, NAME)
    assert [record["what"] for record in records] == ["added", "changed", "changed"]
    assert first in records[0]["endpoints"]["added"]
    assert second in records[1]["endpoints"]["added"]
    assert first in records[2]["endpoints"]["removed"]
    # How long the change took, from the event on.
    assert all(0 < record["waited_ms"] < 60_000 for record in records)
    assert sorted(record["at"] for record in records) == [record["at"] for record in records]


def test_status_says_how_far_the_agent_is(testbed: Testbed) -> None:
    state = json.loads(testbed.cluster.command(testbed.node, "status", "-o", "json").stdout)
    assert state["lag_seconds"] == state["repaired"] == 0
    assert state["maps"]["services"]["entries"] >= state["services"] > 1


def test_the_text_says_it_in_lines_of_a_hundred_columns(testbed: Testbed) -> None:
    shown = testbed.cluster.command(testbed.node, "history").stdout
    assert max(map(len, shown.splitlines())) <= 100
    words = " ".join(shown.split())
    assert f"{OTHER}: added; " in words
    address = testbed.lab.pods[0].address(4)
    assert f"{NAME}: -2 endpoints [-{address}:8080" in words


def test_times_and_names_choose(testbed: Testbed) -> None:
    everything = asked(testbed)
    assert asked(testbed, "--last", "1") == everything[-1:]
    assert asked(testbed, "--since", "1h") == everything
    assert asked(testbed, "--until", "1h") == []
    assert asked(testbed, "--namespace", "default") == [
        record for record in everything if record["services"] != ["bpfsvc-lab/settled"]
    ]
    assert asked(testbed, "--namespace", "elsewhere") == []
    assert asked(testbed, OTHER) == [
        record for record in everything if record["services"] == [OTHER]
    ]


def test_a_refused_client_is_named_afterwards_with_the_reason(testbed: Testbed) -> None:
    pod, name = testbed.pod, f"default/{EMPTY.name}"

    def failed() -> list[dict[str, Any]]:
        done = testbed.cluster.command(testbed.node, "history", name, "-o", "json")
        listed: list[dict[str, Any]] = json.loads(done.stdout)["failures"]
        return [failure for failure in listed if failure["count"] == 2]

    before = time.time()
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            ask(pod, EMPTY.vip(4), 80)
    # The agent reads failures once a second.
    wait(lambda: bool(failed()), "both attempts are remembered")
    (failure,) = failed()
    assert (failure["kind"], failure["reason"]) == ("refused", "no_endpoints")
    assert failure["service"].startswith(f"{name}:")
    assert len(failure["clients"]) == 1
    assert before - 1 <= failure["first"] <= failure["last"] <= time.time() + 1
    shown = " ".join(testbed.cluster.command(testbed.node, "history", name).stdout.split())
    assert "refused: no endpoint serves this client; 2 times since " in shown


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_another_agent_remembers_what_the_last_one_has_seen(testbed: Testbed, end: str) -> None:
    everything, cluster = asked(testbed), testbed.cluster
    # An agent that is killed has saved what is older than a second or two.
    age = time.time() - everything[-1]["at"]
    time.sleep(max(0.0, 3 - age))
    getattr(cluster, end)(testbed.node)
    cluster.start()
    assert asked(testbed) == everything


def failed_at(testbed: Testbed, pod: LabPod, kind: str) -> tuple[int, float]:
    """Return how many connections failed at a backend, and when the first one did."""
    done = testbed.cluster.command(testbed.node, "history", OTHER, "-o", "json")
    for failure in json.loads(done.stdout)["failures"]:
        if failure["kind"] == kind:
            assert failure["backend"].startswith(f"{pod.address(4)}:8080")
            assert failure["service"].startswith(f"{OTHER}:")
            return failure["count"], failure["first"]
    return 0, 0.0


@pytest.mark.parametrize(
    ("rule", "kind", "end"), [(REFUSE, "refused", "kill"), (SILENT, "unanswered", "stop")]
)
def test_the_backend_at_fault_is_named_with_nobody_observing_and_by_the_next_agent_too(
    testbed: Testbed, rule: str, kind: str, end: str
) -> None:
    pod, sick, cluster = testbed.pod, testbed.lab.pods[1], testbed.cluster

    def fail(count: int) -> None:
        for _ in range(count):
            with pytest.raises(OSError, match=r"refused|timed out"):
                ask(pod, ONE[0].vip(4), 80, options=[GIVES_UP])

    before = time.time()
    with broken(sick, rule):
        fail(1)
        wait(lambda: failed_at(testbed, sick, kind)[0] == 1, "the first failure is known")
        saved = Path(f"{cluster.place}/{testbed.node.name}-history.failures")
        line = f'"{OTHER}:web","kind":"{kind}"'
        wait(lambda: saved.exists() and line in saved.read_text(), "and saved")
        fail(2)
    if end == "stop":
        wait(lambda: failed_at(testbed, sick, kind)[0] == 3, "the others are known")
    getattr(cluster, end)(testbed.node)
    cluster.start()
    count, first = failed_at(testbed, sick, kind)
    # A kill may cost the counts of half a minute, but not the kind.
    assert count == 3 if end == "stop" else 1 <= count <= 3
    assert before < first < time.time()
    words = " ".join(testbed.cluster.command(testbed.node, "history", OTHER).stdout.split())
    assert f"{kind} by {sick.address(4)}:8080" in words


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["web"], "'web' is not the name of a Service"),
        (["--since", "yesterday"], "'yesterday' is not a time"),
        (["--since", "1m", "--until", "2m"], "--since is later than --until"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_in_one_line(
    testbed: Testbed, words: list[str], error: str
) -> None:
    done = testbed.cluster.command(testbed.node, "history", *words)
    first, second = done.stderr.splitlines()
    assert (done.returncode, first) == (2, f"Error: {error}")
    assert second.startswith("Hint: ")


def test_a_service_of_which_nothing_is_known_and_a_node_without_agent_are_said(
    testbed: Testbed,
) -> None:
    done = testbed.cluster.command(testbed.node, "history", "shop/none")
    assert (done.stdout, done.stderr) == ("", "nothing is remembered of that\n")
    elsewhere = testbed.node.pin_root / "none"
    done = testbed.cluster.command(testbed.node, "history", pin_root=elsewhere)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: the agent does not answer: ")
