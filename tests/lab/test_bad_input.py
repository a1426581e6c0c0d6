"""What goes wrong before an agent begins: one clear line, one way out, and nothing is disturbed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import bpfsvc
from bpfsvc.lab import sandbox
from bpfsvc.lab.dial import tally
from tests.lab.scene import WEB, Scene, built, objects

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def served() -> Iterator[Scene]:
    """One node whose agent has done its work and ended: what it left must go on working."""
    with built(layout="routed", nodes=1) as scene:
        scene.cluster.put("services", *objects(WEB, scene.lab.pods))
        scene.cluster.start()
        scene.cluster.stop(scene.node)
        yield scene


def complaint(done: Done, status: int) -> str:
    """Give the line that says what is wrong; there must be exactly one, and one with a way out."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith("Error: ")
    assert second.startswith("Hint: ")
    return first


def run(
    scene: Scene,
    *options: str,
    before: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> Done:
    """Try to run an agent whose options come after the usual ones."""
    return scene.cluster.command(
        scene.node,
        "run",
        *scene.cluster.flags(scene.node),
        *options,
        before=before,
        env={**os.environ, **(environment or {})},
    )


def still_works(scene: Scene) -> bool:
    """Whether what the first agent left serves all kinds of clients."""
    names = {pod.name for pod in scene.lab.pods}
    return all(
        set(tally(place, WEB.vip(family), 80, count=30)) == names
        for place in (scene.pod, scene.node)
        for family in (4, 6)
    )


WRONG = [
    (["--frobnicate"], "--frobnicate"),
    (["--cluster-cidr", "10.244.0.0/33"], "10.244.0.0/33"),
    (["--cluster-cidr", "10.0.0.0/9,10.128.0.0/9"], "one CIDR per family"),
    (["--healthz-bind-address", "localhost"], "'localhost'"),
    (["--masquerade-ports", "10000"], "'10000'"),
    (["--masquerade-ports", "30000-31000"], "NodePorts 30000-32767"),
    (["--masquerade-ports", "20000-40000"], "overlaps the ports this node gives"),
    (["--service-node-port-range", "0-10"], "--service-node-port-range 0-10"),
    (["--nodeport-addresses", "primary,10.0.0.0/8"], "'primary'"),
    (["--detect-local-mode", "BridgeInterface"], "BridgeInterface says nothing by itself"),
    (["--max-frontends", "0"], "--max-frontends"),
    (["--max-services", "many"], "'many'"),
    (["--tc-priority", "70000"], "70000"),
    (["--hostname-override", " "], "--hostname-override"),
    (["--cgroup-root", "/proc"], "/proc is not in a cgroup2 file system"),
    (["--cgroup-root", "/no/such/place"], "/no/such/place is not a directory"),
    (["surplus"], "surplus"),
]


@pytest.mark.parametrize(("words", "named"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_wrong_flags_are_named(served: Scene, words: list[str], named: str) -> None:
    """An unknown flag, a value that is none, or one that cannot work here: status 2."""
    assert named in complaint(run(served, *words), 2)
    assert still_works(served)


def test_unknown_commands_are_named(served: Scene) -> None:
    """The commands there are stand beside the one there is not."""
    assert "'walk'" in complaint(served.cluster.command(served.node, "walk"), 2)


def test_missing_manifests_are_named(served: Scene) -> None:
    """A directory that does not exist."""
    done = run(served, "--manifests", "/no/such/manifests")
    assert "/no/such/manifests" in complaint(done, done.returncode)
    assert done.returncode in (1, 2)


def test_an_api_server_that_nobody_named_is_asked_for(served: Scene) -> None:
    """Outside a pod, without a kubeconfig and without a directory."""
    flags = served.cluster.flags(served.node)
    words = [word for word in flags if word not in ("--manifests", flags[1])]
    found = served.cluster.command(served.node, "run", *words)
    complaint(found, 1)
    assert "--kubeconfig" in found.stderr
    assert "--manifests" in found.stderr


def test_no_root_is_said(served: Scene) -> None:
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
def test_a_missing_capability_is_named(served: Scene, capability: str) -> None:
    """A root of a container that was given too little."""
    drop = f"-{capability}" + ("" if capability == "net_admin" else ",-sys_admin")
    done = run(served, before=["setpriv", f"--bounding-set={drop}", "--"])
    assert f"CAP_{capability.upper()}" in complaint(done, 1)
    assert "capabilities" in done.stderr
    assert still_works(served)


@pytest.fixture
def without_bcc(tmp_path: Path) -> dict[str, str]:
    """An environment in which no Python finds bcc."""
    (tmp_path / "bcc").mkdir()
    (tmp_path / "bcc" / "__init__.py").write_text("raise ModuleNotFoundError('bcc')\n")
    return {"PYTHONPATH": str(tmp_path)}


def test_missing_bcc_is_said_with_the_package(served: Scene, without_bcc: dict[str, str]) -> None:
    """Another build would have to be compiled: the Debian package is named, and nothing changes."""
    done = run(served, "--max-node-addresses", "999", environment=without_bcc)
    assert "bcc" in complaint(done, 1)
    assert "apt-get install python3-bpfcc" in done.stderr
    assert still_works(served)


def test_missing_bcc_does_not_matter_to_what_is_loaded(
    served: Scene, without_bcc: dict[str, str]
) -> None:
    """The same build is adopted, and nothing is compiled."""
    served.cluster.start(served.node, env={**os.environ, **without_bcc})
    assert still_works(served)
    served.cluster.stop(served.node)


def test_no_bpf_file_system_is_said(served: Scene) -> None:
    """A pin root in another file system; the way out is a mount."""
    place = sandbox.ROOT / "elsewhere"
    words = ["run", *served.cluster.flags(served.node), "--allow-beside"]
    found = served.cluster.command(served.node, *words, pin_root=place)
    assert f"{place} is not in a bpf file system" in complaint(found, 1)
    assert "mount -t bpf" in found.stderr


def test_no_cgroup2_is_said(served: Scene) -> None:
    """Nowhere mounted, and no --cgroup-root given."""
    hide = ["unshare", "-m", "sh", "-c", 'umount -l -a -t cgroup2; exec "$@"', "-"]
    words = served.cluster.flags(served.node)
    at = words.index("--cgroup-root")
    del words[at : at + 2]
    done = served.cluster.command(served.node, "run", *words, before=hide)
    assert "no cgroup2 file system is mounted" in complaint(done, 1)
    assert "--cgroup-root none" in done.stderr


def test_a_second_agent_is_refused(served: Scene) -> None:
    """Two agents with one pin root would undo each other's work."""
    served.cluster.start(served.node)
    try:
        assert "another bpfsvc is running" in complaint(run(served), 1)
        assert served.cluster.agents[served.node.name].health().status == 200
    finally:
        served.cluster.stop(served.node)


def test_a_taken_health_port_is_named(served: Scene) -> None:
    """Somebody else listens there."""
    other = served.node.serve(10256)
    try:
        assert "10256" in complaint(run(served, "--bind-address-hard-fail"), 2)
        assert still_works(served)
    finally:
        served.node.end(other)


def test_programs_the_kernel_refuses_leave_the_old_ones_in_force(
    served: Scene, tmp_path: Path
) -> None:
    """As on a kernel that lacks a feature: its last words are shown, and traffic goes on."""
    shutil.copytree(
        Path(bpfsvc.__file__).parent,
        tmp_path / "bpfsvc",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    source = tmp_path / "bpfsvc" / "bpf" / "collect.h"
    text = source.read_text()
    broken = text.replace("return removed;", "return *(volatile int *)8;")
    assert broken != text
    source.write_text(broken)
    done = served.cluster.command(
        served.node, "run", *served.cluster.flags(served.node), cwd=tmp_path
    )
    assert "refuse" in complaint(done, 1)
    assert still_works(served)
