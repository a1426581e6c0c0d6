"""Agents that die, come back and are replaced while traffic flows, and that leave no trace.

Not one connection or datagram of the load may fail.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.datapath.syscall import program_id
from bpfsvc.devtools.lab.dial import ask, connect, tally
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.objects import service_cidr
from bpfsvc.devtools.lab.patience import wait
from tests.lab.mixed_load import mixed_load, work_on
from tests.lab.other_build import FIELD, copy_with_another_layout
from tests.lab.testbed import ONE, WEB, Testbed, built_testbed, objects

OPTIONS = ("--max-node-addresses", "1000")
"""Makes another build: its digest differs, and one map with it."""


@pytest.fixture(scope="module")
def running() -> Iterator[Testbed]:
    """A lab with one Service of all pods and one of a single pod."""
    with built_testbed(layout="routed") as testbed:
        lab, cluster = testbed
        cluster.put("services", *objects(WEB, lab.pods), *objects(ONE[2], lab.pods[2:3]))
        cluster.start()
        yield testbed


def test_kill_and_restart_lose_nothing(running: Testbed) -> None:
    """Killed or stopped, the agent leaves its entries in the kernel, and the next one uses them."""
    node, cluster = running.node, running.cluster
    for end in (cluster.kill, cluster.stop):
        with mixed_load(running) as loads:
            end(node)
            work_on(loads)
            cluster.start(node)
    assert "replacing an older build" not in cluster.agents[node.name].log


def test_changes_made_while_no_agent_runs_arrive_with_the_next(running: Testbed) -> None:
    """The next agent applies the changes, and older connections continue."""
    node, cluster = running.node, running.cluster
    with connect(running.pod, ONE[2].vip(4), 80) as conversation:
        assert conversation.who().pod == running.lab.pods[2].name
        cluster.kill(node)
        cluster.put(
            "services", *objects(WEB, running.lab.pods), *objects(ONE[2], running.lab.pods[3:])
        )
        assert ask(running.pod, ONE[2].vip(4), 80).pod == running.lab.pods[2].name
        cluster.start(node)
        assert ask(running.pod, ONE[2].vip(4), 80).pod == running.lab.pods[3].name
        assert conversation.echo(bytes(10_000))
    cluster.apply(
        "services", *objects(WEB, running.lab.pods), *objects(ONE[2], running.lab.pods[2:3])
    )


def test_networks_of_services_that_went_while_no_agent_ran_guard_nothing_any_more(
    running: Testbed,
) -> None:
    """The next agent makes them what they are, also where there are none."""
    node, cluster = running.node, running.cluster
    cluster.apply("networks", service_cidr("10.97.0.0/16", name="more"))
    assert _service_networks(node) == 1
    cluster.kill(node)
    cluster.drop("networks")
    cluster.start(node)
    assert _service_networks(node) == 0


def _service_networks(node: LabNode) -> int:
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        return len(list(pinned.map("service_networks").items()))
    finally:
        pinned.close()


def test_another_build_takes_over_under_load(running: Testbed) -> None:
    """New programs and a map of another size replace the old ones."""
    _take_over(running, options=OPTIONS)


@pytest.mark.slow
def test_a_changed_layout_takes_over_under_load(running: Testbed, tmp_path: Path) -> None:
    """A newer version whose connections have one field more carries all of them over."""
    copy_with_another_layout(tmp_path)
    _take_over(running, checkout=tmp_path)
    pinned = Pinned(PinRoot(running.node.pin_root).current)
    assert FIELD in pinned.layout.maps["connections"].value.names
    pinned.close()


def _take_over(testbed: Testbed, options: Sequence[str] = (), checkout: Path | None = None) -> None:
    node, cluster = testbed.node, testbed.cluster
    with mixed_load(testbed, pause=0.01) as loads:  # the compiler wants a core too
        cluster.kill(node)
        work_on(loads)
        cluster.start(node, options=options, cwd=checkout)
    assert "replacing an older build" in cluster.agents[node.name].log


# -- cleanup ---------------------------------------------------------------------------------------

_RESERVED = "net.ipv4.ip_local_reserved_ports"


def _traces(node: LabNode) -> dict[str, object]:
    """Return everything that an agent could have changed on a node.

    Qdiscs and filters of every interface, the sysctl, pins, and the programs of the cgroup, which
    the kernel lists, whichever program attached them. (tcx links are not shown by every bpftool;
    that none is left is proven by their programs, which they would keep loaded.)
    """
    found: dict[str, object] = {"reserved": node.sysctl(_RESERVED)}
    for name in node.interfaces():
        found[name] = [
            node.run(["tc", *words.split(), "dev", name, *hook]).stdout
            for words, hook in (
                ("qdisc show", []),
                ("filter show", ["ingress"]),
                ("filter show", ["egress"]),
            )
        ]
    found["pins"] = sorted(str(path) for path in node.pin_root.rglob("*"))
    found["cgroup"] = node.run(["bpftool", "cgroup", "show", str(node.cgroup)]).stdout
    return found


def _programs(node: LabNode) -> list[int]:
    """Return the ids of all programs that an agent has pinned."""
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        pins = (pinned.directory / "programs").iterdir()
        return [program_id(pinned.program(pin.name)) for pin in pins]
    finally:
        pinned.close()


def _is_loaded(program: int) -> bool:
    words = ["bpftool", "prog", "show", "id", str(program)]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "way"), [("routed", "auto"), ("bridge", "clsact")])
def test_cleanup_removes_every_trace(layout: str, way: str) -> None:
    """Afterwards everything is as it was, what others own included, and programs are unloaded."""
    with built_testbed(layout=layout) as testbed:
        node, cluster = testbed.node, testbed.cluster
        node.sysctl(_RESERVED, "8080,20000-20010")
        node.run(["tc", "qdisc", "add", "dev", testbed.pod.host_interface, "clsact"])
        before = _traces(node)
        cluster.put("services", *objects(WEB, testbed.lab.pods))
        cluster.start(options=["--attach", way])
        ask(testbed.pod, WEB.vip(4), 80)
        during = _traces(node)
        assert {"reserved", "pins", "cgroup"} <= {
            name for name in before if before[name] != during[name]
        }
        programs = _programs(node)
        refused = cluster.command(node, "cleanup")
        assert refused.returncode == 1
        assert "another bpfsvc is running" in refused.stderr
        assert tally(testbed.pod, WEB.vip(4), 80, count=1) != {"timeout": 1}
        cluster.stop(node)
        done = cluster.command(node, "cleanup")
        assert done.returncode == 0, done.stderr
        assert "nothing of bpfsvc is left here" in done.stdout
        node.pin_root.mkdir(exist_ok=True)
        assert _traces(node) == before
        wait(lambda: not any(map(_is_loaded, programs)), "programs are unloaded")
        # The other node's agent noticed nothing.
        assert set(tally(testbed.lab.pods[2], WEB.vip(4), 80, count=20)) <= {
            pod.name for pod in testbed.lab.pods
        }
        again = cluster.command(node, "cleanup")
        assert (again.returncode, again.stderr) == (0, "")
        node.pin_root.mkdir(exist_ok=True)
        cluster.start(node)
        assert ask(testbed.pod, WEB.vip(4), 80).remote == "10.96.0.10:80"
