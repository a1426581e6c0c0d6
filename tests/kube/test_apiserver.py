"""What the source reads from a healthy server, and the batches it sends."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bpfsvc.agent.objects.event_queue import Event, EventQueue
from bpfsvc.base.address import pack
from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.objects import endpoints, service_cidr
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.kube.apiserver import ApiServerSource
from bpfsvc.kube.source import Batch, Trigger
from bpfsvc.model import EndpointSlice, Node, ObjectKey, PodPlace, Service
from tests.kube.faults import asked
from tests.kube.following import (
    BRISK,
    HEADLESS,
    NODE,
    PROXY_NAME,
    RESOURCES,
    applied,
    connection,
    endpoint_slice,
    following,
    held,
    node,
    pod,
    put_cluster,
    service,
)

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
        assert first.listed["Service"] == {("default", f"web-{number}") for number in range(3)}
        assert first.listed["EndpointSlice"] == {
            ("default", f"web-{number}-abcde") for number in range(3)
        }
        assert {type(item) for item in first.puts} >= {Service, EndpointSlice, Node}
        seen.wait_synced(api)


@WATCH_LIST
def test_changes_arrive(api: ApiServer, watch_list: str) -> None:
    """New, changed, deleted, hidden and shown again: each arrives."""
    api.faults.watch_list = watch_list  # type: ignore[assignment]
    put_cluster(api)
    with following(api) as seen:
        seen.wait_synced(api)
        for change in (
            lambda: api.put(service("new")),
            lambda: api.put(endpoint_slice("web-0", "10.0.0.2", "10.0.0.3")),
            lambda: api.put(service("web-0", labels={PROXY_NAME: ""})),
            lambda: api.put(service("web-0")),
            lambda: api.put(endpoint_slice("web-1", labels={HEADLESS: ""})),
            lambda: api.put(endpoint_slice("web-1")),
            lambda: api.delete("Service", "default", "web-2"),
            lambda: api.put(node("here", "192.0.2.7")),
            lambda: api.put(service_cidr("10.0.0.0/16", name="more")),
            lambda: api.put(pod("client", "10.0.1.1", opted_out=True)),
            lambda: api.put(pod("neighbour", "10.0.2.1", on="there")),
            lambda: api.put(pod("client", "10.0.1.1")),
            lambda: api.delete("Pod", "default", "client"),
            lambda: api.delete("ServiceCIDR", "", "kubernetes"),
        ):
            change()
            seen.wait_synced(api)


def test_the_selectors_are_those_of_kube_proxy(api: ApiServer) -> None:
    """A server is asked for no more than kube-proxy asks for, out of its cache."""
    put_cluster(api)
    api.faults.watch_list = "invalid"
    with following(api) as seen:
        seen.wait_synced(api)
        wait(lambda: len(api.watches) == RESOURCES, "the watches")  # pods are not waited for
        lists = {sent.path: sent.query for sent in asked(api) if "watch" not in sent.query}
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


def test_pods_are_followed_only_on_request(api: ApiServer) -> None:
    """Without the socket LB for pods, pods are not read."""
    source = ApiServerSource(connection(api), NODE, with_pods=False, pacing=BRISK)
    assert "pods" not in source.connections()
    assert "pods" in ApiServerSource(connection(api), NODE, pacing=BRISK).connections()


class Waiting(EventQueue):
    """The agent's queue, which knows whether something was deleted."""

    has_deletion = False

    def put(self, event: Event | Exception | None) -> None:
        super().put(event)
        self.has_deletion |= isinstance(event, Batch) and bool(event.gone)


