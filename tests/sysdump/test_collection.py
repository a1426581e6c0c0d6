"""What is collected, and how often the agent is asked for it."""

from __future__ import annotations

import os
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import pytest

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.config.loading import CommandLine, load, make_config
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.sysdump import collection, host
from bpfsvc.sysdump.collection import Subject, write_sysdump


class CountingAgent:
    """An agent that remembers nothing."""

    asked: ClassVar[Counter[str]] = Counter()

    def __init__(self, _pin_root: Path) -> None:
        pass

    def history(self, _namespace: str, _name: str) -> list[object]:
        self.asked["history"] += 1
        return []

    def failed(self, _namespace: str, _name: str) -> list[object]:
        self.asked["failed"] += 1
        return []

    def failures(self) -> None:
        self.asked["failures"] += 1


def no_facts(_plan: object) -> None:
    raise BpfsvcError("doctor has no part in this")


@pytest.mark.parametrize("anonymous", [False, True])
def test_the_agent_is_asked_once_for_its_history(
    anonymous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "AgentAnswers", CountingAgent)
    monkeypatch.setattr(collection, "collect", no_facts)
    monkeypatch.setattr(host, "COMMANDS", {})
    monkeypatch.setattr(CountingAgent, "asked", Counter())
    documents = load(CommandLine(names={}))
    config = make_config(documents, "node-1", None)
    subject = Subject(PinRoot(tmp_path), "node-1", documents, config, None)
    write_sysdump(BytesIO(), subject, 1 << 20, anonymous=anonymous)
    assert CountingAgent.asked == {"history": 1, "failed": 1, "failures": 1}


def pod_log(root: Path, pod: str, text: str, written: int) -> None:
    path = root / pod / "agent" / "0.log"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    os.utime(path, (written, written))


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node without an agent that answers, and without a journal."""
    monkeypatch.setattr(host, "POD_LOGS", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    return tmp_path


def test_of_several_pods_the_log_that_was_written_last_is_taken(pods: Path) -> None:
    pod_log(pods, "kube-system_bpfsvc-zzzzz_1", "of last week\n", 1_000)
    pod_log(pods, "kube-system_bpfsvc-abcde_2", "of now\n", 2_000)
    pod_log(pods, "prod_shop-0_3", "of another\n", 3_000)
    assert host.agents_log(PinRoot(pods)) == "of now\n"


def test_a_long_log_begins_with_a_whole_line(pods: Path) -> None:
    line = "x" * 99 + "\n"
    pod_log(pods, "kube-system_bpfsvc-abcde_1", line * 50_000, 1_000)
    text = host.agents_log(PinRoot(pods))
    assert text.startswith(line)
    assert 4_000_000 < len(text) <= 4 << 20


def test_a_node_without_a_log_is_one_line(pods: Path) -> None:
    with pytest.raises(BpfsvcError, match="there is no log of a Pod or in the journal"):
        host.agents_log(PinRoot(pods))
