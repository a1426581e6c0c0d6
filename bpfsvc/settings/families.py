"""Settings that name only the address family that this node does not have first.

kube-proxy looks at this once it knows the node, and so it stands apart: the file alone does not
tell. Most of it is worth a warning, as a second family may come one day. Where pods could not be
told from strangers at all, on a node that has one family, kube-proxy does not start, nor do we.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bpfsvc.address import family, pack
from bpfsvc.config import Config
from bpfsvc.errors import UsageError
from bpfsvc.model import Node
from bpfsvc.nodeports import PRIMARY
from bpfsvc.settings import addresses

_CHOOSE = "give ranges of the node's own family, or another --detect-local-mode"


def of_machine() -> tuple[int, ...]:
    """Give the families that this machine has; both are served wherever they can be."""
    disabled = Path("/proc/sys/net/ipv6/conf/all/disable_ipv6")
    has_v6 = Path("/proc/net/if_inet6").exists() and disabled.read_text().strip() == "0"
    return (4, 6) if has_v6 else (4,)


def doubts(config: Config, node: Node, families: Iterable[int] = (4, 6)) -> tuple[str, ...]:
    """Give what is worth a warning, for the node as it is known.

    ``families`` (4, 6) are those that this machine has. Raises ``UsageError`` where pods cannot be
    told from strangers; a node without an address is not judged.
    """
    known = (*config.address_override, *node.addresses)
    if not known:
        return ()
    right = family(known[0])
    wrong = {10 - right}
    alone = set(families) == {right}
    mode = config.detection.mode
    ranges = {addresses.range_family(each) for each in config.detection.cluster_cidrs}
    pods = {family(network) for network, _ in node.pod_cidrs}
    nodeports = {addresses.range_family(each) for each in config.nodeport_addresses}
    found = []
    if ranges == wrong:
        found.append(f"this node is IPv{right}, and clusterCIDR has IPv{10 - right} ranges only")
        if mode == "ClusterCIDR" and alone:
            raise UsageError(found[-1], _CHOOSE)
    if mode == "NodeCIDR" and pods == wrong:
        raise UsageError(f"this node is IPv{right}, and its podCIDRs are not", _CHOOSE)
    if PRIMARY not in config.nodeport_addresses and nodeports == wrong:
        found.append(
            f"this node is IPv{right}, and nodePortAddresses has IPv{10 - right} ranges only"
        )
    for name, at in (
        ("healthzBindAddress", config.healthz),
        ("metricsBindAddress", config.metrics),
    ):
        if at and family(pack(at[0])) != right and pack(at[0]) not in addresses.UNSPECIFIED:
            found.append(f"this node is IPv{right}, and {name} is {at[0]}")
    return tuple(found)
