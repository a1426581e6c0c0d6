"""The suites of a run: what is tested on a cluster, and which part of it CI has time for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from tests.cluster import helm, isolation, plugin
from tests.cluster.cgroups import Cgroups
from tests.cluster.cluster import Cluster
from tests.cluster.e2e import suite as e2e
from tests.cluster.e2e.chunks import CHUNKS
from tests.cluster.errors import ClusterError
from tests.cluster.load import suite as load
from tests.cluster.migration import suite as migration
from tests.cluster.report import Report
from tests.cluster.settings import Cni, Overlay

BASELINE: Final = "kube-proxy"
"""The suite that bpfsvc is held against; it runs only if it is named."""

DEFAULT: Final = "default"


@dataclass(frozen=True)
class Kind:
    """What a cluster has to be for a suite; ``cgroups``: None if what the machine has will do."""

    proxy: Literal["plain", "kube-proxy"] = "plain"
    cni: Cni = "bridge"
    cgroups: Cgroups | None = None

    def __str__(self) -> str:
        """Return the options of "make cluster" for it."""
        words = [f"--proxy={self.proxy}", f"--cni={self.cni}"]
        return " ".join([*words, f"--cgroups={self.cgroups}"] if self.cgroups else words)


@dataclass(frozen=True)
class Suite:
    """``run`` gets the cluster, the report, and True if it has the time for everything.

    Each begins by deploying what it wants to test. ``fast``: CI runs it. ``kind``: the cluster it
    needs.
    """

    run: Callable[[Cluster, Report, bool], None]
    fast: bool = False
    kind: Kind = Kind()


def _e2e(
    name: str,
    cluster: Cluster,
    report: Report,
    whole: bool,
    *,
    names: Sequence[str] = (),
    flags: Sequence[str] = (),
    overlay: Overlay = "plain",
) -> None:
    """Run chunks of the e2e tests, by their names or all that there is time for.

    They run with bpfsvc by an overlay and with more flags, ``BASELINE`` with what is there.
    """
    chunks = [each for each in CHUNKS if (each.name in names if names else whole or each.fast)]
    _require_one_proxy(cluster, name == BASELINE)
    if name != BASELINE:
        cluster.deploy_bpfsvc(overlay, flags, like_kube_proxy=True)
    with ExitStack() as ending:
        if any(chunk.balancer for chunk in chunks):
            cluster.start_balancer()
            ending.callback(cluster.stop_balancer)
        e2e.run(cluster, report, name, chunks)


def _require_one_proxy(cluster: Cluster, kube_proxy: bool) -> None:
    """Raise ``ClusterError`` if kube-proxy runs and is not to, or the other way around."""
    listed = cluster.get("daemonsets", "--namespace=kube-system")
    seen = {entry["metadata"]["name"] for entry in listed}
    if kube_proxy and seen != {"kube-proxy"}:
        raise ClusterError(
            "this cluster does not have kube-proxy alone",
            "start it by make cluster ARGS='--proxy kube-proxy'",
        )
    if not kube_proxy and "kube-proxy" in seen:
        raise ClusterError("kube-proxy runs on this cluster", "start another one: make cluster")


def _variant(name: str, *flags: str, kind: Kind | None = None) -> Suite:
    """Return the suite of a setting: the chunks that CI has time for, also in a whole run."""
    fast = [chunk.name for chunk in CHUNKS if chunk.fast]
    return Suite(partial(_e2e, name, names=fast, flags=flags), kind=kind or Kind())


def _services(name: str, overlay: Overlay = "plain", kind: Kind | None = None) -> Suite:
    """Return the suite of an overlay or a kind of cluster: only the chunk of Services."""
    return Suite(partial(_e2e, name, names=["services"], overlay=overlay), kind=kind or Kind())


SUITES: Final = {
    "isolation": Suite(isolation.run, fast=True),
    DEFAULT: Suite(partial(_e2e, DEFAULT), fast=True),
    plugin.NAME: Suite(plugin.run, fast=True),
    load.NAME: Suite(load.run, fast=True),
    migration.NAME: Suite(migration.run),
    helm.NAME: Suite(helm.run),
    "socket-lb-off": _variant("socket-lb-off", "--socket-lb=off"),
    "stack": _variant("stack", "--fast-path=off"),
    "iptables": _variant("iptables", "--proxy-mode=iptables"),
    "kubeadm": _services("kubeadm", "kubeadm"),
    "k3s": _services("k3s", "k3s"),
    "ptp": _variant("ptp", kind=Kind(cni="ptp")),
    "unified": _services("unified", kind=Kind(cgroups="unified")),
    BASELINE: Suite(partial(_e2e, BASELINE), kind=Kind(proxy="kube-proxy")),
}
"""By name, in the order in which they run."""


def wanted(names: Sequence[str], whole: bool) -> dict[str, Suite]:
    """Return the suites of a run: those that are named, or those that there is time for."""
    if names:
        return {name: suite for name, suite in SUITES.items() if name in names}
    return {
        name: suite for name, suite in SUITES.items() if suite.fast or (whole and name != BASELINE)
    }
