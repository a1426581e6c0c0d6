"""Three clients of the Services under load: a pod, a pod with the host's network, and outside.

Each opens 170 connections and 20 UDP flows a second to ``rolled``, and holds 20 connections and 4
flows to ``kept`` with a request on each every 100 ms; half of everything by IPv4, half by IPv6. The
pods use the Services' addresses, outside uses NodePorts, of one node by IPv4 and of another by
IPv6. (A held flow to ``rolled`` would stay with a backend until that has gone, with any proxy: it
loses what it sends between the end of the process and the news of it.)
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

from bpfsvc.devtools.lab.patience import wait
from tests.cluster import addresses
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.load import objects
from tests.cluster.load.tool import Counts, Job, NoReport, Report, command, read_report

RATE: Final = 170
"""New TCP connections a second, of each client."""
HELD: Final = 20
"""Held TCP connections of each client."""
FLOWS: Final = 4
"""Held UDP flows of each client."""
LOOKUPS: Final = 20
"""New UDP flows a second, of each client."""

AFTERWARDS: Final = 11.0
"""Seconds of load after what was done to the cluster: longer than an answer is waited for."""
_OPENED_SECONDS = 60
_LONGEST = 1800  # seconds, if the run does not end a load
_LATEST: Final = 20
"""Lines that hold a client's last counts, if only these are wanted."""

POD, HOST, OUTSIDE = "pod", "host", "outside"


class LoadFailed(ClusterError):
    """Connections failed or were cut, or the load did not come about."""


def folder(cluster: Cluster) -> Path:
    """Return the folder of what these tests build and write."""
    return cluster.settings.folder / "under-load"


def wait_for(condition: Callable[[], bool], about: str, seconds: float) -> None:
    """Wait like the lab, but look once a second: kubectl takes more CPU time than the clients."""
    looked = 0.0

    def holds() -> bool:
        nonlocal looked
        if time.monotonic() < looked + 1:
            time.sleep(0.1)
            return False
        looked = time.monotonic()
        return condition()

    wait(holds, about, seconds)


def apply(cluster: Cluster, *wanted: objects.Object) -> None:
    """Apply objects."""
    cluster.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted}))


class Target(NamedTuple):
    """Where a client finds a Service: its addresses, IPv4 first, and ports for TCP and UDP."""

    places: tuple[str, str]
    tcp: int
    udp: int


def _spec(cluster: Cluster, name: str) -> dict[str, Any]:
    words = ("get", "service", name, "-n", objects.NAMESPACE, "-o", "json")
    return dict(json.loads(cluster.kubectl(*words))["spec"])


def cluster_target(cluster: Cluster, name: str) -> Target:
    """Return the Service's own addresses and ports."""
    spec = _spec(cluster, name)
    v4, v6 = sorted(spec["clusterIPs"], key=lambda text: ip_address(text).version)
    tcp, udp = (port["port"] for port in spec["ports"])
    return Target((v4, v6), tcp, udp)


def node_port_target(cluster: Cluster, name: str, nodes: tuple[str, str]) -> Target:
    """Return the NodePorts of the Service, on one node by IPv4 and on the other by IPv6."""
    tcp, udp = (port["nodePort"] for port in _spec(cluster, name)["ports"])
    v4, v6 = (cluster.nodes[name].host for name in nodes)
    return Target((str(v4.v4), str(v6.v6)), tcp, udp)


HELD_JOB: Final = 1
"""The place of the held connections by IPv4 among a client's jobs."""


