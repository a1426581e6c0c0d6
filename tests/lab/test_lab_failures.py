"""A lab that cannot be built or removed: the error says why, and nothing is left."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.namespace import LabError
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.pod import LabPod
from bpfsvc.devtools.lab.topology import Lab
from tests.lab.traces import descriptors, traces


@pytest.mark.parametrize("holds_pods", [False, True], ids=["pods outside", "pods below"])
@pytest.mark.parametrize(
    ("owner", "step", "good"),
    [(LabNode, "masquerade_pods", 1), (links, "await_address", 3)],
    ids=["before any pod", "half of a pod"],
)
def test_a_lab_that_cannot_be_built_raises_the_cause_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, good: int, holds_pods: bool
) -> None:
    """``good``: how often the step succeeds before it fails."""
    before, opened = traces(), descriptors()
    calls, act = itertools.count(), getattr(owner, step)

    def fail(*words: Any) -> Any:
        if next(calls) == good:
            raise LabError("this went wrong first")
        return act(*words)

    monkeypatch.setattr(owner, step, fail)
    with (
        pytest.raises(LabError, match="this went wrong first"),
        Lab(families=(4,), cni_masquerade=True, holds_pods=holds_pods),
    ):
        pass
    assert traces() == before
    assert descriptors() == opened


def test_closing_a_node_continues_after_failures_and_raises_the_first_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In this test closing each pod fails."""
    before, end = traces(), LabPod.close

    def fail(pod: LabPod) -> None:
        end(pod)
        raise LabError(f"{pod.name} said no")

    monkeypatch.setattr(LabPod, "close", fail)
    with pytest.raises(LabError, match="pod-1-1 said no"), Lab(nodes=1, holds_pods=True):
        pass
    assert traces() == before
