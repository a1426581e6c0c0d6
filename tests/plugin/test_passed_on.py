"""Commands of bpfsvc on the nodes of a pod, of a Service, or on all; manifests; archives."""

from __future__ import annotations

import os
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from bpfsvc.devtools.lab.patience import wait
from tests.plugin.conftest import Cluster, named, pod


@pytest.fixture
def shop(three: Cluster) -> Cluster:
    """Three nodes; shop/cart is on n2, and Service shop/web has endpoints on n1 and n3."""
    three.state["pods"].append(pod("cart", "n2"))
    three.state["services"] = [named("web", "shop"), named("idle", "shop")]
    label = {"kubernetes.io/service-name": "web"}
    points = [{"addresses": [f"10.0.0.{n}"], "nodeName": f"n{n}"} for n in (1, 3)]
    three.state["endpointslices"] = [named("web-1", "shop", labels=label, endpoints=points)]
    for name in ("n1", "n2", "n3"):
        for command in ("services", "observe", "history", "explain", "top"):
            three.answer(name, command, f"{command} of {name}\nmore\n")
    return three


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (["services", "--node", "n1", "web", "--stats"], ["n1: services web --stats"]),
        (["history", "--pod", "shop/cart"], ["n2: history"]),
        (["history", "--pod=cart", "-n", "shop"], ["n2: history -n shop"]),
        (["observe", "--service", "shop/web"], ["n1: observe", "n3: observe"]),
        (["explain", "shop/cart", "TCP", "shop/web:80"], ["n2: explain shop/cart TCP shop/web:80"]),
        (
            ["observe", "--node=n1", "--last", "3", "--", "--pod", "shop/cart"],
            ["n1: observe --last 3 --pod shop/cart"],
        ),
        (["top", "--all", "--once"], ["n1: top --once", "n2: top --once", "n3: top --once"]),
    ],
    ids=" ".join,
)
def test_a_command_runs_on_the_nodes_that_are_meant(
    shop: Cluster, words: list[str], commands: list[str]
) -> None:
    done = shop.run(*words)
    assert (done.status, done.err) == (0, "")
    assert shop.commands() == [f"bpfsvc-{command}" for command in commands]


def test_lines_of_several_nodes_begin_with_the_node(shop: Cluster) -> None:
    shop.answer("n2", "history", "changed\n", 3, "Error: not all is known\n")
    done = shop.run("history", "--all")
    lines = ["n1  history of n1", "n1  more", "n2  changed", "n3  history of n3", "n3  more"]
    assert sorted(done.out.splitlines()) == lines
    assert done.err == "n2  Error: not all is known\n"
    assert done.status == 3


def test_json_of_several_nodes_is_an_object_by_node(shop: Cluster) -> None:
    for name in ("n1", "n2", "n3"):
        shop.answer(name, "services", f'{{"of": "{name}"}}\n')
    shop.answer("n3", "services", "", 1, "Error: bpfsvc is not loaded\n")
    done = shop.run("services", "--all", "-o", "json")
    assert done.json == {"n1": {"of": "n1"}, "n2": {"of": "n2"}, "n3": None}
    assert (done.status, done.err) == (1, "n3  Error: bpfsvc is not loaded\n")


