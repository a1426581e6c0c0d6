"""Which suites run, on which clusters, and what becomes of those that cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.cluster import running, suites
from tests.cluster.cluster import Cluster
from tests.cluster.e2e.chunks import CHUNKS
from tests.cluster.errors import ClusterError
from tests.cluster.report import FAILED, PASSED, SKIPPED, Report, Result
from tests.cluster.settings import Settings
from tests.cluster.suites import BASELINE, Kind, Suite

PTP = Kind(cni="ptp")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of a cluster that never is up."""
    return Settings(kubernetes=tmp_path, folder=tmp_path)


@pytest.fixture
def life() -> Iterator[list[str]]:
    """What happened to clusters instead of being done."""
    done: list[str] = []

    def up(cluster: Cluster, proxy: str, *, build: bool) -> None:
        done.append(f"{'build, ' if build else ''}up {proxy} {cluster.settings.cni}")
        if proxy == "kube-proxy":
            raise ClusterError("no kube-proxy")

    with (
        patch.object(Cluster, "up", up),
        patch.object(Cluster, "down", lambda _cluster: done.append("down")),
    ):
        yield done


def passes(name: str, kind: Kind | None = None) -> Suite:
    """Return a suite that passes on the first look."""
    return Suite(
        lambda _cluster, report, _whole: report.add(Result(name, "case")), kind=kind or Kind()
    )


def test_suites_of_one_kind_share_a_cluster(settings: Settings, life: list[str]) -> None:
    report = Report(settings.folder)
    chosen = {"a": passes("a"), "b": passes("b"), "c": passes("c", PTP)}
    running.run_all(settings, report, chosen)
    assert life == ["build, up plain bridge", "down", "up plain ptp", "down"]
    assert [(result.suite, result.status) for result in report.results] == [
        ("a", PASSED),
        ("b", PASSED),
        ("c", PASSED),
    ]


def test_a_cluster_that_does_not_come_up_fails_its_suites_only(
    settings: Settings, life: list[str]
) -> None:
    report = Report(settings.folder)
    chosen = {"a": passes("a", Kind(proxy="kube-proxy")), "b": passes("b")}
    running.run_all(settings, report, chosen)
    assert life == ["build, up kube-proxy bridge", "down", "build, up plain bridge", "down"]
    assert [(result.suite, result.status) for result in report.results] == [
        ("a", FAILED),
        ("b", PASSED),
    ]
    assert "no kube-proxy" in report.results[0].reason


def test_a_suite_that_breaks_off_fails_and_the_next_one_runs(settings: Settings) -> None:
    def breaks(_cluster: Cluster, _report: Report, _whole: bool) -> None:
        raise RuntimeError("no node")

    report = Report(settings.folder)
    running.run_on(Cluster(settings), report, {"a": Suite(breaks), "b": passes("b")})
    assert [(result.suite, result.status) for result in report.results] == [
        ("a", FAILED),
        ("b", PASSED),
    ]


def test_a_suite_that_needs_another_cluster_than_that_which_is_up_is_skipped(
    settings: Settings,
) -> None:
    report = Report(settings.folder)
    running.run_on(Cluster(settings), report, {"a": passes("a", PTP), "b": passes("b")})
    assert [(result.suite, result.status) for result in report.results] == [
        ("a", SKIPPED),
        ("b", PASSED),
    ]
    assert report.results[0].reason == "it needs another cluster: --proxy=plain --cni=ptp"


def test_a_whole_run_has_all_suites_but_that_of_kube_proxy() -> None:
    everything, fast = suites.wanted((), True), suites.wanted((), False)
    assert everything.keys() == suites.SUITES.keys() - {BASELINE}
    assert fast.keys() < everything.keys()
    assert all(suite.fast for suite in fast.values())
    assert list(suites.wanted([BASELINE, "default"], False)) == ["default", BASELINE]


def test_the_chunks_that_suites_name_exist() -> None:
    known = {chunk.name for chunk in CHUNKS}
    for suite in suites.SUITES.values():
        assert known.issuperset(getattr(suite.run, "keywords", {}).get("names", ()))
