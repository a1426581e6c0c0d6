"""Runs suites: on the cluster that is up, or on one after another, each of the kind they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from tests.cluster.cgroups import of_machine
from tests.cluster.cluster import Cluster
from tests.cluster.report import FAILED, SKIPPED, Report, Result
from tests.cluster.settings import Settings
from tests.cluster.suites import Kind, Suite


def run_on(
    cluster: Cluster, report: Report, suites: Mapping[str, Suite], whole: bool = False
) -> None:
    """Run suites on a cluster that is up; those that need another kind are skipped.

    One that breaks off is a failed case of its own, and the next one runs.
    """
    for name, suite in suites.items():
        if not _fits(cluster.settings, suite.kind):
            reason = f"it needs another cluster: {suite.kind}"
            report.add(Result(name, "this cluster can run the suite", SKIPPED, reason=reason))
            continue
        try:
            suite.run(cluster, report, whole)
        except Exception as error:
            reason = str(error) or repr(error)
            report.add(Result(name, "the suite comes to its end", FAILED, reason=reason))


def run_all(
    settings: Settings, report: Report, suites: Mapping[str, Suite], whole: bool = False
) -> None:
    """Start a cluster for each group of suites that need the same kind, one after the other.

    The image of bpfsvc is built for the first one. A cluster that does not come up is a failed case
    of its own.
    """
    built = False
    for kind, group in groupby(suites.items(), lambda item: item[1].kind):
        cluster = Cluster(_settings(settings, kind))
        members = dict(group)
        try:
            cluster.up(kind.proxy, build=not built)
            built = built or kind.proxy != "kube-proxy"
            run_on(cluster, report, members, whole)
        except Exception as error:
            reason = str(error) or repr(error)
            for name in members:
                report.add(Result(name, f"a cluster comes up: {kind}", FAILED, reason=reason))
        finally:
            cluster.down()


def _settings(settings: Settings, kind: Kind) -> Settings:
    """Return the settings of a cluster of this kind."""
    return replace(settings, cni=kind.cni, cgroups=kind.cgroups or of_machine())


def _fits(settings: Settings, kind: Kind) -> bool:
    """True if a cluster with these settings is of this kind, whatever serves its Services."""
    return _settings(settings, kind) == settings
