"""The e2e tests as a suite of a run: what they found goes into the report."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from tests.cluster import figures
from tests.cluster.cluster import Cluster
from tests.cluster.e2e import expected, ginkgo
from tests.cluster.e2e.chunks import Chunk
from tests.cluster.e2e.expected import Expectation
from tests.cluster.e2e.junit import Outcome
from tests.cluster.report import FAILED, PASSED, SKIPPED, Report, Result


def run(cluster: Cluster, report: Report, name: str, chunks: Sequence[Chunk]) -> None:
    """Run chunks with bpfsvc as it is deployed, and report them as the suite ``name``."""
    began, before = time.monotonic(), figures.sample(cluster)
    outcomes = ginkgo.run(cluster, chunks, cluster.results / name)
    seconds = time.monotonic() - began
    end_leftovers(cluster)
    known, limits = expected.load(), expected.load_limits(name)
    bad = {fault.spec: fault.problem for fault in expected.faults(outcomes, known, limits)}
    why = {spec: f"fails with kube-proxy, too: {each.reason}" for spec, each in known.items()}
    why |= {spec: f"cannot pass with this setting: {reason}" for spec, reason in limits.items()}
    results = [_result(name, outcome, bad, why) for outcome in outcomes.values()]
    report.add(*results)
    counts = Counter(result.status for result in results)
    report.add(
        Result(
            name,
            f"Kubernetes' e2e tests: {', '.join(chunk.name for chunk in chunks)}",
            FAILED if bad or not counts[PASSED] else PASSED,
            seconds,
            _summary(bad),
            {status: counts[status] for status in (PASSED, FAILED, SKIPPED)}
            | _of_kube_proxy(outcomes, known)
            | figures.used(before, figures.sample(cluster)),
        )
    )


def end_leftovers(cluster: Cluster) -> None:
    """Remove pods of specs that are still ending: a drain would wait for them, for ten minutes."""
    for pod in cluster.get("pods", "--all-namespaces"):
        about = pod["metadata"]
        if "deletionTimestamp" in about and about["namespace"] != "kube-system":
            now = ("--grace-period=0", "--force", "--ignore-not-found")
            cluster.kubectl("delete", "pod", about["name"], "-n", about["namespace"], *now)


def _of_kube_proxy(
    outcomes: Mapping[str, Outcome], known: Mapping[str, Expectation]
) -> dict[str, object]:
    passed = sum(1 for spec in outcomes if spec in known and known[spec].kube_proxy == PASSED)
    return {"passed by kube-proxy": passed}


def _result(suite: str, outcome: Outcome, bad: Mapping[str, str], why: Mapping[str, str]) -> Result:
    """Return one spec's result; a failure that is expected, with its reason, fails no run."""
    status, reason = outcome.status, outcome.reason
    if outcome.spec in bad:
        status, reason = FAILED, bad[outcome.spec]
    elif status == FAILED:
        status, reason = SKIPPED, why[outcome.spec]
    return Result(suite, outcome.spec, status, outcome.seconds, reason, listed=False)


def _summary(bad: Mapping[str, str]) -> str:
    """Return the names of the specs that are worse than expected."""
    return "; ".join(bad) or "nothing passed"
