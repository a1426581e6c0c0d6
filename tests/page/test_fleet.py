"""The page of all nodes: who answers, why the others do not, and the page of each node."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.base.errors import BpfsvcError, UsageError
from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.objects import node, pod
from bpfsvc.kube.agents import AgentPages
from bpfsvc.kube.client.connection import connect
from bpfsvc.page.fleet import RELAYED, FleetAnswers
from bpfsvc.page.questions import NotHere, Query
from bpfsvc.page.server import FLEET_ASSETS, PageServer
from tests.http.asking import ask, body
from tests.page.test_server import ASSET_FILES

WELL = {
    **{"node": "n1", "well": True, "carries_well": True, "head": "healthy", "lines": {}},
    **{"failing": [], "refusing": [], "drops": {}},
}


def searched(query: Query) -> dict[str, Any]:
    if query.get("search") == "broken":
        raise UsageError("it is wrong", "do it right")
    return {"query": dict(query)}


@pytest.fixture
def fleet() -> Iterator[tuple[ApiServer, int]]:
    """An API server with four nodes, and the port of the page of the first."""
    page = PageServer(
        ("127.0.0.1", 0), {"/api/status": lambda _: WELL, "/api/services": searched}, lambda _: None
    )
    page.http.start()
    with ApiServer() as api:
        api.start()
        for name in ("n1", "n2", "n3", "n4"):
            api.put(node(name, []))
        for name, phase in (("n1", "Running"), ("n2", "Running"), ("n3", "Pending")):
            agent = pod(f"bpfsvc-{name}", [], name, "kube-system")
            agent["metadata"]["labels"] = {"app.kubernetes.io/name": "bpfsvc"}
            agent["status"]["phase"] = phase
            api.put(agent)
        api.put(pod("other", [], "n4", "kube-system"))

        def dial(_: str, name: str, port: int) -> socket.socket:
            if name != "bpfsvc-n1":
                raise ConnectionRefusedError("connection refused")
            return socket.create_connection(("127.0.0.1", port), timeout=10)

        api.dial = dial
        yield api, page.http.port
    page.http.stop()


def answers(fleet: tuple[ApiServer, int], directory: Path) -> FleetAnswers:
    api, port = fleet
    file = directory / "kubeconfig"
    file.write_text(
        json.dumps(
            {
                "clusters": [{"name": "lab", "cluster": {"server": api.url()}}],
                "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
                "users": [{"name": "lab", "user": {}}],
                "current-context": "lab",
            }
        )
    )
    return FleetAnswers(AgentPages(connect(file, user_agent="test"), "kube-system", port))


def test_each_node_answers_or_has_the_reason_why_not(
    fleet: tuple[ApiServer, int], tmp_path: Path
) -> None:
    answer = answers(fleet, tmp_path).fleet({})
    first, second, third, fourth = answer["nodes"]
    assert (first["node"], first["problem"], first["head"]) == ("n1", "", "healthy")
    assert second["problem"].startswith("error forwarding port ")
    assert second["problem"].endswith("connection refused")
    assert third["problem"] == "its Pod is Pending (bpfsvc-n3)"
    assert fourth["problem"] == "no Pod of an agent is on n4"
    assert answer["note"] == ""


def test_who_may_not_list_nodes_sees_those_with_an_agent_and_is_told_so(
    fleet: tuple[ApiServer, int], tmp_path: Path
) -> None:
    fleet[0].faults.forbidden = frozenset({"nodes"})
    answer = answers(fleet, tmp_path).fleet({})
    assert [row["node"] for row in answer["nodes"]] == ["n1", "n2", "n3"]
    assert answer["note"].startswith("nodes without an agent are not shown: nodes is forbidden")


def test_who_may_not_list_pods_sees_nothing_and_the_reason(
    fleet: tuple[ApiServer, int], tmp_path: Path
) -> None:
    fleet[0].faults.forbidden = frozenset({"pods"})
    with pytest.raises(BpfsvcError, match='cannot list resource "pods"'):
        answers(fleet, tmp_path).fleet({})


def test_a_question_about_a_node_is_answered_by_its_page(
    fleet: tuple[ApiServer, int], tmp_path: Path
) -> None:
    by_path = answers(fleet, tmp_path).by_path()
    services = by_path["/api/services"]
    assert services({"node": "n1", "search": "a b&c"}) == {"query": {"search": "a b&c"}}
    with pytest.raises(BpfsvcError, match="it is wrong"):
        services({"node": "n1", "search": "broken"})
    with pytest.raises(NotHere, match="no Pod of an agent is on n9"):
        services({"node": "n9"})


def test_the_page_asks_for_nothing_else() -> None:
    """What the scripts of a node's page ask for is what is relayed."""
    text = "".join((ASSET_FILES / name).read_text() for name in ("page.js", "views.js"))
    assert {path for path in RELAYED if path in text} == set(RELAYED)
    assert text.count("/api/") - text.count("/api/status") == len(RELAYED) - 1


def test_all_nodes_and_each_have_an_address(fleet: tuple[ApiServer, int], tmp_path: Path) -> None:
    by_path = answers(fleet, tmp_path).by_path()
    server = PageServer(("127.0.0.1", 0), by_path, lambda _: None, assets=FLEET_ASSETS)
    server.http.start()
    for path, text in (("/", b"All nodes"), ("/node?node=n1", b"Skip to the content")):
        assert text in body(ask(server.http.port, path, host_header="localhost"))
    refused = ask(server.http.port, "/api/fleet", "Sec-Fetch-Site: cross-site", host_header="::1")
    assert refused.split()[1] in (b"403", b"421")
    server.http.stop()
