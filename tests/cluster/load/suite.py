"""The suite "under load": Services are used, the cluster changes, and no connection notices.

A connection that fails or is cut, and a datagram without an answer, fails its scenario; the table
has the counts. "slow" are answers after more than 0.9 s: mostly a packet that was lost and
sent again, or a machine that had other things to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.load import clients, objects, scenarios, tool
from tests.cluster.load.changed_image import compile_changed, make_changed_image
from tests.cluster.load.clients import Clients
from tests.cluster.oci import Contents, Image
from tests.cluster.product import ARCHIVE
from tests.cluster.report import Report

NAME: Final = "under-load"
_CHANGED_IMAGE: Final = "docker.io/bpfsvc-test/changed-layout:1"

_WHILE_IT_ENDS: Final = 11.0
"""Seconds for which connections to a terminating backend have to go on."""

Action = Callable[[Cluster], object]


def run(cluster: Cluster, report: Report, whole: bool, only: str = "") -> None:
    """Deploy bpfsvc and run the scenarios, those that CI has time for or the whole.

    ``only``: those with this in their name.
    """
    cluster.deploy_bpfsvc()
    add_images(cluster)
    scenarios.set_up(cluster)
    for name, scenario in _SCENARIOS.items():
        if only in name and (whole or only or name in _FAST):
            with report.case(NAME, name) as figures:
                scenario(cluster, figures)
    scenarios.tear_down(cluster)


def add_images(cluster: Cluster) -> None:
    """Build the load generator, and put its image on all nodes."""
    folder = clients.folder(cluster)
    program = tool.build(folder)
    layer = Contents(files={"load": program}).write(folder / "load.layer.tar")
    archive = folder / "load.oci.tar"
    Image(names=[objects.IMAGE], layers=[layer], entrypoint=["/load"]).write(archive)
    cluster.add_image(archive)


@contextmanager
def _load(
    cluster: Cluster, figures: dict[str, object], kept: str = "kept", host: str = scenarios.BUSY
) -> Iterator[Clients]:
    """The clients while the block runs and for a while after; nothing may have failed."""
    with scenarios.clients(cluster, kept, host) as running:
        yield running
        account(running.go_on(), cluster, figures)


def account(
    reports: dict[str, tool.Report], cluster: Cluster, figures: dict[str, object], name: str = NAME
) -> None:
    """Note the counts: the sums for the table, those of each client in a file; judge them."""
    figures.update(clients.figures(reports))
    with (cluster.results / f"{name}.txt").open("a") as file:
        print(time.strftime("%H:%M:%S"), *clients.describe(reports), sep="\n", file=file)
    clients.judge(reports)


def _during(action: Action, cluster: Cluster, figures: dict[str, object]) -> None:
    with _load(cluster, figures):
        action(cluster)


def _drain(cluster: Cluster, figures: dict[str, object]) -> None:
    try:
        with _load(cluster, figures, host=scenarios.QUIET):
            scenarios.drain(cluster)
    finally:
        scenarios.uncordon(cluster)


def add_changed_image(cluster: Cluster) -> str:
    """Put an image of bpfsvc with other map layouts on all nodes, and return its name."""
    changed = clients.folder(cluster) / "changed-layout.oci.tar"
    compiled = compile_changed(clients.folder(cluster) / "changed-layout")
    make_changed_image(cluster.settings.folder / ARCHIVE, _CHANGED_IMAGE, changed, compiled)
    cluster.add_image(changed)
    return _CHANGED_IMAGE


def _change_layout(cluster: Cluster, figures: dict[str, object]) -> None:
    changed = add_changed_image(cluster)
    before = scenarios.image(cluster)
    try:
        with _load(cluster, figures):
            scenarios.replace_image(cluster, changed)
            scenarios.replace_image(cluster, before)
    finally:
        scenarios.replace_image(cluster, before)


def _terminate(cluster: Cluster, figures: dict[str, object]) -> None:
    """Held connections lead to a backend that is deleted; another takes the new ones."""
    with scenarios.clients(cluster, kept="leaving") as running:
        leaving = scenarios.delete_leaving(cluster)
        before = running.reports()
        reports = running.go_on(_WHILE_IT_ENDS)
        if not scenarios.exists(cluster, leaving):
            raise ClusterError(f"pod {leaving} ended before its time", "see the kubelet's log")
        account(reports, cluster, figures)
        for name, client in reports.items():
            held = client.jobs[clients.HELD_JOB].since(before[name].jobs[clients.HELD_JOB])
            assert held.backends.keys() == {leaving}, f"{name}: answers by {held.backends}"


Scenario = Callable[[Cluster, dict[str, object]], None]

_BOTH: Final = "backends and agents are rolled at once"
_LAYOUT: Final = "the agents get an image with other map layouts, and the first one again"
_SCENARIOS: Final[dict[str, Scenario]] = {
    "backends are rolled": partial(_during, scenarios.roll_backends),
    "the agents are rolled": partial(_during, scenarios.roll_agents),
    _BOTH: partial(_during, scenarios.roll_both),
    "every agent is killed": partial(_during, scenarios.kill_agents),
    "a node is drained": _drain,
    "the API server is away for a minute": partial(_during, scenarios.lose_api_server),
    _LAYOUT: _change_layout,
    "a backend is deleted, and its connections go on until it ends": _terminate,
}
_FAST: Final = frozenset({_BOTH, _LAYOUT})
