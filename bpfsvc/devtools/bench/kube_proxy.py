"""The real kube-proxy, given as a binary: run on a node of a lab until it has written its rules.

It reads an API server, which must have its Node. On SIGTERM it leaves its rules, which end with
the node's namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from http.client import HTTPException
from ipaddress import IPv4Network
from pathlib import Path

from bpfsvc.devtools.bench.baselines import BaselineFailed, TooSlow
from bpfsvc.devtools.bench.modes import Layout
from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import stretched
from bpfsvc.devtools.lab.supply import kubeconfig

_HEALTH_PORT, _METRICS_PORT = 10256, 10249
_SYNCED = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
_QUEUED = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds"
_POLL = 0.02
_PATIENCE = 2.0  # seconds for its end


class RealKubeProxy:
    """One running kube-proxy; a context manager that ends it.

    ``server``: a kubeconfig, or the URL of a server without authentication, such as the lab's;
    ``layout``: its ``--proxy-mode``; ``log``: a file for its output, beside which a kubeconfig is
    written if ``server`` is a URL; ``tools``: a directory of programs that it takes before others.
    """

    def __init__(
        self,
        node: LabNode,
        binary: Path,
        server: Path | str,
        layout: Layout,
        pods: IPv4Network,
        log: Path,
        tools: Path | None = None,
    ) -> None:
        if not os.access(binary, os.X_OK):
            raise BaselineFailed(f"{binary} is no program that could be run")
        if isinstance(server, str):
            url, server = server, log.with_suffix(".kubeconfig")
            server.write_text(json.dumps(kubeconfig(url)))
        self._node, self._log = node, log
        words = [
            str(binary),
            f"--proxy-mode={layout}",
            f"--cluster-cidr={pods}",
            f"--hostname-override={node.name}",
            f"--kubeconfig={server}",
            # The lab's server knows no other encoding.
            "--kube-api-content-type=application/json",
            # The limit of connections belongs to the machine, and so does its memory.
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--oom-score-adj=0",
        ]
        environment = dict(os.environ)
        if tools:
            environment["PATH"] = f"{tools}:{environment['PATH']}"
        self.started = time.monotonic()
        with log.open("wb") as stream:
            self._process = node.popen(
                words, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env=environment
            )
        self.pid = self._process.pid

    def __enter__(self) -> RealKubeProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ready(self, limit: float = 60.0) -> float:
        """Wait until it is healthy and has written its rules; return seconds since its start.

        Health is not enough: before its first sync kube-proxy reports that it is healthy.
        """
        limit = stretched(limit)
        while not self._is_ready():
            if self._process.poll() is not None:
                lines = self._log.read_text().strip().splitlines()
                last = lines[-1] if lines else "it printed nothing"
                raise BaselineFailed(f"kube-proxy of {self._node.name} ended: {last}")
            if time.monotonic() - self.started > limit:
                raise TooSlow(f"kube-proxy of {self._node.name} not ready within {limit:g} s")
            time.sleep(_POLL)
        return time.monotonic() - self.started

    def has_caught_up(self) -> bool:
        """Return True if its rules have all changes that it knows of, in both families."""
        metrics = self._metrics()
        queued, done = by_family(metrics, _QUEUED), by_family(metrics, _SYNCED)
        return all(done.get(family, 0) >= when for family, when in queued.items())

    def stop(self) -> None:
        """End it; its rules stay."""
        self._process.terminate()
        try:
            self._process.wait(stretched(_PATIENCE))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        try:
            if http_request(self._node, "127.0.0.1", _HEALTH_PORT, "/healthz")[0] != 200:
                return False
            return synced(self._metrics())
        except (OSError, HTTPException):
            return False

    def _metrics(self) -> str:
        return http_request(self._node, "127.0.0.1", _METRICS_PORT, "/metrics")[1].decode()


def legacy_iptables(directory: Path) -> Path | None:
    """Make a directory in which iptables is the legacy one; return None where there is none.

    By nftables, which is the usual iptables of Debian, it needs minutes for 10,000 Services.
    """
    legacy = shutil.which("iptables-legacy")
    if legacy is None:
        return None
    directory.mkdir()
    for family in ("iptables", "ip6tables"):
        for act in ("", "-save", "-restore"):
            (directory / f"{family}{act}").symlink_to(Path(legacy).resolve())
    return directory


def place_of_rule(rules: str, address: str) -> tuple[int, int]:
    """Return the place of the first rule for TCP to an address, from 1, and how many there are.

    The place is 0 if there is no such rule.

    ``rules``: the output of ``iptables -S`` for a chain. First packets try the rules one after the
    other, in the order in which kube-proxy writes them; the order is new at each start.
    """
    appended = [line for line in rules.splitlines() if line.startswith("-A ")]
    words = f" -d {address}/32 -p tcp "
    places = (number for number, line in enumerate(appended, 1) if words in line)
    return next(places, 0), len(appended)


def version(binary: Path) -> str:
    """Return the version that a kube-proxy names; an empty text if it names none."""
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    named = done.stdout.strip().removeprefix("Kubernetes ")
    # What a build without a version prints ends with a mark of the archive's maker.
    return named.partition("+$")[0]


def synced(metrics: str) -> bool:
    """Return True if kube-proxy's metrics show a first sync of the IPv4 rules."""
    return any(
        when > 0 for family, when in by_family(metrics, _SYNCED).items() if "IPv6" not in family
    )


def by_family(metrics: str, name: str) -> dict[str, float]:
    """Return the labels of a metric -> its value; kube-proxy's have the family."""
    samples = (line.rpartition(" ") for line in metrics.splitlines() if line.startswith(name))
    return {labels.removeprefix(name): float(value) for labels, _, value in samples}
