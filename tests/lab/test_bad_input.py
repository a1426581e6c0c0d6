"""Errors before an agent starts: one clear line, one hint, and nothing changes on the node."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import bpfsvc
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.dial import tally
from tests.lab.testbed import WEB, Testbed, built_testbed, objects

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def served() -> Iterator[Testbed]:
    """One node; its agent has run and ended, and its programs must keep working."""
    with built_testbed(layout="routed", nodes=1) as testbed:
        testbed.cluster.put("services", *objects(WEB, testbed.lab.pods))
        testbed.cluster.start()
        testbed.cluster.stop(testbed.node)
        yield testbed


def complaint(done: Done, status: int) -> str:
    """Return the error line: there is exactly one, followed by one with a hint."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    # Log lines of the agent's start may precede it.
    first, second = (line for line in done.stderr.splitlines() if " INFO " not in line)
    assert first.startswith("Error: ")
    assert second.startswith("Hint: ")
    return first


def run(
    testbed: Testbed,
    *options: str,
    before: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> Done:
    """Try to run an agent with additional options."""
    return testbed.cluster.command(
        testbed.node,
        "run",
        *testbed.cluster.flags(testbed.node),
        *options,
        before=before,
        env={**os.environ, **(environment or {})},
    )


def still_works(testbed: Testbed) -> bool:
    """True if the programs of the first agent serve all kinds of clients."""
    names = {pod.name for pod in testbed.lab.pods}
    return all(
        set(tally(client, WEB.vip(family), 80, count=30)) == names
        for client in (testbed.pod, testbed.node)
        for family in (4, 6)
    )


WRONG = [
    (["--frobnicate"], "--frobnicate"),
    (["--cluster-cidr", "10.244.0.0/33"], "10.244.0.0/33"),
    (["--masquerade-ports", "30000-31000"], "NodePorts 30000-32767"),
    (["--masquerade-ports", "20000-40000"], "overlaps the ports this node uses"),
    (["--service-node-port-range", "0-10"], "--service-node-port-range 0-10"),
    (["--cgroup-root", "/proc"], "/proc is not in a cgroup2 file system"),
    (["--cgroup-root", "/no/such/place"], "/no/such/place is not a directory"),
]
"""Of the values that are wrong by themselves only one: tests/config has the others."""


@pytest.mark.parametrize(("words", "expected"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_wrong_flags_are_named(served: Testbed, words: list[str], expected: str) -> None:
    """An unknown flag, an invalid value, or one that cannot work here: status 2."""
    assert expected in complaint(run(served, *words), 2)
    assert still_works(served)


def test_unknown_commands_are_named(served: Testbed) -> None:
    """The error lists the existing commands."""
    assert "'walk'" in complaint(served.cluster.command(served.node, "walk"), 2)


def test_missing_manifests_are_named(served: Testbed) -> None:
    """A directory that does not exist."""
    done = run(served, "--manifests", "/no/such/manifests")
    assert "/no/such/manifests" in complaint(done, done.returncode)
    assert done.returncode in (1, 2)


def test_a_missing_source_of_objects_is_named(served: Testbed) -> None:
    """The agent is outside a pod and has neither a kubeconfig nor a directory."""
    flags = served.cluster.flags(served.node)
    words = [word for word in flags if word not in ("--manifests", flags[1])]
    done = served.cluster.command(served.node, "run", *words)
    complaint(done, 1)
    assert "--kubeconfig" in done.stderr
    assert "--manifests" in done.stderr


def test_missing_root_is_named(served: Testbed) -> None:
    """Another user has none of the capabilities (but reads a checkout in root's home, too)."""
    caps = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *caps]
    done = run(served, before=user)
    line = complaint(done, 1)
    assert "CAP_NET_ADMIN" in line
    assert "CAP_PERFMON" in line
    assert "CAP_BPF" in line
    assert "run as root" in done.stderr


@pytest.mark.parametrize("capability", ["net_admin", "perfmon", "bpf"])
def test_a_missing_capability_is_named(served: Testbed, capability: str) -> None:
    """Root in a container with too few capabilities."""
    drop = f"-{capability}" + ("" if capability == "net_admin" else ",-sys_admin")
    done = run(served, before=["setpriv", f"--bounding-set={drop}", "--"])
    assert f"CAP_{capability.upper()}" in complaint(done, 1)
    assert "capabilities" in done.stderr
    assert still_works(served)


@pytest.fixture
def without_bcc(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which Python cannot import bcc."""
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc" / "__init__.py").write_text("raise ModuleNotFoundError('bcc')\n")
    return {"PYTHONPATH": str(tmp_path)}


def test_missing_bcc_is_named_with_the_package(
    served: Testbed, without_bcc: dict[str, str]
) -> None:
    """Another build would have to be compiled: the Debian package is named, and nothing changes."""
    words = ("--max-node-addresses", "999", "--cache", "none")
    done = run(served, *words, environment=without_bcc)
    assert "bcc" in complaint(done, 1)
    assert "apt-get install python3-bpfcc" in done.stderr
    assert still_works(served)


def test_missing_bcc_does_not_matter_for_a_loaded_build(
    served: Testbed, without_bcc: dict[str, str]
) -> None:
    """The same build is taken over, and nothing is compiled."""
    served.cluster.start(served.node, env={**os.environ, **without_bcc})
    assert still_works(served)
    served.cluster.stop(served.node)


def test_a_missing_bpf_file_system_is_named(served: Testbed) -> None:
    """The pin root is in another file system; the hint is a mount command."""
    path = sandbox.ROOT / "elsewhere"
    words = ["run", *served.cluster.flags(served.node), "--allow-beside"]
    done = served.cluster.command(served.node, *words, pin_root=path)
    assert f"{path} is not in a bpf file system" in complaint(done, 1)
    assert "mount -t bpf" in done.stderr


def test_a_missing_cgroup2_file_system_is_named(served: Testbed) -> None:
    """It is not mounted, and there is no --cgroup-root."""
    hide = ["unshare", "-m", "sh", "-c", 'umount -l -a -t cgroup2; exec "$@"', "-"]
    words = served.cluster.flags(served.node)
    at = words.index("--cgroup-root")
    del words[at : at + 2]
    done = served.cluster.command(served.node, "run", *words, before=hide)
    assert "no cgroup2 file system is mounted" in complaint(done, 1)
    assert "--cgroup-root none" in done.stderr


def test_a_second_agent_is_refused(served: Testbed) -> None:
    """Two agents with one pin root would undo each other's work."""
    served.cluster.start(served.node)
    try:
        assert "another bpfsvc is running" in complaint(run(served), 1)
        assert served.cluster.agents[served.node.name].health().status == 200
    finally:
        served.cluster.stop(served.node)


def test_a_taken_health_port_is_named(served: Testbed) -> None:
    """Another program listens there."""
    other = served.node.serve(10256)
    try:
        assert "10256" in complaint(run(served, "--bind-address-hard-fail"), 2)
        assert still_works(served)
    finally:
        served.node.end(other)


@pytest.mark.slow
def test_when_the_kernel_refuses_new_programs_the_old_ones_keep_working(
    served: Testbed, tmp_path: Path
) -> None:
    """As on a kernel that lacks a feature: its last lines are shown, traffic continues."""
    shutil.copytree(
        Path(bpfsvc.__file__).parent,
        tmp_path / "bpfsvc",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    source = tmp_path / "bpfsvc" / "bpf" / "path" / "agent" / "gc.h"
    text = source.read_text()
    broken = text.replace("return removed;", "return *(volatile int *)8;")
    assert broken != text
    source.write_text(broken)
    done = served.cluster.command(
        served.node, "run", *served.cluster.flags(served.node), cwd=tmp_path
    )
    assert "refuse" in complaint(done, 1)
    assert still_works(served)
