"""Lists of the lab's API server, compared with recorded answers of a real one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from tests.kube.requests import SERVICES, SLICES, ask, send, service

RECORDINGS = Path(__file__).parent.parent / "recordings"
NOT_OTHERS = "!service.kubernetes.io/service-proxy-name"
NODES = "/api/v1/nodes"


def recorded(name: str) -> Any:
    return json.loads((RECORDINGS / name).read_text())


def fill(api: ApiServer, *names: str) -> None:
    for name in names:
        api.put(service(name))


@pytest.mark.parametrize(
    ("stem", "place"), [("services", SERVICES), ("endpointslices", SLICES), ("nodes", NODES)]
)
def test_a_recorded_list_is_answered_byte_for_byte(api: ApiServer, stem: str, place: str) -> None:
    """The bytes are those of the recording without its white space."""
    found = recorded(f"{stem}.list.json")
    api.store.load(found)
    answer = ask(api, place)
    assert answer.data == json.dumps(found, separators=(",", ":")).encode() + b"\n"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-cache, private"


def test_a_first_page_is_as_recorded_with_its_token(api: ApiServer) -> None:
    """The recorded page of one Service: the same token, the same count of what remains."""
    for _ in api.replay(RECORDINGS):
        pass
    page = recorded("errors.json")["first page of a paginated list"]["body"]
    api.put(service("headless", "None"))
    version = int(page["metadata"]["resourceVersion"])
    api.store.put(service("other"), version)
    assert ask(api, SERVICES, limit=1).body == page


def test_the_pages_of_a_list_show_the_revision_of_the_first(api: ApiServer) -> None:
    """Changes between two pages do not show."""
    fill(api, "a", "b", "c", "d")
    first = ask(api, SERVICES, limit=2)
    api.delete("Service", "default", "c")
    fill(api, "bb", "e")
    api.put(service("d", "10.96.0.99"))
    token = first.body["metadata"]["continue"]
    second = ask(api, SERVICES, **{"limit": 2, "continue": token})
    assert first.names() + second.names() == ["a", "b", "c", "d"]
    assert second.body["items"][1]["spec"]["clusterIP"] == "10.96.0.1"
    versions = {page.body["metadata"]["resourceVersion"] for page in (first, second)}
    assert len(versions) == 1
    assert "continue" not in second.body["metadata"]
    assert first.body["metadata"]["remainingItemCount"] == 2


def test_a_page_of_a_deleted_revision_is_gone_with_a_token_to_continue(api: ApiServer) -> None:
    """The metadata of the 410 has a token that continues with the present objects."""
    fill(api, "a", "b", "c")
    token = ask(api, SERVICES, limit=1).body["metadata"]["continue"]
    api.delete("Service", "default", "b")
    api.compact()
    gone = ask(api, SERVICES, **{"limit": 1, "continue": token})
    assert (gone.status, gone.body["reason"], gone.body["code"]) == (410, "Expired", 410)
    again = ask(api, SERVICES, **{"limit": 1, "continue": gone.body["metadata"]["continue"]})
    assert again.names() == ["c"]


def test_pages_with_a_selector_do_not_count_the_remaining_items(api: ApiServer) -> None:
    """The server would have to read all objects to know the number."""
    fill(api, "a", "b", "c")
    metadata = ask(api, SERVICES, limit=1, fieldSelector="spec.clusterIP!=None").body["metadata"]
    assert "continue" in metadata
    assert "remainingItemCount" not in metadata


def test_the_last_page_of_a_selection_may_be_empty(api: ApiServer) -> None:
    """A token is given when other objects follow, without a look at whether they are selected."""
    for number in range(3):
        api.put(service(f"s{number}", **({"tier": "web"} if number < 2 else {})))
    first = ask(api, SERVICES, limit=2, labelSelector="tier")
    assert first.names() == ["s0", "s1"]
    token = first.body["metadata"]["continue"]
    last = ask(api, SERVICES, limit=2, labelSelector="tier", **{"continue": token})
    assert last.names() == []
    assert "continue" not in last.body["metadata"]


def test_a_list_of_any_revision_has_no_pages(api: ApiServer) -> None:
    """resourceVersion=0 is answered from the watch cache, which ignores limit."""
    fill(api, "a", "b")
    assert ask(api, SERVICES, limit=1, resourceVersion=0).names() == ["a", "b"]


def test_a_list_of_an_exact_revision_shows_that_revision(api: ApiServer) -> None:
    """By resourceVersionMatch=Exact, or by a limit with a revision."""
    fill(api, "a")
    then = api.store.resource_version
    fill(api, "b")
    for how in ({"resourceVersionMatch": "Exact"}, {"limit": 5}):
        answer = ask(api, SERVICES, resourceVersion=then, **how)
        assert answer.names() == ["a"]
        assert answer.body["metadata"]["resourceVersion"] == then
    newer = ask(api, SERVICES, resourceVersion=then, resourceVersionMatch="NotOlderThan")
    assert newer.names() == ["a", "b"]
    api.compact()
    gone = ask(api, SERVICES, resourceVersion=then, resourceVersionMatch="Exact")
    assert (gone.status, gone.body["reason"]) == (410, "Expired")


def test_a_future_revision_times_out(api: ApiServer) -> None:
    """The answer is 504 with the cause that clients check."""
    answer = ask(api, SERVICES, resourceVersion=10_000)
    assert answer.status == 504
    causes = answer.body["details"]["causes"]
    assert [cause["reason"] for cause in causes] == ["ResourceVersionTooLarge"]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ({"labelSelector": NOT_OTHERS}, ["headless", "plain"]),
        ({"labelSelector": NOT_OTHERS, "fieldSelector": "spec.clusterIP!=None"}, ["plain"]),
        ({"labelSelector": "tier"}, ["foreign", "plain"]),
        ({"labelSelector": "tier=web"}, ["plain"]),
        ({"labelSelector": "tier==db"}, ["foreign"]),
        ({"labelSelector": "tier!=db"}, ["headless", "plain"]),
        ({"labelSelector": "tier in (web, db),tier!=db"}, ["plain"]),
        ({"labelSelector": "tier notin (web)"}, ["foreign", "headless"]),
        ({"fieldSelector": "metadata.name=plain"}, ["plain"]),
        ({"fieldSelector": "spec.clusterIP=None,metadata.namespace=default"}, ["headless"]),
    ],
    ids=str,
)
def test_selectors_choose(api: ApiServer, query: dict[str, str], names: list[str]) -> None:
    """kube-proxy's own selectors, and all other forms."""
    api.put(service("plain", tier="web"))
    api.put(service("headless", "None"))
    api.put(service("foreign", **{"service.kubernetes.io/service-proxy-name": "", "tier": "db"}))
    assert ask(api, SERVICES, **query).names() == names


