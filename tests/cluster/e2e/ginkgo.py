"""Runs Kubernetes' e2e tests: ``e2e.test`` by ginkgo, on the machine ``api``."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.e2e import junit
from tests.cluster.e2e.chunks import Chunk, patterns, runs
from tests.cluster.errors import ClusterError

_PROCESSES = 6
"""At the same time; most of their time they wait."""

_LONGEST_SECONDS = 3 * 3600


def run(cluster: Cluster, chunks: Sequence[Chunk], folder: Path) -> dict[str, junit.Outcome]:
    """Run chunks and return the outcomes, by the names of the specs.

    ``folder`` gets the JUnit and the log of each part. ``ClusterError`` if a part does not come to
    its end.
    """
    outcomes: dict[str, junit.Outcome] = {}
    for part in runs(chunks):
        outcomes |= _run_part(cluster, part, folder / "-".join(chunk.name for chunk in part))
    return outcomes


def _run_part(cluster: Cluster, part: Sequence[Chunk], folder: Path) -> dict[str, junit.Outcome]:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("junit*.xml"):
        old.unlink()
    log = folder / "log"
    programs = cluster.settings.bin
    with log.open("w") as output:
        process = cluster.popen(
            _command(cluster, part, folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=folder,
            env={
                **os.environ,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "KUBECONFIG": str(cluster.settings.kubeconfig),
            },
        )
        try:
            process.wait(_LONGEST_SECONDS)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    reports = sorted(folder.glob("junit*.xml"))
    if not reports:
        last = log.read_text().strip().rpartition("\n")[2]
        raise ClusterError(f"the e2e tests left no report: {last}", f"see {log}")
    return junit.read(reports)


def _command(cluster: Cluster, part: Sequence[Chunk], folder: Path) -> list[str]:
    """Return the command line of ginkgo for some chunks."""
    programs = cluster.settings.bin
    focused, skipped = patterns(part)
    return [
        str(programs / "ginkgo"),
        "run",
        f"--procs={_PROCESSES}",
        f"--timeout={_LONGEST_SECONDS}s",
        "--no-color",
        "--silence-skips",
        "--slow-spec-threshold=10m",
        *(f"--focus={pattern}" for pattern in focused),
        *(f"--skip={pattern}" for pattern in skipped),
        str(programs / "e2e.test"),
        "--",
        "--provider=skeleton",
        f"--num-nodes={len(cluster.nodes)}",
        f"--kubeconfig={cluster.settings.kubeconfig}",
        f"--report-dir={folder}",
        f"--kubectl-path={programs / 'kubectl'}",
        "--node-os-distro=debian",
        "--dump-logs-on-failure=false",
        "--allowed-not-ready-nodes=0",
    ]
