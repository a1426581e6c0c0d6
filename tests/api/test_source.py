"""What the source asks a healthy server for, and what it tells."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bpfsvc.apiserver.source import ApiServer as Source
from bpfsvc.apiserver.updates import Update
from bpfsvc.lab.apiserver import ApiServer
from bpfsvc.lab.patience import wait
from bpfsvc.model import EndpointSlice, Node, ObjectKey, Service
from bpfsvc.sources import Trigger
from tests.api.following import (
    BRISK,
    HEADLESS,
    NODE,
    PROXY_NAME,
    RESOURCES,
    applied,
    cidr,
    connection,
    endpoint_slice,
    endpoints,
    following,
    held,
    node,
    pod,
    put_cluster,
    service,
)
from tests.api.mishaps import asked

WATCH_LIST = pytest.mark.parametrize("watch_list", ["served", "recorded", "invalid", "bad request"])


@WATCH_LIST
def test_the_first_batch_holds_everything(api: ApiServer, watch_list: str) -> None:
    """One batch has all that is followed and nothing else, with or without WatchList."""
    api.faults.watch_list = watch_list  # type: ignore[assignment]
    put_cluster(api)
    with following(api) as seen:
        wait(lambda: bool(seen.batches), "a batch")
        first = seen.batches[0]
        assert first.complete
        assert not first.problems
        assert not first.triggers
        assert first.whole["Service"] == {("default", f"web-{number}") for number in range(3)}
        assert first.whole["EndpointSlice"] == {
            ("default", f"web-{number}-abcde") for number in range(3)
        }
        assert {type(each) for each in first.puts} >= {Service, EndpointSlice, Node}
        seen.wait_in_step(api)


@WATCH_LIST
def test_changes_are_told(api: ApiServer, watch_list: str) -> None:
    """New, changed, deleted, hidden and shown again: each arrives."""
    api.faults.watch_list = watch_list  # type: ignore[assignment]
    put_cluster(api)
    with following(api) as seen:
        seen.wait_in_step(api)
        for change in (
            lambda: api.put(service("new")),
            lambda: api.put(endpoint_slice("web-0", "10.0.0.2", "10.0.0.3")),
            lambda: api.put(service("web-0", labels={PROXY_NAME: ""})),
            lambda: api.put(service("web-0")),
            lambda: api.put(endpoint_slice("web-1", labels={HEADLESS: ""})),
            lambda: api.put(endpoint_slice("web-1")),
            lambda: api.delete("Service", "default", "web-2"),
            lambda: api.put(node("here", "192.0.2.7")),
            lambda: api.put(cidr("10.0.0.0/16", name="more")),
            lambda: api.put(pod("client", "10.0.1.1", opted_out=True)),
            lambda: api.put(pod("neighbour", "10.0.2.1", on="there")),
            lambda: api.put(pod("client", "10.0.1.1")),
            lambda: api.delete("Pod", "default", "client"),
            lambda: api.delete("ServiceCIDR", "", "kubernetes"),
        ):
            change()
            seen.wait_in_step(api)


def test_the_selectors_are_those_of_kube_proxy(api: ApiServer) -> None:
    """A server is asked for no more than kube-proxy asks for, out of its memory."""
    put_cluster(api)
    api.faults.watch_list = "invalid"
    with following(api) as seen:
        seen.wait_in_step(api)
        wait(lambda: len(api.watches) == RESOURCES, "the watches")  # pods are not waited for
        lists = {each.path: each.query for each in asked(api) if "watch" not in each.query}
    paged = {"limit": "500", "resourceVersion": "0"}
    assert lists == {
        "/api/v1/services": {
            "labelSelector": f"!{PROXY_NAME}",
            "fieldSelector": "spec.clusterIP!=None",
            **paged,
        },
        "/apis/discovery.k8s.io/v1/endpointslices": {"labelSelector": f"!{HEADLESS}", **paged},
        "/api/v1/nodes": {"fieldSelector": "metadata.name=here", **paged},
        "/apis/networking.k8s.io/v1/servicecidrs": paged,
        "/api/v1/pods": {"fieldSelector": "spec.nodeName=here", **paged},
    }


def test_pods_are_asked_for_only_if_somebody_wants_to_know(api: ApiServer) -> None:
    """Where sockets of pods are nobody's business, neither are the pods."""
    source = Source(connection(api), NODE, with_pods=False, pacing=BRISK)
    assert "pods" not in source.contacts()
    assert "pods" in Source(connection(api), NODE, pacing=BRISK).contacts()


class Waiting(queue.SimpleQueue[Update | None]):
    """A queue that knows whether something was deleted."""

    has_deletion = False

    def put(self, item: Update | None, block: bool = True, timeout: float | None = None) -> None:
        super().put(item, block, timeout)
        self.has_deletion |= bool(item and item.gone)


