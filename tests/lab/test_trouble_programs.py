"""Programs of others on interfaces: reported, left alone, and no health if they keep ours out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.datapath import syscall
from bpfsvc.datapath.instructions import Code
from bpfsvc.datapath.loader.creation import load_program
from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.dial import tally
from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import WEB, Testbed, built_testbed, objects

pytestmark = pytest.mark.slow

_SCHED_CLS = 3
"""A type of program (``linux/bpf.h``)."""


@pytest.fixture(scope="module")
def plain() -> Iterator[Testbed]:
    """A lab with a Service of all pods; only the second node has an agent.

    Its programs are foreign ones to the agent of the first.
    """
    with built_testbed(layout="routed") as testbed:
        testbed.cluster.options = ("--attach", "clsact")
        testbed.cluster.put("services", *objects(WEB, testbed.lab.pods))
        testbed.cluster.start(testbed.lab.nodes[1])
        yield testbed


def pinned_program() -> Path:
    """Pin a program that lets each packet pass, and return where."""
    code = Code()
    code.leave(0)
    pin = sandbox.BPF_ROOT / "foreign"
    program = load_program("foreign", _SCHED_CLS, 0, code.finish(), "GPL")
    syscall.pin(program, pin)
    os.close(program)
    return pin


def test_foreign_programs_are_reported_and_left_alone(plain: Testbed) -> None:
    """A program that runs first is a warning, and none is ever changed, not even by cleanup."""
    first, _ = plain.lab.nodes
    program = pinned_program()
    device = plain.lab.pods[1].host_interface
    first.run(["tc", "qdisc", "replace", "dev", device, "clsact"])
    for hook, priority in (("ingress", "1"), ("egress", "60000")):
        first.run(
            [
                "tc",
                "filter",
                "add",
                "dev",
                device,
                hook,
                "prio",
                priority,
                "handle",
                "7",
                "bpf",
                "direct-action",
                "object-pinned",
                str(program),
            ]
        )

    def foreign() -> list[str]:
        return [
            line
            for hook in ("ingress", "egress")
            for line in first.run(["tc", "filter", "show", "dev", device, hook]).stdout.splitlines()
            if "handle 0x7 " in line
        ]

    before = foreign()
    assert len(before) == 2
    plain.cluster.start(first)
    log = plain.cluster.agents[first.name].log
    warnings = [line for line in log.splitlines() if "WARNING" in line]
    assert len(warnings) == 1
    assert f"{device} ingress: another program comes first" in warnings[0]
    assert "--tc-priority" in warnings[0]
    names = {pod.name for pod in plain.lab.pods}
    assert set(tally(plain.pod, WEB.vip(4), 80, count=40)) == names
    assert foreign() == before
    plain.cluster.stop(first)
    assert plain.cluster.command(first, "cleanup").returncode == 0
    first.pin_root.mkdir(exist_ok=True)
    assert foreign() == before


def test_a_taken_priority_and_handle_is_named_and_other_interfaces_are_attached(
    plain: Testbed,
) -> None:
    """The log names the interface and the flag to change."""
    first, second = plain.lab.nodes
    device = plain.lab.pods[1].host_interface
    words = first_filter(second, plain.lab.pods[2].host_interface)
    first.run(["tc", "qdisc", "replace", "dev", device, "clsact"])
    first.run(
        [
            "tc",
            "filter",
            "add",
            "dev",
            device,
            "ingress",
            "prio",
            words["priority"],
            "handle",
            words["handle"],
            "bpf",
            "direct-action",
            "object-pinned",
            str(second.pin_root / "current" / "programs" / "ingress"),
        ]
    )
    plain.cluster.start(first)
    log = plain.cluster.agents[first.name].log
    assert f"{device} is not attached" in log
    assert "--tc-priority" in log
    assert device in plain.cluster.agents[first.name].health().body["notes"]["attachments"]
    assert set(tally(plain.pod, WEB.vip(4), 80, count=40)) == {pod.name for pod in plain.lab.pods}


def test_refusals_of_all_interfaces_are_no_health(plain: Testbed) -> None:
    """/healthz is 503 with the reason, the log and `status` name it, until the kernel agrees."""
    first, second = plain.lab.nodes
    words = first_filter(second, plain.lab.pods[2].host_interface)
    if first.name in plain.cluster.agents:
        plain.cluster.stop(first)
    assert plain.cluster.command(first, "cleanup").returncode == 0
    first.pin_root.mkdir(exist_ok=True)
    devices = ["eth0", *(pod.host_interface for pod in first.pods.values())]
    taken = ("prio", words["priority"], "handle", words["handle"], "bpf", "direct-action")
    program = str(second.pin_root / "current" / "programs" / "ingress")
    for device in devices:
        first.run(["tc", "qdisc", "replace", "dev", device, "clsact"])
        target = ("dev", device, "ingress")
        first.run(["tc", "filter", "replace", *target, *taken, "object-pinned", program])
    plain.cluster.launch(first)
    agent = plain.cluster.agents[first.name]
    agent.expect("eth0 is not attached")

    def reasons() -> dict[str, str]:
        found: dict[str, str] = agent.health().body.get("problems", {})
        return found

    wait(lambda: [*reasons()] == ["refused"], "the problem")
    assert agent.health().status == 503
    reason = "no interface has programs attached: programs cannot be attached to "
    assert reasons()["refused"] == reason + ", ".join(sorted(devices))
    shown = plain.cluster.command(first, "status")
    assert shown.returncode == 1
    assert shown.stdout.startswith(f"UNHEALTHY: {reason}")
    for device in devices:
        first.run(["tc", "qdisc", "del", "dev", device, "clsact"])
    wait(lambda: agent.health().status == 200, "programs are attached", timeout=60)
    assert plain.cluster.command(first, "status").returncode == 0
    assert set(tally(plain.pod, WEB.vip(4), 80, count=40)) == {pod.name for pod in plain.lab.pods}


def first_filter(node: Any, device: str) -> dict[str, str]:
    """Return priority and handle of the agent's filter on an interface, as tc shows them."""
    shown = node.run(["tc", "filter", "show", "dev", device, "ingress"]).stdout
    match = re.search(r"pref (\d+) bpf chain 0 handle (0x[0-9a-f]+)", shown)
    assert match
    return {"priority": match[1], "handle": match[2]}
