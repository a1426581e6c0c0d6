"""Commands beside a running agent have the settings of that agent, unless flags say otherwise."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from bpfsvc.devtools.lab.cluster import COMMAND
from bpfsvc.devtools.lab.patience import stretched
from tests.lab.testbed import Testbed, built_testbed


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """A node whose agent has an API server, and pins in a place of its own."""
    with built_testbed(layout="routed", served=True) as made:
        made.cluster.start(made.node)
        yield made


def command(testbed: Testbed, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the node, as ``kubectl exec`` does: without any of the agent's flags."""
    process = testbed.node.popen(
        [*COMMAND, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, errors = process.communicate(timeout=stretched(30))
    return subprocess.CompletedProcess(words, process.returncode, str(output), str(errors))


def findings(testbed: Testbed, *words: str) -> dict[str, list[dict[str, Any]]]:
    done = command(testbed, "doctor", "-o", "json", *words)
    assert done.stderr == ""
    by_subject: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        by_subject.setdefault(finding["subject"], []).append(finding)
    return by_subject


def test_doctor_examines_the_settings_of_the_agent(testbed: Testbed) -> None:
    found = findings(testbed)
    assert found["config"][0]["finding"].startswith("as of the agent that runs here (process ")
    (api_server,) = found["api server"]
    assert (api_server["level"], "can be reached" in api_server["finding"]) == ("ok", True)
    assert str(testbed.node.cgroup) in found["cgroup"][0]["finding"]


def test_a_flag_wins_over_the_setting_of_the_agent(testbed: Testbed) -> None:
    found = findings(testbed, "--cgroup-root", "none", "--kubeconfig", "/none")
    assert str(testbed.node.cgroup) not in json.dumps(found["cgroup"])
    assert "/none" in found["api server"][0]["finding"]


def test_other_commands_find_the_pins_of_the_agent(testbed: Testbed) -> None:
    status = command(testbed, "status")
    assert (status.returncode, status.stderr) == (0, "")
    assert status.stdout.startswith("healthy")
    assert command(testbed, "maps", "dump", "settings").returncode == 0
    elsewhere = command(testbed, "status", "--pin-root", "/none")
    assert "nothing is pinned at /none" in elsewhere.stdout