def test_what_waits_makes_one_batch(api: ApiServer) -> None:
    """What came while the agent was busy is told together, with the last word on each object."""
    put_cluster(api)
    api.delete("ServiceCIDR", "", "kubernetes")  # it is not waited for
    source = Source(connection(api), NODE, pacing=BRISK)
    source._updates = waiting = Waiting()
    stop = threading.Event()
    batches = source.watch(stop)
    picture = applied({}, next(batches))
    wait(lambda: all(each.connected for each in source.contacts().values()), "every watch")
    for number in range(50):
        api.put(service("web-0", clusterIP=f"10.96.1.{number}"))
    api.delete("Service", "default", "web-1")
    wait(lambda: waiting.has_deletion, "the changes")
    picture = applied(picture, next(batches))
    # The list of what is not waited for may have come late.
    assert {key: each for key, each in picture.items() if key.kind == "Service"} == {
        key: each for key, each in held(api).items() if key.kind == "Service"
    }
    stop.set()
    assert list(batches) == []


def test_nothing_is_told_before_endpoints_are_known(api: ApiServer) -> None:
    """Half of the cluster must never be taken for all of it."""
    put_cluster(api)
    api.faults.answer(503, 10**6, path="endpointslices")
    with following(api) as seen:
        wait(lambda: seen.source.contacts()["services"].connected, "Services")
        assert not seen.batches
        api.faults.clear_answers()
        seen.wait_in_step(api)
        assert len(seen.batches[0].whole) >= 2


def test_the_first_batch_waits_for_the_node(api: ApiServer) -> None:
    """A Node that gets its address a moment later is in the first batch."""
    put_cluster(api)
    bare = node()
    bare["status"]["addresses"] = []
    api.put(bare)
    with following(api) as seen:
        wait(lambda: seen.source.contacts()["endpointslices"].connected, "endpoints")
        assert not seen.batches
        api.put(node())
        seen.wait_in_step(api)
        assert any(isinstance(each, Node) and each.addresses for each in seen.batches[0].puts)


def test_the_first_batch_does_not_wait_for_the_node_for_ever(api: ApiServer) -> None:
    """A node without an object gets its Services after a while, and the object when it is there."""
    put_cluster(api)
    api.delete("Node", "", "here")
    with following(api, node_wait=0.05) as seen:
        seen.wait_in_step(api)
        api.put(node())
        seen.wait_in_step(api)


def test_clusters_without_service_cidrs_are_no_trouble(api: ApiServer) -> None:
    """What is optional is asked for again now and then, and told when it comes."""
    put_cluster(api)
    api.faults.absent = frozenset({"servicecidrs"})
    with following(api, pacing=replace(BRISK, look_again=0.1)) as seen:
        seen.wait_for({key: each for key, each in held(api).items() if key.kind != "ServiceCIDR"})
        contact = seen.source.contacts()["servicecidrs"]
        assert contact.optional
        api.faults.absent = frozenset()
        seen.wait_in_step(api)
        # A server that takes the place of another may not offer them any more.
        api.faults.absent = frozenset({"servicecidrs"})
        api.cut_watches()
        seen.wait_for({key: each for key, each in held(api).items() if key.kind != "ServiceCIDR"})


def test_the_version_is_told_once_the_server_has_answered(api: ApiServer) -> None:
    """For metrics: whoever compares versions looks at kubernetes_build_info."""
    put_cluster(api)
    told: queue.SimpleQueue[Mapping[str, str]] = queue.SimpleQueue()
    source = Source(connection(api), "here", on_version=told.put)
    stop = threading.Event()
    batches = source.watch(stop)
    next(batches)
    assert told.get(timeout=10)["major"] == "1"
    stop.set()
    list(batches)


