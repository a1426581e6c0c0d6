"""Schedulers and weights with real sockets: who is chosen, and what a change leaves alone."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bpfsvc.devtools.lab.dial import Protocol, ask, connect, tally
from bpfsvc.devtools.lab.objects import Object
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.test_events import await_warning
from tests.lab.testbed import FAMILIES, Named, Testbed, at, built_testbed, objects

pytestmark = pytest.mark.slow

SPREAD = Named("spread", 71)
ALL_OTHERS = ("rr", "wrr", "random", "sh", "mh,mh-port", "dh")
WHERE = ("pod", "node", "client")
_PORTS = itertools.count(22_000)


@contextmanager
def spread_testbed() -> Iterator[Testbed]:
    """Build a lab with an API server; the first pod is a client, the others are backends."""
    with built_testbed(served=True, layout="routed") as testbed:
        for network in ("10.96.0.0/16", "fd96::/64"):
            testbed.lab.client.route(network, via=testbed.node)
        testbed.cluster.put("spread", *of_pods(testbed))
        testbed.cluster.start()
        yield testbed


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """Such a lab."""
    with spread_testbed() as testbed:
        yield testbed


def of_pods(testbed: Testbed, scheduler: str = "", weights: str = "") -> list[Object]:
    """Return the Service with annotations, and its slices."""
    texts = {"bpfsvc.io/scheduler": scheduler, "bpfsvc.io/weights": weights}
    annotations = {name: text for name, text in texts.items() if text}
    return objects(SPREAD, backends(testbed), annotations=annotations)


def backends(testbed: Testbed) -> list[LabPod]:
    return testbed.lab.pods[1:]


def apply(testbed: Testbed, scheduler: str = "", weights: str = "") -> None:
    testbed.cluster.apply("spread", *of_pods(testbed, scheduler, weights))


def asked(
    testbed: Testbed, where: str, family: int, count: int, transport: Protocol = "tcp"
) -> Counter[str]:
    """Return how many of some connections each backend has answered."""
    place, vip = getattr(testbed, where), SPREAD.vip(family)
    if transport == "tcp":
        return tally(place, vip, 80, count=count)
    # By ports that the kernel gives to no socket: a flow of the last minutes takes no other turn.
    sources = (("", next(_PORTS)) for _ in range(count))
    return Counter(ask(place, vip, 80, "udp", source=source).pod for source in sources)


@pytest.mark.parametrize("where", WHERE)
def test_backends_take_turns_exactly(
    running: Testbed, where: str, family: int, transport: Protocol
) -> None:
    apply(running, "rr")
    each = 10
    pods = backends(running)
    counts = asked(running, where, family, each * len(pods), transport)
    assert counts == {pod.name: each for pod in pods}


@pytest.mark.parametrize("where", WHERE)
def test_backends_take_turns_by_their_weights(running: Testbed, where: str, family: int) -> None:
    heavy, *others = backends(running)
    apply(running, "wrr", f"{heavy.address(family)}=3")
    counts = asked(running, where, family, 5 * (3 + len(others)))
    assert counts == {heavy.name: 15, **{pod.name: 5 for pod in others}}


def test_an_address_has_one_backend_by_its_hash(running: Testbed, family: int) -> None:
    for scheduler in ("sh", "mh"):
        apply(running, scheduler)
        (name,) = asked(running, "pod", family, 12)
        pod = next(pod for pod in backends(running) if pod.name == name)
        endpoint = at(pod.address(family), 8080)
        assert f"that is {endpoint} for this client" in explained(running, family)
    apply(running, "mh,mh-port")
    assert len(asked(running, "pod", family, 60)) > 1


@pytest.mark.parametrize("scheduler", ["lblc", "lblcr"])
def test_an_address_keeps_its_backend_for_all_clients_and_over_a_restart(
    running: Testbed, scheduler: str
) -> None:
    apply(running, "rr")
    apply(running, scheduler, ",".join(f"node/{node.name}=100" for node in running.lab.nodes))
    names = {}
    for family in FAMILIES:
        (names[family],) = asked(running, "pod", family, 30)
        assert set(asked(running, "client", family, 10)) == {names[family]}
    running.cluster.kill(running.node)
    running.cluster.start(running.node)
    for family, name in names.items():
        assert set(asked(running, "pod", family, 10)) == {name}
        kept = next(pod for pod in backends(running) if pod.name == name)
        said = explained(running, family)
        assert f"scheduler {scheduler}: " in said
        assert f"{SPREAD.vip(family)} has {at(kept.address(family), 8080)}, and no other" in said
        assert shown(running, family)["scheduler"] == scheduler


def test_every_node_leads_a_client_to_the_same_backend(running: Testbed) -> None:
    """By the ports of the client, through a node that has just begun and one that has not."""
    cluster, (here, there) = running.cluster, running.lab.nodes
    apply(
        running, "wrr", ",".join(f"{backends(running)[0].address(family)}=3" for family in FAMILIES)
    )
    apply(running, "mh,mh-port")
    cluster.stop(there)
    assert cluster.command(there, "cleanup").returncode == 0
    cluster.start(there)
    for family, network in zip(FAMILIES, ("10.96.0.0/16", "fd96::/64"), strict=True):
        chosen: dict[str, list[str]] = {}
        for node in (there, here):
            running.lab.client.route(network, via=node)
            chosen[node.name] = [
                ask(running.client, SPREAD.vip(family), 80, "udp", source=("", port)).pod
                for port in range(21_000, 21_060)  # which no socket is given by the kernel
            ]
        assert chosen[here.name] == chosen[there.name]
        assert set(chosen[here.name]) == {pod.name for pod in backends(running)}


def test_weight_0_drains_while_an_old_connection_goes_on(running: Testbed, family: int) -> None:
    apply(running, "rr")
    with connect(running.pod, SPREAD.vip(family), 80) as old:
        name = old.who().pod
        leaving = next(pod for pod in backends(running) if pod.name == name)
        apply(running, "rr", f"{leaving.address(4)}=0,{leaving.address(6)}=0")
        assert old.echo(b"still here")
        assert name not in asked(running, "pod", family, 20)
        states = {backend["address"]: backend for backend in shown(running, family)["backends"]}
        state = states[leaving.address(family)]
        assert (state["state"], state["weight"], state["active"]) == ("quiesced", 0, 1)
        assert old.echo(b"and still")


def test_where_all_have_weight_0_clients_are_refused(running: Testbed, family: int) -> None:
    nodes = ",".join(f"node/{node.name}=0" for node in running.lab.nodes)
    apply(running, "rr", nodes)
    for where in WHERE:
        with pytest.raises(ConnectionRefusedError):
            ask(getattr(running, where), SPREAD.vip(family), 80)


def test_a_change_of_scheduler_keeps_connections(running: Testbed, family: int) -> None:
    apply(running, "rr")
    for where in WHERE:
        with connect(getattr(running, where), SPREAD.vip(family), 80) as old:
            name = old.who().pod
            for scheduler in ALL_OTHERS:
                apply(running, scheduler, f"{backends(running)[0].address(family)}=2")
                assert old.echo(scheduler.encode()), f"{name} is lost by {scheduler}"


def test_the_scheduler_and_weights_are_shown(running: Testbed) -> None:
    heavy = backends(running)[0]
    apply(running, "wrr", f"{heavy.address(4)}=4")
    port = shown(running, 4)
    assert port["scheduler"] == "wrr"
    weights = {backend["address"]: backend["weight"] for backend in port["backends"]}
    assert weights.pop(heavy.address(4)) == 4
    assert set(weights.values()) == {1}
    assert "scheduler wrr: " in explained(running, 4)


def explained(testbed: Testbed, family: int) -> str:
    """Return what ``bpfsvc explain`` says of a connection of the client pod."""
    asking = ("--from", "pod", testbed.pod.address(family), "TCP", at(SPREAD.vip(family), 80))
    return testbed.cluster.command(testbed.node, "explain", *asking).stdout


def shown(testbed: Testbed, family: int) -> dict[str, Any]:
    """Return what ``bpfsvc services`` shows of the TCP port."""
    done = testbed.cluster.command(testbed.node, "services", "-o", "json", f"{SPREAD.name}:web")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["services"]
    port: dict[str, Any] = next(entry for entry in found if entry["family"] == f"IPv{family}")
    return port


def test_a_restart_goes_on_with_the_count_of_turns(running: Testbed) -> None:
    apply(running, "rr")
    pods = backends(running)
    asked(running, "pod", 4, len(pods) + 1)
    before = rounds(running)
    running.cluster.kill(running.node)
    running.cluster.start(running.node)
    assert rounds(running) == before
    assert asked(running, "pod", 4, 2 * len(pods)) == {pod.name: 2 for pod in pods}


def rounds(testbed: Testbed) -> str:
    """Return the counts of turns."""
    done = testbed.cluster.command(testbed.node, "maps", "dump", "-o", "json", "schedule_rounds")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_endpoint_has_a_growing_share(running: Testbed) -> None:
    """How much at which time is in tests/services/test_slow_start.py."""
    old, new = backends(running)[:2]
    annotations = {"bpfsvc.io/slow-start-seconds": "3600", "bpfsvc.io/scheduler": "rr"}
    # Pods that are there when the annotation comes are not new; Services have their own watch.
    running.cluster.apply("spread", *objects(SPREAD, [old]))
    running.cluster.apply("spread", *objects(SPREAD, [old], annotations=annotations))
    running.cluster.apply("spread", *objects(SPREAD, [old, new], annotations=annotations))
    counts = asked(running, "pod", 4, 42)
    assert counts == {old.name: 40, new.name: 2}
    is_new = "is new: its share is 5 % of the usual (slow start)"
    assert f"  because {at(new.address(4), 8080)} {is_new}\n" in explained(running, 4)
    running.cluster.kill(running.node)
    running.cluster.start(running.node)
    assert is_new not in explained(running, 4)
    assert asked(running, "pod", 4, 40) == {old.name: 20, new.name: 20}


def test_the_share_of_a_new_endpoint_is_whole_after_its_time(running: Testbed) -> None:
    old, new = backends(running)[:2]
    annotations = {"bpfsvc.io/slow-start-seconds": "8"}
    running.cluster.apply("spread", *objects(SPREAD, [old]))
    running.cluster.apply("spread", *objects(SPREAD, [old], annotations=annotations))
    running.cluster.apply("spread", *objects(SPREAD, [old, new], annotations=annotations))

    def weights() -> set[int]:
        seen = {backend["weight"] for backend in shown(running, 4)["backends"]}
        return seen - {0}  # of those that have left, and still have connections

    assert len(weights()) == 2
    wait(lambda: weights() == {1}, "both have the same weight")


def test_a_typo_is_an_event_and_a_note_and_changes_nothing(running: Testbed) -> None:
    apply(running, "rr")
    apply(running, "r r", "node/x=many")
    note = await_warning(running, "BadScheduler", "Service", SPREAD.name)
    assert "annotation bpfsvc.io/scheduler: scheduler 'r r'" in note
    assert "annotation bpfsvc.io/weights: a weight must be 0 to 65535, not 'many'" in note
    pods = backends(running)
    assert asked(running, "pod", 4, 2 * len(pods)) == {pod.name: 2 for pod in pods}
    done = running.cluster.command(running.node, "status")
    assert f"Service default/{SPREAD.name}: annotation bpfsvc.io/scheduler" in done.stdout
    assert done.returncode == 0, done.stdout
    apply(running, "rr")
    wait(
        lambda: "bpfsvc.io" not in running.cluster.command(running.node, "status").stdout,
        "the note is gone",
    )
