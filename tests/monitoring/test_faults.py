"""Each alert fires when its fault is made, and ends when it is mended: at a real Prometheus.

The rules are those of deploy/monitoring with all durations divided, and nothing else changed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import pytest

from bpfsvc.devtools.lab import sandbox
from bpfsvc.devtools.lab.patience import stretched
from tests.monitoring.fault import Fault
from tests.monitoring.faults import OF_ALL, SIDE_BY_SIDE
from tests.monitoring.files import DURATION, alerts, rules, shortened
from tests.monitoring.scene import FACTOR, ROLLOUT_FACTOR, Alerts, Scene, running_scene

FIRES_WITHIN, ENDS_WITHIN = 100.0, 60.0

NOT_MADE: Mapping[str, str] = {}
"""Alerts whose fault no lab can make, each with the reason: today there is none."""


def test_every_alert_has_a_fault_or_a_reason_why_there_is_none() -> None:
    made = [name for fault in (*SIDE_BY_SIDE, *OF_ALL) for name in fault.alerts]
    assert set(made) | NOT_MADE.keys() == alerts().keys()
    assert not set(made) & NOT_MADE.keys()
    assert all(reason.endswith(".") for reason in NOT_MADE.values())


@pytest.mark.parametrize("factor", [FACTOR, ROLLOUT_FACTOR])
def test_shorter_rules_differ_from_the_real_ones_in_durations_alone(factor: int) -> None:
    """Without its durations the text of a rule is the same, and each duration is divided."""
    short = [rule for group in shortened(rules(), factor)["groups"] for rule in group["rules"]]
    for rule, real in zip(short, alerts().values(), strict=True):
        assert DURATION.sub("", rule["expr"]) == DURATION.sub("", real["expr"])
        assert {**rule, "expr": "", "for": ""} == {**real, "expr": "", "for": ""}
        assert rule.keys() == real.keys()
        before = DURATION.findall(f"{real['expr']} {real.get('for', '')}")
        after = DURATION.findall(f"{rule['expr']} {rule.get('for', '')}")
        seconds = {"m": 60, "h": 3600}
        assert [int(number) * seconds[unit] * 1000 for number, unit in before] == [
            int(number) * factor for number, _ in after
        ]
        # Every duration has been seen: PromQL has them after these, and nowhere else.
        assert len(re.findall(r"\[|\boffset\b", real["expr"])) + ("for" in real) == len(before)


class Row:
    """Makes one fault and mends it, in a thread of its own."""

    def __init__(self, fault: Fault, scene: Scene, seen: Alerts) -> None:
        self._fault, self._scene, self._seen = fault, scene, seen

    def run(self) -> list[str]:
        """Return what went wrong."""
        about = f"{self._fault.made.__name__}, {', '.join(self._fault.alerts)}"
        try:
            return [f"{about}: {text}" for text in self._run()]
        except Exception as error:
            return [f"{about}: {type(error).__name__}: {error}"]

    def _run(self) -> list[str]:
        fault, scene = self._fault, self._scene
        fired: set[str] = set()

        def all_fire() -> bool:
            fired.update(self._firing())
            return fired >= set(fault.alerts)

        with fault.made(scene) as act:
            if not self._within(FIRES_WITHIN, all_fire, act):
                return [f"{sorted(set(fault.alerts) - fired)} did not fire"]
        if not self._within(ENDS_WITHIN, lambda: not self._firing(), lambda: fault.after(scene)):
            return [f"{sorted(self._firing())} did not end"]
        return []

    def _within(self, limit: float, reached: Callable[[], bool], act: Callable[[], object]) -> bool:
        """Act until a state is reached; False if it is not in time."""
        ends_at = time.monotonic() + stretched(limit)
        while time.monotonic() < ends_at:
            act()
            if reached():
                return True
        return False

    def _firing(self) -> set[str]:
        fault, scene = self._fault, self._scene
        instance = scene.instance(fault.part) if fault.part else ""
        firing = self._seen.next(fault.factor)
        return {alert["alertname"] for alert in firing if fault.is_told_by(alert, instance)}


def failures(scene: Scene, seen: Alerts, faults: Sequence[Fault]) -> list[str]:
    """Make faults at the same time, each for as long as it needs; return what went wrong."""
    with ThreadPoolExecutor(len(faults)) as threads:
        rows = [threads.submit(Row(fault, scene, seen).run) for fault in faults]
        # Four looks a second, and no more traffic than that makes.
        while wait(rows, 0.25).not_done:
            with suppress(OSError):
                seen.look()
        return [text for row in rows for text in row.result()]


@pytest.mark.slow
def test_every_alert_fires_when_its_fault_is_made_and_ends_when_it_is_mended(
    tmp_path: Path,
) -> None:
    """It is one test, because faults that are made at the same time need one lab."""
    sandbox.require()
    with running_scene(tmp_path) as scene:
        seen = Alerts(scene.servers)
        wrong = failures(scene, seen, SIDE_BY_SIDE)
        wrong += failures(scene, seen, OF_ALL)
        for agent in scene.cluster.agents.values() if wrong else ():
            print(f"the log of the agent of {agent.node.name}:\n{agent.log}")
    assert wrong == []