def test_json_lines_of_events_stay_as_they_are_for_they_name_their_nodes(shop: Cluster) -> None:
    shop.answer("n1", "observe", '{"node":"n1"}\n')
    shop.answer("n3", "observe", '{"node":"n3"}\n')
    done = shop.run("observe", "--service", "shop/web", "-ojson")
    assert sorted(done.out.splitlines()) == ['{"node":"n1"}', '{"node":"n3"}']


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["history"], "which node?"),
        (["history", "--node", "n9"], "no agent is on node n9 in namespace kube-system; it is on:"),
        (["history", "--pod", "shop/none"], 'NotFound): pods "none" not found'),
        (["history", "--service", "shop/idle"], "Service idle has no endpoint on a node"),
        (["history", "--all", "--agents-namespace", "other"], "no agent runs in namespace other"),
        (["history", "--pod", "shop/late"], "pod shop/late is on no node yet"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_target_that_is_not_there_is_one_line(
    shop: Cluster, words: list[str], error: str
) -> None:
    shop.state["pods"].append(pod("late", "", status={"phase": "Pending"}))
    done = shop.run(*words)
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("Error: ")
    assert error in done.err.splitlines()[0]
    assert len(done.err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("target", "lines"),
    [
        ("--node=n1", ["started\n"]),
        ("--all", ["n1  started\n", "n2  started\n", "n3  started\n"]),
    ],
)
def test_commands_end_in_their_pods_when_the_plugin_is_interrupted(
    shop: Cluster, target: str, lines: list[str]
) -> None:
    """Kubectl exec alone leaves them running."""
    shop.save()
    words = shop.words("observe", target, "--endless")
    running = subprocess.Popen(
        words, env=shop.environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    with running:
        assert running.stdout
        assert sorted(running.stdout.readline() for _ in lines) == lines
        files = [*shop.folder.glob("*.pid")]
        numbers = [int(file.read_text()) for file in files]
        assert len(numbers) == len(lines)
        os.kill(running.pid, signal.SIGINT)
        assert running.wait(60) == 130
    wait(
        lambda: not any(Path(f"/proc/{number}").exists() for number in numbers),
        "the commands end in the pods",
    )


def test_all_ends_when_its_reader_has_seen_enough(shop: Cluster) -> None:
    shop.save()
    words = shop.words("history", "--all")
    running = subprocess.Popen(
        words, env=shop.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with running:
        assert running.stdout
        assert running.stderr
        running.stdout.close()
        assert running.wait(60) == 141
        assert running.stderr.read() == ""


def test_the_right_to_run_commands_that_lacks_is_one_line(shop: Cluster) -> None:
    text = 'User "jane" cannot create resource "pods/exec" in API group "" in the namespace "x"'
    shop.refuse("exec", text)
    done = shop.run("history", "--node", "n1")
    assert done.status == 1
    assert done.err == "Error: jane lacks the right to create pods/exec in namespace x\n"


GOOD = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n"
BAD = GOOD.replace("name: web", "name: bad, annotations: {bpfsvc.io/shceduler: rr}")


def test_manifests_are_checked_by_an_agent_file_by_file(shop: Cluster) -> None:
    folder = shop.folder / "manifests"
    (folder / "deep").mkdir(parents=True)
    (folder / "good.yaml").write_text(GOOD)
    (folder / "deep" / "bad.yml").write_text(BAD)
    (folder / "notes.txt").write_text("no manifest")
    done = shop.run("validate", "manifests", cwd=shop.folder)
    assert done.status == 1
    assert done.err == ""
    finding, summary = done.out.splitlines()
    assert finding.startswith("manifests/deep/bad.yml:3: Service bad: bpfsvc.io/shceduler: is not")
    assert finding.endswith("did you mean bpfsvc.io/scheduler?")
    assert summary == "2 objects, 1 findings"
    assert shop.run("validate", "-", given=GOOD).status == 0
    missing = shop.run("validate", str(shop.folder / "none.yaml"))
    assert (missing.status, missing.out) == (1, "")
    assert "none.yaml cannot be read: No such file or directory" in missing.err


@pytest.mark.parametrize("target", ["dump", "dump.tar", "dump.tgz"])
def test_archives_of_all_nodes_are_collected_and_a_node_without_one_is_named(
    shop: Cluster, target: str
) -> None:
    for name in ("n1", "n3"):
        shop.answer(name, "sysdump", f"archive of {name}")
    shop.answer("n2", "sysdump", "", 1, "Error: no room\n")
    done = shop.run("sysdump", "-o", target, cwd=shop.folder)
    assert done.status == 1
    assert done.err == "n2: Error: no room\n"
    assert done.out == f"{target}: 2 nodes\n"
    path = shop.folder / target
    if path.is_dir():
        names = {file.name for file in path.iterdir()}
        assert (path / "n1.tar").read_text() == "archive of n1"
        assert (path / "n2.log").read_text() == "log of n2\n"
    else:
        with tarfile.open(path) as archive:
            names = {name.removeprefix("dump/") for name in archive.getnames()}
    logs = {"n1.log", "n2.log", "n3.log"}
    assert names == {"n1.tar", "n3.tar", "status.json", "failed.txt"} | logs
    again = shop.run("sysdump", "-o", target, cwd=shop.folder)
    assert (again.status, again.err.splitlines()[0]) == (1, f"Error: {target} exists")


def test_the_log_of_a_container_that_ended_is_collected_too(shop: Cluster) -> None:
    """It says why: what runs now does not know."""
    for name in ("n1", "n2", "n3"):
        shop.answer(name, "sysdump", f"archive of {name}")
    shop.state["logs"]["bpfsvc-n2"]["previous"] = "Error: no room"
    assert shop.run("sysdump", "-o", "dump", cwd=shop.folder).status == 0
    previous = {
        file.name: file.read_text() for file in (shop.folder / "dump").glob("*.previous.log")
    }
    assert previous == {"n2.previous.log": "Error: no room\n"}


def test_archives_are_collected_without_the_right_to_read_logs(shop: Cluster) -> None:
    for name in ("n1", "n2", "n3"):
        shop.answer(name, "sysdump", f"archive of {name}")
    asked = 'get resource "pods/log" in API group "" in the namespace "kube-system"'
    shop.refuse("logs", f'User "viewer" cannot {asked}')
    done = shop.run("sysdump", "-o", "dump", cwd=shop.folder)
    assert (done.status, done.out) == (1, "dump: 3 nodes\n")
    lacks = "viewer lacks the right to get pods/log in namespace kube-system"
    assert done.err.splitlines() == [f"{name}: log: {lacks}" for name in ("n1", "n2", "n3")]