def test_what_waits_is_taken_at_once(api: ApiServer) -> None:
    """What came while the agent was busy is there together, and ends in what the server holds."""
    put_cluster(api)
    api.delete("ServiceCIDR", "", "kubernetes")  # it is not waited for
    source = ApiServerSource(connection(api), NODE, pacing=BRISK)
    waiting, stop = Waiting(), threading.Event()
    thread = threading.Thread(target=source.follow, args=(stop, waiting.put))
    thread.start()
    objects = applied({}, taken(waiting.take_event(10)))
    wait(lambda: all(state.connected for state in source.connections().values()), "every watch")
    for number in range(50):
        api.put(service("web-0", clusterIP=f"10.96.1.{number}"))
    api.delete("Service", "default", "web-1")
    wait(lambda: waiting.has_deletion, "the changes")
    for event in waiting.take_events(0):
        objects = applied(objects, taken(event))
    # The list of what is not waited for may have come late.
    assert {key: state for key, state in objects.items() if key.kind == "Service"} == {
        key: state for key, state in held(api).items() if key.kind == "Service"
    }
    stop.set()
    thread.join(10)
    assert not thread.is_alive()
    assert waiting.take_event(0) is None


def taken(event: Event | None) -> Batch:
    assert isinstance(event, Batch)
    return event


def test_no_batch_comes_before_endpoints_are_known(api: ApiServer) -> None:
    """Half of the cluster must never be taken for all of it."""
    put_cluster(api)
    api.faults.answer(503, 10**6, path="endpointslices")
    with following(api) as seen:
        wait(lambda: seen.source.connections()["services"].connected, "Services")
        assert not seen.batches
        api.faults.clear_answers()
        seen.wait_synced(api)
        assert len(seen.batches[0].listed) >= 2


def test_the_first_batch_waits_for_the_node(api: ApiServer) -> None:
    """A Node that gets its address a moment later is in the first batch."""
    put_cluster(api)
    bare = node()
    bare["status"]["addresses"] = []
    api.put(bare)
    with following(api) as seen:
        wait(lambda: seen.source.connections()["endpointslices"].connected, "endpoints")
        assert not seen.batches
        api.put(node())
        seen.wait_synced(api)
        assert any(isinstance(item, Node) and item.addresses for item in seen.batches[0].puts)


def test_the_first_batch_does_not_wait_for_the_node_for_ever(api: ApiServer) -> None:
    """A node without an object gets its Services after a while, and the object when it is there."""
    put_cluster(api)
    api.delete("Node", "", "here")
    with following(api, node_wait=0.05) as seen:
        seen.wait_synced(api)
        api.put(node())
        seen.wait_synced(api)


def test_clusters_without_service_cidrs_are_no_problem(api: ApiServer) -> None:
    """What is optional is asked for again now and then, and sent when it is there."""
    put_cluster(api)
    api.faults.absent = frozenset({"servicecidrs"})
    with following(api, pacing=replace(BRISK, probe_seconds=0.1)) as seen:
        seen.wait_for({key: item for key, item in held(api).items() if key.kind != "ServiceCIDR"})
        contact = seen.source.connections()["servicecidrs"]
        assert contact.optional
        api.faults.absent = frozenset()
        seen.wait_synced(api)
        # A server that takes the place of another may not offer them any more.
        api.faults.absent = frozenset({"servicecidrs"})
        api.cut_watches()
        seen.wait_for({key: item for key, item in held(api).items() if key.kind != "ServiceCIDR"})


def test_what_a_server_forbids_while_it_starts_is_asked_for_again_soon(api: ApiServer) -> None:
    """Its roles are not loaded yet. What it has never allowed is asked for now and then."""
    put_cluster(api)
    with following(api, pacing=replace(BRISK, probe_seconds=600)) as seen:
        seen.wait_synced(api)
        seen.wait_connected()
        api.faults.answer(403, 3, path="servicecidrs")
        api.cut_watches()
        wait(lambda: seen.source.connections()["servicecidrs"].errors >= 3, "it is forbidden")
        wait(lambda: seen.source.connections()["servicecidrs"].connected, "it is allowed again")