def test_a_server_that_is_away_for_long_is_told(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment is nothing; after it, it is named what is not followed, and why."""
    put_cluster(api)
    with following(api) as seen:
        seen.wait_in_step(api)
        seen.wait_connected()
        api.go_away()
        assert seen.source.absence() is None
        monkeypatch.setattr("bpfsvc.apiserver.source._BRIEF", 0.0)
        wait(lambda: " services" in str(seen.source.absence()), "the absence is told")
        assert "servicecidrs" not in str(seen.source.absence())
        api.come_back()
        wait(lambda: seen.source.absence() is None, "it is back")


def test_clusters_without_slices_have_endpoints(api: ApiServer) -> None:
    """A classic object falls into parts; those it loses are told gone, by change and by list."""
    put_cluster(api)
    api.put(endpoints("web-0", ("10.0.0.1", "fd00::1"), ("10.0.0.2",)))
    api.put(endpoints("web-1", ("10.0.0.3",)))
    api.put(endpoints("empty"))
    api.faults.absent = frozenset({"discovery.k8s.io"})
    with following(api) as seen:
        seen.wait_for(held(api, "Endpoints"))
        assert seen.batches[0].whole["Endpoints"] == {
            ("default", name) for name in ("web-0-0", "web-0-1", "web-0-2", "web-1-0")
        }
        api.put(endpoints("web-0", ("10.0.0.2",)))
        seen.wait_for(held(api, "Endpoints"))
        api.delete("Endpoints", "default", "web-1")
        seen.wait_for(held(api, "Endpoints"))
        with api.store.lock:
            api.faults.hang = True
            api.cut_watches()
            api.put(endpoints("web-0"))
            api.put(endpoints("empty", ("10.0.0.9",)))
            api.compact()
            api.faults.hang = False
        seen.wait_for(held(api, "Endpoints"))


def test_slices_are_taken_as_soon_as_the_server_has_them(api: ApiServer) -> None:
    """A control plane that is upgraded under a running node makes it change over."""
    put_cluster(api)
    api.put(endpoints("web-0", ("10.0.0.1",)))
    api.faults.absent = frozenset({"discovery.k8s.io"})
    with following(api, pacing=replace(BRISK, look_again=0.05)) as seen:
        seen.wait_for(held(api, "Endpoints"))
        api.faults.absent = frozenset()
        time_of_look = time.monotonic() + 0.05
        wait(lambda: time.monotonic() > time_of_look, "the next look")
        api.cut_watches()
        seen.wait_in_step(api)


def test_a_404_by_somebody_else_is_no_lack(api: ApiServer) -> None:
    """A proxy before a server that is not there knows nothing of what that server has."""
    put_cluster(api)
    api.put(endpoints("web-0", ("10.0.0.1",)))
    api.faults.answer(404, 10**6, path="apis")
    with following(api, pacing=replace(BRISK, look_again=0.1)) as seen:
        wait(lambda: seen.source.contacts()["endpointslices"].errors > 3, "several attempts")
        api.faults.clear_answers()
        seen.wait_in_step(api)
        assert not any(each.path == "/api/v1/endpoints" for each in api.requests)


def test_a_recorded_cluster_is_followed(api: ApiServer) -> None:
    """After each step of a real cluster's life the picture is what its server held."""
    steps = api.replay(Path(__file__).parents[1] / "recordings")
    next(steps)
    with following(api, node_wait=0.1) as seen:
        for _ in steps:
            seen.wait_in_step(api)
        assert len(seen.batches) > 20
        assert not any(batch.problems for batch in seen.batches)


def test_slices_that_were_there_are_not_given_up(api: ApiServer) -> None:
    """A server that is starting may not know its own APIs yet; that empties no Service."""
    put_cluster(api)
    with following(api) as seen:
        seen.wait_in_step(api)
        api.faults.absent = frozenset({"discovery.k8s.io"})
        api.cut_watches()
        wait(lambda: bool(seen.source.contacts()["endpointslices"].error), "the 404")
        seen.wait_in_step(api)
        api.faults.absent = frozenset()
        api.put(service("new"))
        seen.wait_in_step(api)


def test_what_cannot_be_read_is_told_and_keeps_its_value(api: ApiServer) -> None:
    """A broken object is a problem with its key until it is mended or deleted, lists included."""
    put_cluster(api)
    key = ObjectKey("Service", "default", "web-0")
    with following(api) as seen:
        seen.wait_in_step(api)
        good = seen.picture
        api.put(service("web-0", ports=[{"port": "eighty"}]))
        wait(lambda: bool(seen.batches[-1].problems), "the problem")
        (problem,) = seen.batches[-1].problems
        assert (problem.key, problem.file) == (key, "Service default/web-0")
        assert "ports[0].port" in problem.reason
        api.faults.hang = True
        api.cut_watches()
        api.compact()
        api.put(service("new"))
        api.compact()
        api.faults.hang = False
        wait(lambda: ObjectKey("Service", "default", "new") in seen.picture, "the list")
        assert seen.picture[key] == good[key]
        assert [each.key for each in seen.batches[-1].problems] == [key]
        api.put(service("web-0", clusterIP="10.96.0.9"))
        seen.wait_in_step(api)
        assert not seen.batches[-1].problems
        api.put(service("web-1", ports=[{"port": 0}]))
        wait(lambda: bool(seen.batches[-1].problems), "the problem")
        api.delete("Service", "default", "web-1")
        seen.wait_in_step(api)
        assert not seen.batches[-1].problems


def test_the_causes_of_changes_are_told(api: ApiServer) -> None:
    """The time at which a change of endpoints was caused comes with it, unless it is old news."""
    put_cluster(api)
    api.put(endpoint_slice("web-0", trigger="2020-01-01T00:00:00Z"))
    with following(api) as seen:
        seen.wait_in_step(api)
        api.put(endpoint_slice("web-0", "10.0.0.5", trigger="2020-01-01T00:00:00Z"))
        seen.wait_in_step(api)
        now = datetime.now(UTC).replace(microsecond=250000, second=59)
        now = now.replace(year=now.year + 1)
        api.put(endpoint_slice("web-0", "10.0.0.6", trigger=now.isoformat()))
        seen.wait_in_step(api)
        told = [each for batch in seen.batches for each in batch.triggers]
        assert told == [Trigger(4, now.timestamp())]


def test_no_thread_is_left_behind(api: ApiServer) -> None:
    """Told to stop, a source ends at once, and with it all that it has open."""
    put_cluster(api)
    with following(api) as seen:
        # There are no pods: the picture is whole before they are watched.
        wait(lambda: len(api.watches) == RESOURCES, "all watches")
        began = time.monotonic()
        assert seen.end()
        assert time.monotonic() - began < 1
    wait(lambda: not api.watches, "the end of the watches")
