"""What was asked for and has no effect here, said once, with the reason.

Only what differs from its default was asked for: kubeadm writes every field there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bpfsvc.nodeports import PRIMARY
from bpfsvc.settings import addresses, defaults
from bpfsvc.settings.fitting import plain_values
from bpfsvc.settings.shape import KubeProxy
from bpfsvc.sources.yamltext import Path

EXTERNAL_IPS = "AllowServiceExternalIPs"
"""The only feature gate that has a meaning here."""

_NO_MARK = "packets are not marked"
_AT_ONCE = "changes go into the kernel at once"
_RANDOM = "a backend is chosen at random"
_NO_IPVS = "there is no ipvs"
_FEW = "the agent asks for little: lists once, then watches"
_JSON = "objects are read as JSON"
_WINDOWS = "it is for Windows"

NO_EFFECT: Mapping[Path, str] = {
    ("clientConnection", "acceptContentTypes"): _JSON,
    ("clientConnection", "contentType"): _JSON,
    ("clientConnection", "qps"): _FEW,
    ("clientConnection", "burst"): _FEW,
    ("configSyncPeriod",): "changes are watched",
    ("iptables", "masqueradeBit"): _NO_MARK,
    ("iptables", "minSyncPeriod"): _AT_ONCE,
    ("nftables", "masqueradeBit"): _NO_MARK,
    ("nftables", "minSyncPeriod"): _AT_ONCE,
    ("ipvs", "minSyncPeriod"): _AT_ONCE,
    ("ipvs", "scheduler"): _RANDOM,
    ("ipvs", "excludeCIDRs"): _NO_IPVS,
    ("ipvs", "strictARP"): _NO_IPVS,
    ("ipvs", "tcpTimeout"): _NO_IPVS,
    ("ipvs", "tcpFinTimeout"): _NO_IPVS,
    ("ipvs", "udpTimeout"): _NO_IPVS,
    ("logging", "flushFrequency"): "messages are written at once",
    ("logging", "vmodule"): "only -v counts",
    ("logging", "options"): "messages go to stderr as they come",
    ("portRange",): "kube-proxy ignores it too",
    ("showHiddenMetricsForVersion",): "no metric is hidden",
    ("windowsRunAsService",): _WINDOWS,
    ("winkernel",): _WINDOWS,
}

_USUAL: Mapping[Path, object] = {
    ("logging", "flushFrequency"): 5_000_000_000,
    ("logging", "options"): {"json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"}},
}
"""The default, as it may stand there too: in nanoseconds, and as kubeadm writes it."""


def without_effect(given: KubeProxy, name: Callable[[Path], str]) -> Iterator[str]:
    """Give each field of completed settings that asks in vain, with the reason."""
    asked = plain_values(given)
    usual = plain_values(defaults.complete(KubeProxy()))
    for path, reason in NO_EFFECT.items():
        value, default = _at(asked, path), _at(usual, path)
        if value not in (default, _USUAL.get(path, default)):
            yield f"{name(path)} ({reason})"
    for gate in sorted(set(given.feature_gates) - {EXTERNAL_IPS}):
        yield f"{name(('featureGates', gate))} (there is no such feature here)"


def doubtful(given: KubeProxy) -> Iterator[str]:
    """Give the warnings of kube-proxy about settings that say less than they seem to."""
    ranges = given.node_port_addresses
    families = {addresses.range_family(each) for each in ranges if each != PRIMARY}
    if not ranges:
        yield (
            "nodePortAddresses is not set: NodePorts answer on all addresses of this node"
            f" ({PRIMARY!r} would be its own alone)"
        )
    elif len(families) == 1:
        present = families.pop()
        yield (
            f"nodePortAddresses has IPv{present} ranges only: NodePorts answer on all"
            f" IPv{10 - present} addresses of this node"
        )


def sentence(about: str, items: Iterable[str]) -> tuple[str, ...]:
    """Put items, each once, into one sentence; none if there are none."""
    listed = ", ".join(dict.fromkeys(items))
    return (f"{about}: {listed}",) if listed else ()


def _at(values: Mapping[str, Any], path: Path) -> Any:
    found: Any = values
    for step in path:
        found = found[step]
    return found