def test_the_version_is_reported_after_the_first_answer(api: ApiServer) -> None:
    """For metrics: kubernetes_build_info has the version."""
    put_cluster(api)
    versions: queue.SimpleQueue[Mapping[str, str]] = queue.SimpleQueue()
    source = ApiServerSource(connection(api), "here", on_version=versions.put)
    stop = threading.Event()
    thread = threading.Thread(target=source.follow, args=(stop, lambda _: None))
    thread.start()
    assert versions.get(timeout=10)["major"] == "1"
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_a_long_outage_is_reported(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a moment it names what is not followed, and why."""
    put_cluster(api)
    with following(api) as seen:
        seen.wait_synced(api)
        seen.wait_connected()
        api.go_away()
        assert seen.source.outage() is None
        monkeypatch.setattr("bpfsvc.kube.apiserver._BRIEF", 0.0)
        wait(lambda: " services" in str(seen.source.outage()), "the outage is reported")
        assert "servicecidrs" not in str(seen.source.outage())
        api.come_back()
        wait(lambda: seen.source.outage() is None, "the server is back")


def test_clusters_without_slices_have_endpoints(api: ApiServer) -> None:
    """A classic object has parts; those it loses are gone, by change and by list."""
    put_cluster(api)
    api.put(endpoints("web-0", ("10.0.0.1", "fd00::1"), ("10.0.0.2",)))
    api.put(endpoints("web-1", ("10.0.0.3",)))
    api.put(endpoints("empty"))
    api.faults.absent = frozenset({"discovery.k8s.io"})
    with following(api) as seen:
        seen.wait_for(held(api, "Endpoints"))
        assert seen.batches[0].listed["Endpoints"] == {
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
    """A control plane that is upgraded while a node runs makes the node change over."""
    put_cluster(api)
    api.put(endpoints("web-0", ("10.0.0.1",)))
    api.faults.absent = frozenset({"discovery.k8s.io"})
    with following(api, pacing=replace(BRISK, probe_seconds=0.05)) as seen:
        seen.wait_for(held(api, "Endpoints"))
        api.faults.absent = frozenset()
        time_of_look = time.monotonic() + 0.05
        wait(lambda: time.monotonic() > time_of_look, "the next look")
        api.cut_watches()
        seen.wait_synced(api)


def test_a_404_of_a_proxy_proves_nothing(api: ApiServer) -> None:
    """A proxy in front of a server that is down does not know what that server has."""
    put_cluster(api)
    api.put(endpoints("web-0", ("10.0.0.1",)))
    api.faults.answer(404, 10**6, path="apis")
    with following(api, pacing=replace(BRISK, probe_seconds=0.1)) as seen:
        wait(lambda: seen.source.connections()["endpointslices"].errors > 3, "several attempts")
        api.faults.clear_answers()
        seen.wait_synced(api)
        assert not any(request.path == "/api/v1/endpoints" for request in api.requests)


def test_a_recorded_cluster_is_followed(api: ApiServer) -> None:
    """After each step of a recorded cluster the objects are those of its server."""
    steps = api.replay(Path(__file__).parents[1] / "recordings")
    next(steps)
    with following(api, node_wait=0.1) as seen:
        for _ in steps:
            seen.wait_synced(api)
        assert len(seen.batches) > 20
        assert not any(batch.problems for batch in seen.batches)


def test_slices_that_were_there_are_not_given_up(api: ApiServer) -> None:
    """A server that is starting may not know its own APIs yet; that empties no Service."""
    put_cluster(api)
    with following(api) as seen:
        seen.wait_synced(api)
        api.faults.absent = frozenset({"discovery.k8s.io"})
        api.cut_watches()
        wait(lambda: bool(seen.source.connections()["endpointslices"].error), "the 404")
        seen.wait_synced(api)
        api.faults.absent = frozenset()
        api.put(service("new"))
        seen.wait_synced(api)


def test_a_broken_object_is_reported_and_keeps_its_last_value(api: ApiServer) -> None:
    """A broken object is a problem with its key until it is fixed or deleted, lists included."""
    put_cluster(api)
    key = ObjectKey("Service", "default", "web-0")
    with following(api) as seen:
        seen.wait_synced(api)
        good = seen.objects
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
        wait(lambda: ObjectKey("Service", "default", "new") in seen.objects, "the list")
        assert seen.objects[key] == good[key]
        assert [problem.key for problem in seen.batches[-1].problems] == [key]
        api.put(service("web-0", clusterIP="10.96.0.9"))
        seen.wait_synced(api)
        assert not seen.batches[-1].problems
        api.put(service("web-1", ports=[{"port": 0}]))
        wait(lambda: bool(seen.batches[-1].problems), "the problem")
        api.delete("Service", "default", "web-1")
        seen.wait_synced(api)
        assert not seen.batches[-1].problems


def test_a_broken_slice_names_its_service_if_that_can_be_read(api: ApiServer) -> None:
    """What is in the kernel of this Service stays at a start, and of no other."""
    put_cluster(api)
    with following(api) as seen:
        seen.wait_synced(api)
        broken = endpoint_slice("web-0")
        broken["endpoints"][0]["addresses"] = ["10.1.0.300"]
        api.put(broken)
        wait(lambda: bool(seen.batches[-1].problems), "the problem")
        assert seen.batches[-1].problems[0].service == ("default", "web-0")
        broken["metadata"]["labels"] = ["web-0"]
        api.put(broken)
        wait(lambda: "labels" in str(seen.batches[-1].problems), "the other problem")
        assert seen.batches[-1].problems[0].service is None
        api.put(service("web-0", ports=[{"port": 0}]))
        wait(lambda: len(seen.batches[-1].problems) == 2, "both problems")
        assert [problem.service for problem in seen.batches[-1].problems] == [None, None]


def test_the_causes_of_changes_are_sent(api: ApiServer) -> None:
    """A change of endpoints comes with the time of its cause, unless that is before the start."""
    put_cluster(api)
    api.put(endpoint_slice("web-0", trigger="2020-01-01T00:00:00Z"))
    with following(api) as seen:
        seen.wait_synced(api)
        api.put(endpoint_slice("web-0", "10.0.0.5", trigger="2020-01-01T00:00:00Z"))
        seen.wait_synced(api)
        now = datetime.now(UTC).replace(microsecond=250000, second=59)
        now = now.replace(year=now.year + 1)
        api.put(endpoint_slice("web-0", "10.0.0.6", trigger=now.isoformat()))
        seen.wait_synced(api)
        triggers = [trigger for batch in seen.batches for trigger in batch.triggers]
        assert triggers == [Trigger(4, now.timestamp())]


def test_no_thread_is_left_behind(api: ApiServer) -> None:
    """A source that is stopped ends at once and closes all its connections."""
    put_cluster(api)
    with following(api) as seen:
        # There are no pods: the objects are complete before they are watched.
        wait(lambda: len(api.watches) == RESOURCES, "all watches")
        began = time.monotonic()
        assert seen.end()
        assert time.monotonic() - began < stretched(1)
    wait(lambda: not api.watches, "the end of the watches")


def test_a_pod_is_found_by_its_name(api: ApiServer) -> None:
    """Also one of another node, which is not followed; a Pod on the host network has its node's."""
    host = pod("host", "192.168.50.12", "fd50::12", on="node-2")
    api.put(host | {"spec": {**host["spec"], "hostNetwork": True}})
    api.put(pod("web", "10.244.1.5"))
    source = ApiServerSource(connection(api), NODE)
    both = (pack("192.168.50.12"), pack("fd50::12"))
    assert source.find_pod("default", "host") == PodPlace("node-2", both, on_host_network=True)
    own = (pack("10.244.1.5"),)
    assert source.find_pod("default", "web") == PodPlace(NODE, own, on_host_network=False)
    assert source.find_pod("default", "none") is None
