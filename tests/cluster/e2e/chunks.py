"""Which of Kubernetes' e2e tests are run, in which groups.

The patterns are regular expressions of Go, matched against the full name of a spec.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_NETWORK = r"\[sig-network\] "

NEVER = (
    # These restart parts of a control plane that runs as pods, or machines of a cloud.
    r"\[Disruptive\]",
    r"Provider:GCE",
    # These want kube-proxy itself: its counters, or its DaemonSet in place of its static pods.
    r"KubeProxyNFAcct",
    r"KubeProxyDaemonSetMigration",
    # These want a DNS server of a certain make, or the internet.
    r"PerformanceDNS",
    r"Networking-DNS",
    r"Networking-IPv",
    # The node's SCTP module must not be loaded, and here all nodes share one kernel.
    r"SCTPConnectivity",
)
"""What no run has, but where a chunk says so."""


@dataclass(frozen=True)
class Chunk:
    """A part of the e2e tests.

    ``focus``: a pattern of its specs; ``skip``: patterns of those that are not run all the same.
    ``within``: the chunk whose focus has its specs, too. ``fast``: runs in CI. ``balancer``: wants
    a load balancer beside the nodes. ``alone``: nothing may run beside it.
    """

    name: str
    focus: str
    skip: tuple[str, ...] = NEVER
    within: str = ""
    fast: bool = True
    balancer: bool = False
    alone: bool = False


CHUNKS = (
    Chunk("services", _NETWORK + "Services should"),
    Chunk(
        "networking",
        _NETWORK
        + r"Networking (Granular Checks: Services|should (check|provide unch|allow creating))",
    ),
    Chunk("dual-stack", _NETWORK + r"\[Feature:IPv6DualStack\]"),
    Chunk(
        "objects",
        _NETWORK + r"(Conntrack|EndpointSlice|EndpointsController|KubeProxy|Traffic Distribution"
        r"|Service CIDRs|ServiceCIDR|HostPort|Topology Hints|API Server)",
    ),
    Chunk("pods", _NETWORK + r"(Proxy version|Connectivity Pod Lifecycle|NoSNAT)"),
    Chunk("latency", _NETWORK + "Service endpoints latency", fast=False, alone=True),
    Chunk(
        "affinity-timeout",
        _NETWORK + "Services should have session affinity timeout",
        within="services",
        fast=False,
    ),
    Chunk(
        "restart",
        _NETWORK + "Services should work after restarting kube-proxy",
        skip=(),
        within="services",
        fast=False,
        alone=True,
    ),
    Chunk("load-balancers", _NETWORK + "LoadBalancers", fast=False, balancer=True),
)


def patterns(chunks: Sequence[Chunk]) -> tuple[list[str], list[str]]:
    """Return what a run of these chunks focuses on, and what it skips."""
    names = {chunk.name for chunk in chunks}
    skipped = [pattern for chunk in chunks for pattern in chunk.skip]
    skipped += [one.focus for one in CHUNKS if one.within in names and one not in chunks]
    return [chunk.focus for chunk in chunks], list(dict.fromkeys(skipped))


def runs(chunks: Sequence[Chunk]) -> Iterator[list[Chunk]]:
    """Yield the chunks in the groups that run at the same time."""
    together = [chunk for chunk in chunks if not chunk.alone]
    if together:
        yield together
    yield from ([chunk] for chunk in chunks if chunk.alone)
