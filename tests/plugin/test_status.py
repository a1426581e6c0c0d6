"""All nodes in a table."""

from __future__ import annotations

import ast
import sys

import pytest

import bpfsvc
from tests.plugin.conftest import PLUGIN, WELL, Cluster, Ended, node


def rows(ended: Ended) -> dict[str, str]:
    """Return the rows of the table by their nodes, in order."""
    return {line.split()[0]: line for line in ended.out.splitlines()[1:-1]}


def test_nodes_that_are_well_have_a_row_each_and_the_status_is_0(three: Cluster) -> None:
    done = three.run("status")
    assert (done.status, done.err) == (0, "")
    assert [*rows(done)] == ["n1", "n2", "n3"]
    shown = rows(done)["n1"].split()
    assert shown == ["n1", "0.1.0", "well", "established", "0.0", "s", "0", "frontends", "15.0%"]
    assert done.out.splitlines()[-1] == "3 of 3 nodes are well"


def test_nodes_that_are_not_well_come_first_and_say_why(three: Cluster) -> None:
    three.add_agent("n4", {**WELL, "well": False, "reasons": ["the agent is not running"]})
    three.state["nodes"].append(node("n5"))
    three.add_agent("n6")
    three.answer("n6", "status", "", 1, "error: container not found\n")
    waiting = {"name": "bpfsvc", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    three.add_agent("n7", status={"phase": "Running", "containerStatuses": [waiting]})
    done = three.run("status")
    assert done.status == 1
    shown = rows(done)
    assert [*shown] == ["n4", "n5", "n6", "n7", "n1", "n2", "n3"]
    assert "NOT WELL" in shown["n4"]
    assert shown["n4"].endswith("the agent is not running")
    assert shown["n5"].endswith("no pod of one is here")
    assert "no agent" in shown["n5"]
    assert "no answer" in shown["n6"]
    assert shown["n6"].endswith("error: container not found")
    assert shown["n7"].endswith("its container waits: CrashLoopBackOff")
    assert done.out.splitlines()[-1] == "3 of 7 nodes are well"


def test_an_agent_that_does_not_answer_in_time_is_a_row_and_holds_up_no_other(
    three: Cluster,
) -> None:
    (three.folder / "slow").write_text("#!/bin/sh\nexec sleep 20\n")
    (three.folder / "slow").chmod(0o755)
    agent = three.folder / "bpfsvc"
    text = agent.read_text().replace(
        'echo "$POD: $*"', '[ $POD != bpfsvc-n2 ] || exec slow\necho "$POD: $*"'
    )
    agent.write_text(text)
    done = three.run("status", "--timeout", "2")
    assert done.status == 1
    assert rows(done)["n2"].endswith("no answer within 2 s")
    assert done.out.splitlines()[-1] == "2 of 3 nodes are well"


def test_failing_services_of_a_node_are_named_and_the_node_is_well(three: Cluster) -> None:
    failing = [{"service": "shop/web:http", "backends": 1, "failing": [{"backend": "10.0.0.1:80"}]}]
    three.add_agent("n4", {**WELL, "carries": {"seconds": 90, "services": failing}})
    done = three.run("status")
    assert done.status == 0
    assert rows(done)["n4"].endswith("failing: shop/web:http")


def test_json_has_what_each_agent_said(three: Cluster) -> None:
    three.state["nodes"].append(node("n4"))
    done = three.run("status", "-o", "json")
    assert done.status == 1
    first, second, *_ = done.json["nodes"]
    assert first == {
        **{"node": "n4", "well": False, "status": None},
        "problem": "no agent: no pod of one is here",
    }
    assert (second["node"], second["status"]) == ("n1", WELL)


def test_a_selector_chooses_nodes(three: Cluster) -> None:
    three.state["nodes"].append({**node("n4"), "metadata": {"name": "n4", "labels": {"pool": "a"}}})
    assert [*rows(three.run("status", "-l", "pool=a"))] == ["n4"]


def test_kubectls_own_options_are_passed_on(three: Cluster) -> None:
    assert three.run("--context", "far", "status", "--kubeconfig=/tmp/k").status == 0
    assert all({"--context=far", "--kubeconfig=/tmp/k"} <= set(call) for call in three.calls())


@pytest.mark.parametrize(
    ("start", "text", "error", "hint"),
    [
        (
            "get nodes",
            'nodes is forbidden: User "jane" cannot list resource "nodes" in API group ""'
            " at the cluster scope",
            "Error: jane lacks the right to list nodes in the whole cluster",
            "Hint: see: kubectl auth can-i list nodes --all-namespaces",
        ),
        (
            "exec",
            'pods "bpfsvc-n1" is forbidden: User "jane" cannot create resource "pods/exec" in'
            ' API group ""'
            ' in the namespace "kube-system"',
            "Error: jane lacks the right to create pods/exec in namespace kube-system",
            "Hint: see: kubectl auth can-i create pods --subresource=exec -n kube-system",
        ),
    ],
    ids=["to list nodes", "to run commands in pods"],
)
def test_a_right_that_lacks_is_one_line(
    three: Cluster, start: str, text: str, error: str, hint: str
) -> None:
    three.refuse(start, text)
    done = three.run("status")
    assert (done.status, done.out, done.err.splitlines()) == (1, "", [error, hint])


def test_without_kubectl_the_error_is_one_line(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (three.folder / "kubectl").unlink()
    monkeypatch.setenv("PATH", "/nonexistent")
    done = three.run("status")
    assert (done.status, done.out) == (1, "")
    assert done.err == "Error: kubectl is not in PATH\nHint: install kubectl\n"


def test_the_plugin_is_one_file_for_python_3_9_without_other_packages() -> None:
    tree = ast.parse(PLUGIN.read_text(), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for item in ast.walk(tree)
        for name in (
            [alias.name for alias in item.names]
            if isinstance(item, ast.Import)
            else [item.module or ""]
            if isinstance(item, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names


def test_the_plugin_has_the_version_of_the_package(cluster: Cluster) -> None:
    assert cluster.run("--version").out == f"kubectl-bpfsvc {bpfsvc.__version__}\n"
