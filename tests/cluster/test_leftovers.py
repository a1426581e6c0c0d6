"""Pods that specs have left to end are removed, and no others."""

from __future__ import annotations

from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.e2e.suite import end_leftovers


class Answering(Cluster):
    """Has three pods, and notes what kubectl is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def get(self, kind: str, *words: str) -> list[dict[str, Any]]:
        """Return a pod that stays, one that is ending, and one of the system that is ending."""
        assert (kind, words) == ("pods", ("--all-namespaces",))
        ending = {"deletionTimestamp": "2026-01-01T00:10:00Z"}
        return [
            {"metadata": {"name": "stays", "namespace": "services-1"}},
            {"metadata": {"name": "ends", "namespace": "services-1"} | ending},
            {"metadata": {"name": "agent", "namespace": "kube-system"} | ending},
        ]

    def kubectl(self, *words: str, stdin: str | None = None, timeout: float | None = None) -> str:
        """Note the words."""
        assert (stdin, timeout) == (None, None)
        self.asked.append(words)
        return ""


def test_only_pods_of_specs_that_are_ending_are_removed() -> None:
    cluster = Answering()
    end_leftovers(cluster)
    assert [words[:5] for words in cluster.asked] == [("delete", "pod", "ends", "-n", "services-1")]