@pytest.mark.parametrize(
    "query",
    [
        {"fieldSelector": "spec.ports=80"},
        {"fieldSelector": "metadata.name"},
        {"labelSelector": "a b"},
        {"resourceVersion": "now"},
        {"limit": "many"},
        {"labelSelector": "a=b=c"},
        {"continue": "x"},
        {"continue": "x", "resourceVersion": "5"},
    ],
    ids=str,
)
def test_an_unreadable_selector_is_a_bad_request(api: ApiServer, query: dict[str, str]) -> None:
    """400 with a Status."""
    answer = ask(api, SERVICES, **query)
    assert (answer.status, answer.body["kind"], answer.body["reason"]) == (
        400,
        "Status",
        "BadRequest",
    )


@pytest.mark.parametrize(
    "query",
    [
        {"resourceVersionMatch": "Exact"},
        {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
        {"resourceVersionMatch": "Newest", "resourceVersion": "1"},
        {"sendInitialEvents": "true"},
    ],
    ids=str,
)
def test_options_that_forbid_each_other_are_invalid(api: ApiServer, query: dict[str, str]) -> None:
    """422 with a Status."""
    answer = ask(api, SERVICES, **query)
    assert (answer.status, answer.body["reason"]) == (422, "Invalid")


def test_one_namespace_and_one_object_can_be_requested(api: ApiServer) -> None:
    """A single object has its kind; a missing one is NotFound."""
    api.put(service("web"))
    api.put(service("web") | {"metadata": {"name": "web", "namespace": "other"}})
    place = "/api/v1/namespaces/other/services"
    assert ask(api, place).body["items"][0]["metadata"]["namespace"] == "other"
    assert ask(api, place + "/web").body["kind"] == "Service"
    missing = ask(api, place + "/db")
    assert (missing.status, missing.body["message"]) == (404, 'services "db" not found')


def test_large_answers_are_compressed_for_clients_that_accept_it(api: ApiServer) -> None:
    """From 128 KiB on."""
    api.put(service("small"))
    takes = {"Accept-Encoding": "gzip"}
    assert "content-encoding" not in send(api, "GET", SERVICES, headers=takes).headers
    for number in range(400):
        api.put(service(f"s{number}", **{f"label{each}": "x" * 60 for each in range(5)}))
    plain, packed = send(api, "GET", SERVICES), send(api, "GET", SERVICES, headers=takes)
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.data) < len(plain.data)
    assert gzip.decompress(packed.data) == plain.data


def test_an_object_keeps_its_identity_until_it_is_deleted(api: ApiServer) -> None:
    """uid and creationTimestamp stay; resourceVersion counts over all resources."""
    first = api.put(service("web"))
    api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    second = api.put(service("web", "10.96.0.2"))
    assert (second.uid, second.created) == (first.uid, first.created)
    assert second.version == first.version + 2
    api.delete("Service", "default", "web")
    assert api.put(service("web")).uid != first.uid


def test_discovery_lists_groups_and_resources(api: ApiServer) -> None:
    """Groups, resources with their verbs, and the probes."""
    groups = [group["name"] for group in ask(api, "/apis").body["groups"]]
    assert groups == ["discovery.k8s.io", "networking.k8s.io", "events.k8s.io"]
    rows = ask(api, "/apis/discovery.k8s.io/v1").body["resources"]
    assert [row["name"] for row in rows] == ["endpointslices"]
    assert "watch" in rows[0]["verbs"]
    assert ask(api, "/readyz").data == b"ok"


def test_absent_groups_are_not_found_in_plain_text_and_resources_with_a_status(
    api: ApiServer,
) -> None:
    """A group without its paths and discovery; a resource alone."""
    api.faults.absent = frozenset({"discovery.k8s.io", "servicecidrs"})
    for place in (SLICES, "/apis/discovery.k8s.io/v1"):
        answer = ask(api, place)
        assert (answer.status, answer.data) == (404, b"404 page not found\n")
    answer = ask(api, "/apis/networking.k8s.io/v1/servicecidrs")
    assert (answer.status, answer.body["reason"]) == (404, "NotFound")
    groups = [group["name"] for group in ask(api, "/apis").body["groups"]]
    assert groups == ["networking.k8s.io", "events.k8s.io"]
    assert not ask(api, "/apis/networking.k8s.io/v1").body["resources"]
    api.faults.absent = frozenset()
    assert ask(api, SLICES).status == 200
