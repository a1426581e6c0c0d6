"""A sysdump of a node that serves, read by processes that have no rights on any node."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.patience import stretched
from tests.lab.testbed import (
    API,
    EMPTY,
    LOCAL,
    WEB,
    Named,
    Testbed,
    objects,
    put_pods,
    running_testbed,
)

pytestmark = pytest.mark.slow

NOBODY = 65534
HASHED = Named("hashed", 30)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """Two nodes with agents, the Services of the testbed, and one that chooses by a hash."""
    with running_testbed(layout="routed") as made:
        put_pods(made)
        hashed = objects(HASHED, made.lab.pods)
        hashed[0]["metadata"]["annotations"] = {"bpfsvc.io/scheduler": "mh"}
        made.cluster.put(HASHED.name, *hashed)
        ask(made.pod, WEB.vip(4), 80)
        yield made


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory that all users may read."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


def make(testbed: Testbed, path: Path, *words: str) -> str:
    """Make a sysdump of the first node; return what the command says on standard error."""
    done = testbed.cluster.command(testbed.node, "sysdump", "-o", str(path), *words)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    return done.stderr


@pytest.fixture(scope="module")
def plain(testbed: Testbed, directory: Path) -> Path:
    """The sysdump."""
    path = directory / "node.tar.gz"
    make(testbed, path)
    return path


@pytest.fixture(scope="module")
def anonymous(testbed: Testbed, directory: Path) -> Path:
    """The same without addresses and names."""
    path = directory / "anonymous.tar.gz"
    make(testbed, path, "--anonymize")
    return path


def as_nobody(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a user without any rights, outside of the lab's nodes."""
    return subprocess.run(
        [sys.executable, "-m", "bpfsvc", *words],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def parts(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        return {
            member.name.removeprefix("bpfsvc-sysdump/"): file.read().decode()
            for member in tar
            if (file := tar.extractfile(member))
        }


def test_the_findings_of_doctor_are_the_same_elsewhere(testbed: Testbed, plain: Path) -> None:
    here = testbed.cluster.command(testbed.node, "doctor", "-o", "json")
    there = as_nobody("doctor", "--from", str(plain), "-o", "json")
    assert (there.returncode, there.stderr) == (here.returncode, "")
    # How far back the agent remembers, which grows.
    texts = [re.sub(r"in the last \d+ s", "lately", done.stdout) for done in (here, there)]
    assert texts[1].splitlines() == texts[0].splitlines()


def questions(testbed: Testbed) -> dict[str, tuple[str, ...]]:
    """Return questions about all verdicts, by what they are about."""
    client, node = testbed.pod, testbed.node
    outside = "203.0.113.9"
    return {
        "a pod": ("--from", "pod", client.address(4), "TCP", f"{WEB.vip(4)}:80"),
        "IPv6": ("--from", "pod", client.address(6), "TCP", f"[{WEB.vip(6)}]:80"),
        "names": (f"default/{client.name}", "UDP", f"default/{WEB.name}:dns"),
        "a NodePort": ("--from", "external", outside, "TCP", f"{node.address(4)}:{WEB.node_port}"),
        "local": ("--from", "external", outside, "TCP", f"{node.address(4)}:{LOCAL.node_port}"),
        "loopback": ("--from", "localhost", "127.0.0.1", "TCP", f"127.1.2.3:{WEB.node_port}"),
        "the node": ("--from", "node", node.address(4), "TCP", f"{API.vip(4)}:80"),
        "a hash": ("--from", "pod", client.address(4), "TCP", f"{HASHED.vip(4)}:80"),
        "a hash of IPv6": ("--from", "pod", client.address(6), "TCP", f"[{HASHED.vip(6)}]:80"),
        "no endpoints": ("--from", "pod", client.address(4), "TCP", f"{EMPTY.vip(4)}:80"),
        "another port": ("--from", "pod", client.address(4), "TCP", f"{WEB.vip(4)}:81"),
        "no Service": ("--from", "pod", client.address(4), "TCP", "192.0.2.1:80"),
        "an interface": (
            *("--from", "external", outside, "TCP", f"{WEB.vip(4)}:80"),
            *("--in-iface", "eth0"),
        ),
    }


def test_the_explanations_are_the_same_elsewhere(testbed: Testbed, plain: Path) -> None:
    for about, question in questions(testbed).items():
        here = testbed.cluster.command(testbed.node, "explain", *question)
        assert here.returncode == 0, here.stderr
        there = as_nobody("explain", "--from", str(plain), *question)
        assert (there.returncode, there.stderr) == (0, ""), about
        assert there.stdout == here.stdout, about


def test_what_the_node_has_is_in_it(testbed: Testbed, plain: Path) -> None:
    recorded = parts(plain)
    manifest = json.loads(recorded["manifest.json"])
    assert (manifest["node"], manifest["format"]) == (testbed.node.name, 1)
    results = {part["name"]: part for part in manifest["parts"]}
    written = {name for name, part in results.items() if part["result"] == "ok"}
    assert written == recorded.keys() - {"manifest.json"}
    configuration = json.loads(recorded["configuration.json"])
    assert "--pin-root" in configuration["agent"]["arguments"]
    assert recorded["status.txt"].startswith("healthy")
    assert "ready: " in recorded["logs/agent.log"]
    assert "default/web" in recorded["maps/dump.txt"]
    assert (
        "bpfsvc_sync_proxy_rules" in recorded["metrics.txt"]
        or "kubeproxy" in (recorded["metrics.txt"])
    )
    assert any("default/web" in line for line in recorded["history.jsonl"].splitlines())
    assert "eth0" in recorded["network/interfaces.txt"]
    failed = {name for name, part in results.items() if part["result"] == "failed"}
    assert failed <= {
        name for name in results if name.startswith(("rules/", "configuration.yaml", "kernel/"))
    }
    assert all(results[name]["note"].count("\n") == 0 and results[name]["note"] for name in failed)


def test_an_anonymous_one_has_no_address_and_no_name(testbed: Testbed, anonymous: Path) -> None:
    text = "\n".join(parts(anonymous).values())
    hidden = [
        *(lab_pod.name for lab_pod in testbed.lab.pods),
        *(lab_pod.address(family) for lab_pod in testbed.lab.pods for family in (4, 6)),
        *(node.address(4) for node in testbed.lab.nodes),
        *(f"default/{of.name}" for of in (WEB, EMPTY)),
        *(of.vip(family) for of in (WEB, LOCAL, EMPTY) for family in (4, 6)),
    ]
    assert [word for word in hidden if word in text] == []


def replaced(plain: Path, anonymous: Path) -> dict[str, str]:
    """Return the anonymous text of each text, by the Services in the order of the kernel."""

    def texts(value: Any) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for part in value.values():
                yield from texts(part)
        elif isinstance(value, list):
            for part in value:
                yield from texts(part)

    pairs: dict[str, str] = {}
    lines = (parts(path)["objects.jsonl"].splitlines() for path in (plain, anonymous))
    for one_line, other_line in zip(*lines, strict=True):
        both = texts(json.loads(one_line)), texts(json.loads(other_line))
        pairs |= dict(zip(*both, strict=True))
    return pairs


def test_an_anonymous_one_explains_the_same(testbed: Testbed, plain: Path, anonymous: Path) -> None:
    """All that changes are the addresses and names."""
    instead = replaced(plain, anonymous)
    client, vip = testbed.pod, WEB.vip(4)
    question = ("--from", "pod", client.address(4), "TCP", f"{vip}:80")
    hidden = ("--from", "pod", instead[client.address(4)], "TCP", f"{instead[vip]}:80")
    here = as_nobody("explain", "-o", "json", "--from", str(plain), *question)
    there = as_nobody("explain", "-o", "json", "--from", str(anonymous), *hidden)
    assert (here.returncode, there.returncode) == (0, 0), there.stderr
    before, after = json.loads(here.stdout), json.loads(there.stdout)
    assert after["verdict"] == before["verdict"] == "dnat"
    assert len(after["endpoints"]) == len(before["endpoints"])
    assert after["masquerade_endpoints"] == [f"{instead[client.address(4)]}:8080"]
    assert after["service"] == f"default/{instead[WEB.name]}"
    assert len(after["reasons"]) == len(before["reasons"])


def test_an_anonymous_one_names_no_endpoint_by_the_hash_of_another_address(
    testbed: Testbed, plain: Path, anonymous: Path
) -> None:
    instead, client, vip = replaced(plain, anonymous), testbed.pod.address(4), HASHED.vip(4)
    asked = ("--from", "pod", instead[client], "TCP", f"{instead[vip]}:80")
    done = as_nobody("explain", "--from", str(anonymous), *asked)
    assert "which endpoint that is does not follow from this sysdump" in done.stdout


def test_the_archive_can_go_to_standard_output(testbed: Testbed, directory: Path) -> None:
    process = testbed.node.popen(
        [sys.executable, "-m", "bpfsvc", "sysdump", "-o", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    data, errors = process.communicate(timeout=stretched(60))
    path = directory / "stdout.tar.gz"
    path.write_bytes(data)
    assert process.returncode == 0
    assert errors.startswith(b"wrote ")
    assert "manifest.json" in parts(path)


def test_a_small_one_says_what_was_cut(testbed: Testbed, directory: Path) -> None:
    path = directory / "small.tar.gz"
    said = make(testbed, path, "--max-size", "0.02")
    assert path.stat().st_size < 0.02 * 2**20
    assert "cut after" in said
    results = {part["result"] for part in json.loads(parts(path)["manifest.json"])["parts"]}
    assert "ok" in results