def jobs(rolled: Target, kept: Target) -> list[Job]:
    """Return what one client does."""
    made: list[Job] = []
    for number in (0, 1):
        to, stays = rolled.places[number], kept.places[number]
        made += [
            Job("connect", "tcp", to, rolled.tcp, RATE // 2),
            Job("hold", "tcp", stays, kept.tcp, HELD // 2),
            Job("connect", "udp", to, rolled.udp, LOOKUPS // 2),
            Job("hold", "udp", stays, kept.udp, FLOWS // 2),
        ]
    return made


@dataclass
class Clients:
    """The three clients, running within ``with``.

    ``nodes``: where the pod is, and where the host's pod is. ``entrances``: the nodes whose
    NodePorts outside uses. ``rolled``, ``kept``: the Services. ``also``: what outside does besides.
    """

    cluster: Cluster
    nodes: tuple[str, str]
    entrances: tuple[str, str]
    rolled: str = "rolled"
    kept: str = "kept"
    also: Sequence[Job] = ()

    def __enter__(self) -> Clients:
        with ExitStack() as unless_complete:
            unless_complete.callback(self.__exit__)
            self._start()
            wait_for(self._opened, "all held connections are open", _OPENED_SECONDS)
            unless_complete.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._outside.terminate()
        self._outside.wait()
        words = ("delete", "--namespace", objects.NAMESPACE, "--ignore-not-found")
        self.cluster.kubectl(*words, f"pod/client-{POD}", f"pod/client-{HOST}")

    def _start(self) -> None:
        names = (self.rolled, self.kept)
        entrance = jobs(*(node_port_target(self.cluster, name, self.entrances) for name in names))
        program = folder(self.cluster) / "load"
        with self._log.open("w") as output:
            self._outside = self.cluster.popen(
                command(program, _LONGEST, [*entrance, *self.also]),
                on=addresses.OUTSIDE.name,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        inside = jobs(*(cluster_target(self.cluster, name) for name in names))
        words = command("/load", _LONGEST, inside)
        pods = zip((POD, HOST), self.nodes, strict=True)
        apply(
            self.cluster,
            *(objects.client(f"client-{host}", node, host == HOST, words) for host, node in pods),
        )

    @property
    def _log(self) -> Path:
        return folder(self.cluster) / "outside.log"

    def reports(self, lines: int = -1) -> dict[str, Report]:
        """Return what each client has reported last; ``NoReport`` if one has not yet.

        ``lines``: read only so many of the last ones, without the events before.
        """
        told = {}
        for name in (POD, HOST):
            words = ("logs", "-n", objects.NAMESPACE, f"client-{name}", f"--tail={lines}")
            text = self.cluster.kubectl(*words)
            told[name] = read_report(text.splitlines())
        told[OUTSIDE] = read_report(self._log.read_text().splitlines())
        return told

    def _opened(self) -> bool:
        try:
            reports = self.reports(_LATEST)
        except (NoReport, ClusterError):
            return False
        return all(report.open == int(report.job.rpartition(",")[2]) for report in _held(reports))

    def let_go(self) -> None:
        """End the held connections, and wait until they have ended; the new ones go on."""
        for node in set(self.nodes):
            for number in self.cluster.enter(node, ["pgrep", "-x", "load"]).split():
                self.cluster.enter(node, ["kill", "-s", "USR1", number])
        self._outside.send_signal(signal.SIGUSR1)
        self.until(
            lambda reports: not any(report.open for report in _held(reports)),
            "the held connections have ended",
            _OPENED_SECONDS,
        )

    def go_on(self, seconds: float = AFTERWARDS) -> dict[str, Report]:
        """Wait until each client has reported for so many more seconds; return these reports."""
        before = {name: report.seconds for name, report in self.reports(_LATEST).items()}
        return self.until(
            lambda reports: all(
                report.seconds >= before[name] + seconds for name, report in reports.items()
            ),
            f"the clients go on for {seconds} s",
            seconds + 30,
        )

    def until(
        self, condition: Callable[[dict[str, Report]], bool], what: str, seconds: float
    ) -> dict[str, Report]:
        """Wait until a condition holds of the reports; return those that follow."""
        wait_for(lambda: condition(self.reports(_LATEST)), what, seconds)
        return self.reports()


def _held(reports: dict[str, Report]) -> list[Counts]:
    """Return the counts of the jobs that hold connections or flows."""
    return [
        counts
        for report in reports.values()
        for counts in report.jobs
        if counts.job.startswith(("hold", "keep"))
    ]


_TOLD: Final = 5
"""Failures of each client in the message; the file has all."""

_TITLES: Final = {
    "new connections": "connect,tcp",
    "held connections": "hold,tcp",
    "long connections": "keep,tcp",
    "new UDP flows": "connect,udp",
    "held UDP flows": "hold,udp",
}


def figures(reports: dict[str, Report]) -> dict[str, object]:
    """Return the sums over all clients, for the table."""
    counts = [job for report in reports.values() for job in report.jobs]
    sums: dict[str, object] = {
        name: sum(count.ok for count in counts if count.job.startswith(prefix))
        for name, prefix in _TITLES.items()
        if any(report.job.startswith(prefix) for report in counts)
    }
    for name in ("failed", "cut", "slow"):
        sums[name] = sum(getattr(report, name) for report in counts)
    return sums


def describe(reports: dict[str, Report]) -> list[str]:
    """Return the counts of every client as lines, and what was told of failures."""
    lines = []
    for name, report in reports.items():
        for title, prefix in _TITLES.items():
            of = [counts for counts in report.jobs if counts.job.startswith(prefix)]
            if not of:
                continue
            seen = len({backend for counts in of for backend in counts.backends})
            lines.append(f"{name:8} {title:16} {_total(of)}, {seen} backends")
        lines += [f"{name:8} {event}" for event in report.events]
    return lines


def _total(counts: Sequence[Counts]) -> str:
    """Return counts as text, for example ``12040 ok, 0 failed, 0 cut, 3 slow (at most 1.02 s)``."""
    names = ("ok", "failed", "cut", "slow")
    text = ", ".join(f"{sum(getattr(each, name) for each in counts)} {name}" for name in names)
    return f"{text} (at most {max(count.slowest for count in counts):.2f} s)"


def judge(reports: dict[str, Report]) -> None:
    """Raise ``LoadFailed``, with the first failures of each client, if any failed or was cut."""
    counts = [job for report in reports.values() for job in report.jobs]
    failed, cut = sum(count.failed for count in counts), sum(report.cut for report in counts)
    if failed or cut:
        lines = [f"{failed} failed, {cut} cut"]
        for name, report in reports.items():
            told = [event for event in report.events if " slow: " not in event]
            lines += [f"{name:8} {event}" for event in told[:_TOLD]]
        raise LoadFailed("\n".join(lines))
