"""Remarks about a configuration that is valid: logged once, at start.

* Fields without effect in bpfsvc, with the reason. Only values that differ from the default count,
  because kubeadm writes every field there is.
* Fields that do less than they seem to.
* Fields that name only another address family than the first family of this node. kube-proxy checks
  this once it knows the node. Mostly a warning is enough, as a second family may be added later. On
  a node with one family, where local pods could not be identified at all, kube-proxy does not
  start, and neither does bpfsvc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from bpfsvc.base.address import (
    ANY_NODE_ADDRESS_V4,
    ANY_NODE_ADDRESS_V6,
    cidr_family,
    family,
    pack,
)
from bpfsvc.base.errors import UsageError
from bpfsvc.base.yaml_documents import FieldPath
from bpfsvc.config.config import Config
from bpfsvc.config.fields import plain_values, value_at
from bpfsvc.config.kubeproxy_v1alpha1 import EXTERNAL_IPS, KubeProxyConfiguration
from bpfsvc.config.release import Release, empty_mode_text
from bpfsvc.model import Node
from bpfsvc.services.rules.nodeport_addresses import PRIMARY

_OTHER_DETECTION = "give ranges of the node's own family, or another --detect-local-mode"

_NO_MARK = "packets are not marked"
_AT_ONCE = "changes go into the kernel at once"
_NO_IPVS = "bpfsvc does not use ipvs"
_FEW = "the agent lists once and then watches"
_JSON = "objects are read as JSON"
_WINDOWS = "it is for Windows"

SCHEDULER = ("ipvs", "scheduler")

NO_EFFECT: Mapping[FieldPath, str] = {
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
    SCHEDULER: "it counts in mode ipvs where no --scheduler is given",
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

_USUAL: Mapping[FieldPath, object] = {
    ("logging", "flushFrequency"): 5_000_000_000,
    ("logging", "options"): {"json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"}},
}
"""Other forms of the default: in nanoseconds, and as kubeadm writes it."""


_GATES = {
    "KubeProxyNFTablesLocalhostNodePorts": "NodePorts answer on loopback where nodePortAddresses"
    " has it"
}
"""Why a feature gate has no effect, if the feature is there without it."""


def without_effect(
    given: KubeProxyConfiguration, name: Callable[[FieldPath], str], *, schedules: bool = False
) -> Iterator[str]:
    """Yield each field of a completed document that has no effect, with the reason.

    ``name`` returns the name of a field for people. ``schedules``: ipvs.scheduler has an effect.
    """
    values, defaults = plain_values(given), plain_values(KubeProxyConfiguration())
    for path, reason in NO_EFFECT.items():
        if schedules and path == SCHEDULER:
            continue
        value, default = value_at(values, path), value_at(defaults, path)
        if value not in (default, _USUAL.get(path, default)):
            yield f"{name(path)} ({reason})"
    for gate in sorted(set(given.feature_gates) - {EXTERNAL_IPS}):
        yield f"featureGates.{gate} ({_GATES.get(gate, 'bpfsvc has no such feature')})"


def about_mode(release: Release | None, *, is_empty: bool) -> Iterator[str]:
    """Yield what a mode means that a file gives as "", as kubeadm wrote it until 1.36."""
    if is_empty:
        yield f'mode is "", which is {empty_mode_text(release)}'


def about_node_ports(given: KubeProxyConfiguration) -> Iterator[str]:
    """Yield kube-proxy's warnings about ``nodePortAddresses``."""
    ranges = given.node_port_addresses
    # A keyword may have addresses of both families; the family of one is 0.
    families = {cidr_family(cidr) for cidr in ranges}
    if not ranges:
        yield (
            "nodePortAddresses is not set: NodePorts answer on all addresses of this node"
            f" ({PRIMARY!r} limits them to its primary ones)"
        )
    elif len(families) == 1 and 0 not in families:
        present = families.pop()
        yield (
            f"nodePortAddresses has IPv{present} ranges only: NodePorts answer on all"
            f" IPv{10 - present} addresses of this node"
        )


def sentence(about: str, items: Iterable[str]) -> tuple[str, ...]:
    """Return one sentence with each item once; nothing if there are none."""
    listed = ", ".join(dict.fromkeys(items))
    return (f"{about}: {listed}",) if listed else ()


def about_families(config: Config, node: Node, families: Iterable[int] = (4, 6)) -> tuple[str, ...]:
    """Return warnings about fields that do not fit the address family of the node.

    ``families`` (4, 6) are those enabled on this machine. A node without an address is not judged.
    Raises ``UsageError`` if local pods cannot be identified.
    """
    known = (*config.address_override, *node.addresses)
    if not known:
        return ()
    right = family(known[0])
    wrong = {10 - right}
    mode = config.detection.mode
    clusters = {cidr_family(cidr) for cidr in config.detection.cluster_cidrs}
    pods = {family(network) for network, _ in node.pod_cidrs}
    warnings = []
    if clusters == wrong:
        warnings.append(f"this node is IPv{right}, and clusterCIDR has IPv{10 - right} ranges only")
        if mode == "ClusterCIDR" and set(families) == {right}:
            raise UsageError(warnings[-1], _OTHER_DETECTION)
    if mode == "NodeCIDR" and pods == wrong:
        raise UsageError(f"this node is IPv{right}, and its podCIDRs are not", _OTHER_DETECTION)
    # cidr_family of a keyword is 0.
    if {cidr_family(cidr) for cidr in config.nodeport_addresses} == wrong:
        warnings.append(
            f"this node is IPv{right}, and nodePortAddresses has IPv{10 - right} ranges only"
        )
    served = {"healthzBindAddress": config.healthz, "metricsBindAddress": config.metrics}
    anywhere = (ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6)
    for name, listening in served.items():
        if listening and family(pack(listening[0])) != right and pack(listening[0]) not in anywhere:
            warnings.append(f"this node is IPv{right}, and {name} is {listening[0]}")
    return tuple(warnings)
