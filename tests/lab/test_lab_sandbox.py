"""The lab and the machine that it is on: what is made is removed, and nothing else is touched."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.base.errors import SystemUnfit
from bpfsvc.datapath.attach.cgroup import find_cgroup_root
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.topology import Lab
from tests.lab.traces import descriptors, traces


@pytest.fixture(scope="module")
def routed() -> Iterator[Lab]:
    with Lab("routed") as built:
        yield built


def test_lab_leaves_nothing_behind() -> None:
    """Afterwards there is no process, no named namespace, no cgroup and no pin of the lab."""
    before, opened = traces(), descriptors()
    with Lab("bridge", "vxlan", cni_masquerade=True) as lab:
        lab.serve()
        children = [lab.nodes[0].popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=-1)]
        assert children[0].stdout is not None
        grandchild = int(children[0].stdout.readline())
        children += [child for pod in lab.pods for child in pod.children]
        (lab.nodes[0].pin_root / "deeper").mkdir()
        assert traces() != before
    assert traces() == before
    assert descriptors() == opened
    assert all(child.returncode is not None for child in children)
    assert not _runs(grandchild)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_lab_is_built_in_less_than_a_second() -> None:
    """Two nodes with two pods each, bridges and tunnels included; the processor's time counts."""
    start = time.process_time()
    with Lab("bridge", "vxlan"):
        assert time.process_time() - start < 1


def test_lab_is_refused_outside_the_sandbox(routed: Lab) -> None:
    """In any namespace but the sandbox's own, nothing is built and the error says what to do."""
    advice = r"bpfsvc\.devtools\.lab\.sandbox --"
    with routed.pods[0].entered(), pytest.raises(SystemUnfit, match=advice):
        Lab()


def test_an_agent_without_a_cgroup_root_takes_the_sandboxs() -> None:
    """In place of the machine's, which is mounted where an agent looks first."""
    assert find_cgroup_root().samefile(sandbox.CGROUP_ROOT)


def test_sandbox_ends_what_its_command_left_running() -> None:
    """The command's status is returned, its remaining processes are ended, no cgroup remains."""
    with Lab(nodes=1, pods_per_node=1) as lab:
        command = "sleep 60 & echo $!; ls /run/netns | wc -l; exit 7"
        process = lab.client.popen(
            [sys.executable, "-m", "bpfsvc.devtools.lab.sandbox", "--", "sh", "-c", command],
            stdout=-1,
        )
        output, _ = process.communicate(timeout=10)
    left, named = output.split()
    assert process.returncode == 7
    assert int(named) == 0
    assert not _runs(int(left))
    assert not list(sandbox.CGROUP_ROOT.glob("bpfsvc-lab-*"))


def test_what_a_sandbox_runs_takes_sigint_though_it_was_started_in_the_background(
    routed: Lab,
) -> None:
    """A shell lets what it starts in the background ignore SIGINT, and its children inherit that.
    But the tests of this sandbox send it."""
    work = "import signal; print(signal.getsignal(signal.SIGINT).__name__)"
    sandboxed = [
        sys.executable,
        "-m",
        "bpfsvc.devtools.lab.sandbox",
        "--",
        sys.executable,
        "-c",
        work,
    ]
    shell = ["sh", "-c", '"$@" & wait $!', "sh", *sandboxed]
    process = routed.client.popen(shell, stdout=-1)
    output, _ = process.communicate(timeout=10)
    assert output.split() == [b"default_int_handler"]
