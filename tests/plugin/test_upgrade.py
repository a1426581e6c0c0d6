"""May this cluster be upgraded?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.plugin.conftest import WELL, Cluster, Ended, named, node


@pytest.fixture
def ready(three: Cluster) -> Cluster:
    """Three nodes that may be upgraded."""
    spec = {
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
        "template": {"spec": {"containers": [{"name": "bpfsvc", "image": "bpfsvc:0.1.0"}]}},
    }
    state = {"desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "observedGeneration": 2}
    daemon_set = named(
        *("bpfsvc", "kube-system"),
        labels={"app.kubernetes.io/name": "bpfsvc"},
        spec=spec,
        status=state,
    )
    daemon_set["metadata"]["generation"] = 2
    three.state["daemonsets"] = [daemon_set]
    version = json.dumps({"gitVersion": "v1.36.0"})
    three.state["answers"] = {
        **{"create": {"out": ""}, "delete": {"out": ""}},
        "get --raw": {"out": version},
    }
    return three


def texts(done: Ended) -> dict[tuple[str, str], str]:
    """Return the texts by level and subject."""
    return {(row["level"], row["subject"]): row["text"] for row in done.json["findings"]}


def check(cluster: Cluster, *words: str) -> Ended:
    return cluster.run("upgrade", "--check", "-o", "json", *words)


def test_a_cluster_that_is_well_may_be_upgraded(ready: Cluster) -> None:
    done = check(ready, "--to", "0.2.0")
    assert (done.status, done.json["may_upgrade"]) == (0, True)
    found = texts(done)
    assert found["ok", "versions"] == "0.1.0 on 3"
    assert found["ok", "health"] == "all 3 nodes are well"
    assert found["ok", "kernels"] == "6.1.0-30-amd64"
    assert found["ok", "Kubernetes"] == "v1.36.0"
    assert found["ok", "rollout"].startswith("1 of 3 nodes at a time (maxUnavailable 10%)")
    assert "pull the image on the nodes before" in found["note", "new pods"]
    shown = ready.run("upgrade", "--check", "--to", "0.2.0").out
    assert shown.splitlines()[-1] == "may be upgraded to 0.2.0"


def break_health(cluster: Cluster) -> None:
    cluster.add_agent("n4", {**WELL, "well": False, "reasons": ["map is full"]})


def break_kernel(cluster: Cluster) -> None:
    cluster.state["nodes"][0] = node("n1", kernel="5.4.0-1-generic")


def roll_out(cluster: Cluster) -> None:
    cluster.state["daemonsets"][0]["status"]["updatedNumberScheduled"] = 1


@pytest.mark.parametrize(
    ("change", "subject", "text"),
    [
        (break_health, "health", "not well: n4 (map is full)"),
        (break_kernel, "kernels", "older than 5.10: n1 has 5.4.0-1-generic"),
        (roll_out, "rollout", "one is under way: 2 of 3 agents are not updated yet"),
    ],
)
def test_what_stands_in_the_way_is_named(
    ready: Cluster, change: Any, subject: str, text: str
) -> None:
    change(ready)
    done = check(ready)
    assert (done.status, done.json["may_upgrade"]) == (1, False)
    assert texts(done)["STOP", subject] == text


def test_several_versions_and_older_ones_are_told(ready: Cluster) -> None:
    ready.add_agent("n4", {**WELL, "version": "0.3.0"})
    found = texts(check(ready, "--to", "0.2.0"))
    assert (
        "starts over, and connections that packets translated are cut" in found["note", "versions"]
    )
    ready.state["daemonsets"][0]["spec"]["updateStrategy"] = {"type": "OnDelete"}
    assert "by hand" in texts(check(ready))["note", "rollout"]


def add_pod(cluster: Cluster, status: dict[str, Any]) -> None:
    """Add the pod of the new image on n1 as it is after a while."""
    name, spec = "bpfsvc-upgrade-check-n1", {"nodeName": "n1"}
    cluster.state["pods"].append(named(name, "kube-system", spec=spec, status=status))


IMAGE = {**WELL, "version": "0.2.0", "build": "aa", "expected_build": "bb", "connections": 70}


@pytest.mark.parametrize(
    ("facts", "finding", "text"),
    [
        (
            {**IMAGE, "copied_maps": ["connections"]},
            ("ok", "connections"),
            "n1: 70 entries get another layout and are copied, while they are used; none is cut",
        ),
        (
            {**IMAGE, "copied_maps": ["services"]},
            ("ok", "connections"),
            "n1: the new programs use them as they are; other maps are copied: services",
        ),
        (
            {**IMAGE, "copied_maps": None},
            ("note", "maps"),
            "n1: the image has no compiled programs: its layout is not known",
        ),
        (
            {**IMAGE, "build": "bb"},
            ("ok", "connections"),
            "n1: the same programs: nothing is replaced",
        ),
    ],
)
def test_the_new_image_says_what_becomes_of_connections(
    ready: Cluster, facts: Any, finding: tuple[str, str], text: str
) -> None:
    ready.state["answers"]["logs"] = {"out": json.dumps(facts)}
    add_pod(ready, {"phase": "Failed"})  # of bpfsvc status, which finds another build loaded
    done = check(ready, "--to", "0.2.0", "--image", "example.com/bpfsvc:0.2.0")
    assert done.err == ""
    assert texts(done)["ok", "image"] == "0.2.0 runs on n1"
    assert texts(done)[finding] == text
    # Nodes of one kernel are asked once; the pod is no agent's, and is deleted.
    calls = [call[0] for call in ready.calls()]
    assert (calls.count("create"), calls.count("delete")) == (1, 1)


def test_an_image_that_does_not_run_stops_the_upgrade(ready: Cluster) -> None:
    waiting = {"name": "bpfsvc", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
    add_pod(ready, {"phase": "Pending", "containerStatuses": [waiting]})
    done = check(ready, "--image", "nowhere:1")
    assert done.status == 1
    shown = texts(done)["STOP", "image"]
    assert shown.startswith("nowhere:1 does not run on n1: ")
    assert "ImagePullBackOff" in shown


def test_nothing_is_upgraded_by_the_plugin(ready: Cluster) -> None:
    done = ready.run("upgrade")
    assert done.status == 2
    assert "the following arguments are required: --check" in done.err
