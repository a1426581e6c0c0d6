"""Lists of the lab's API server, compared with recorded answers of a real one."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from tests.kube.requests import SERVICES, SLICES, ask, path, send, service

RECORDINGS = Path(__file__).parent.parent / "recordings"
NOT_OTHERS = "!service.kubernetes.io/service-proxy-name"
NODES = "/api/v1/nodes"


def recorded(name: str) -> Any:
    return json.loads((RECORDINGS / name).read_text())


def fill(api: ApiServer, *names: str) -> None:
    for name in names:
        api.put(service(name))


@pytest.mark.parametrize(
    ("stem", "url_path"), [("services", SERVICES), ("endpointslices", SLICES), ("nodes", NODES)]
)
def test_a_recorded_list_is_answered_byte_for_byte(
    api: ApiServer, stem: str, url_path: str
) -> None:
    """The bytes are those of the recording without its white space."""
    recording = recorded(f"{stem}.list.json")
    api.store.load(recording)
    answer = ask(api, url_path)
    assert answer.data == json.dumps(recording, separators=(",", ":")).encode() + b"\n"
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


def test_large_answers_are_compressed_for_clients_that_accept_it(api: ApiServer) -> None:
    """From 128 KiB on."""
    api.put(service("small"))
    takes = {"Accept-Encoding": "gzip"}
    assert "content-encoding" not in send(api, "GET", SERVICES, headers=takes).headers
    for number in range(400):
        api.put(service(f"s{number}", **{f"label{index}": "x" * 60 for index in range(5)}))
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


def test_absent_groups_are_not_found_in_plain_text_and_resources_with_a_status(
    api: ApiServer,
) -> None:
    """A group without its paths and discovery; a resource alone."""
    api.faults.absent = frozenset({"discovery.k8s.io", "servicecidrs"})
    for url_path in (SLICES, "/apis/discovery.k8s.io/v1"):
        answer = ask(api, url_path)
        assert (answer.status, answer.data) == (404, b"404 page not found\n")
    answer = ask(api, "/apis/networking.k8s.io/v1/servicecidrs")
    assert (answer.status, answer.body["reason"]) == (404, "NotFound")
    groups = [group["name"] for group in ask(api, "/apis").body["groups"]]
    assert groups == ["networking.k8s.io", "events.k8s.io"]
    assert not ask(api, "/apis/networking.k8s.io/v1").body["resources"]
    api.faults.absent = frozenset()
    assert ask(api, SLICES).status == 200


@pytest.mark.parametrize(
    ("accept", "drops"),
    [
        ("application/json;drop=metadata.managedFields,application/json", True),
        ("application/json; drop=spec.other+metadata.managedFields", True),
        ("application/json;drop=spec.other", False),
        ("application/json", False),
    ],
)
@pytest.mark.parametrize("is_known", [True, False])
def test_managed_fields_are_left_out_where_a_client_asks_and_the_server_can(
    api: ApiServer, accept: str, drops: bool, is_known: bool
) -> None:
    """In lists, watches and single objects; a server of Kubernetes 1.36 ignores the parameter."""
    api.faults.drops_managed_fields = is_known
    raw = service("web")
    raw["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    api.put(raw)
    api.delete("Service", "default", "web")
    api.put(raw)
    targets = (
        SERVICES,
        "/api/v1/namespaces/default/services/web",
        path(SERVICES, watch="true", resourceVersion=1, timeoutSeconds=1),
        path(SERVICES, watch="true", resourceVersion=0, timeoutSeconds=1),
    )
    asked = partial(send, api, "GET", headers={"Accept": accept})
    with ThreadPoolExecutor() as beside:
        answers = list(beside.map(asked, targets))
    for target, answer in zip(targets, answers, strict=True):
        assert answer.headers["content-type"] == "application/json"
        assert (b"managedFields" in answer.data) is not (drops and is_known), target
        assert b'"resourceVersion":"4"' in answer.data
