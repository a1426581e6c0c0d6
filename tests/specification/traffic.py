"""Random flows that mostly hit frontends of a random cluster."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.specification.clients import HOST
from tests.specification.clusters import (
    OTHER_NODE_IP,
    POD_IPS,
    UNALLOCATED,
    clusters,
    mostly,
)
from tests.specification.frontends import frontends
from tests.specification.objects import Raw

LOOPBACK = {4: "127.0.0.1", 6: "::1"}
STRANGERS = {4: ["203.0.113.2", "203.0.113.130"], 6: ["2600:5200::1", "2001:db8::99"]}
LOCAL_PODS = {4: "10.180.0.9", 6: "fd00:10:180::9"}


class Target(NamedTuple):
    """Where a flow goes."""

    address: str
    port: int
    protocol: str


@st.composite
def cases(draw: st.DrawFn, max_flows: int = 8) -> dict[str, Any]:
    """Draw a case: a cluster and flows, without what is expected of them."""
    cluster = draw(clusters())
    found = draw(st.lists(flows(cluster), min_size=1, max_size=max_flows))
    named = [{"id": f"random/{number:02}", **flow} for number, flow in enumerate(found, start=1)]
    return {**cluster, "flows": named}


@st.composite
def flows(draw: st.DrawFn, cluster: Raw) -> dict[str, Any]:
    """Draw a flow to a frontend, or one time in ten to something near."""
    target = draw(targets(cluster))
    family = 6 if ":" in target.address else 4
    came_from, source = draw(clients(cluster, target, family))
    flow = {
        "from": came_from,
        "src_ip": source,
        "proto": target.protocol,
        "dst_ip": target.address,
        "dst_port": target.port,
    }
    if came_from not in HOST:
        flow["in_iface"] = draw(
            st.sampled_from({"pod": ["cbr0", "veth1"]}.get(came_from, ["eth0"]))
        )
    return flow


def targets(cluster: Raw) -> SearchStrategy[Target]:
    """Draw from all frontends; rarely, an address without a frontend."""
    found, near = [], [Target(address, 80, "TCP") for address in UNALLOCATED.values()]
    for one in frontends(cluster):
        family, protocol = one.port.family, one.port.protocol
        own = [str(one.address)] if one.address else node_ips(cluster, family)
        found += [Target(address, one.number, protocol) for address in own]
        if one.address is None:
            others = [LOOPBACK[family], "127.0.0.2", OTHER_NODE_IP[family]]
            near += [Target(address, one.number, protocol) for address in others]
        near += [Target(str(one.port.cluster_ip), 9, protocol)]
    return mostly(st.sampled_from(found or near), *near)


def clients(cluster: Raw, target: Target, family: int) -> SearchStrategy[tuple[str, str]]:
    """Draw ``from`` and a source address that goes with it; some clients are endpoints."""
    if target.address in (*LOOPBACK.values(), "127.0.0.2"):
        return st.just(("localhost", LOOPBACK[family]))
    pods = [LOCAL_PODS[family], *POD_IPS[family][:2]]
    outside = [*STRANGERS[family], OTHER_NODE_IP[family], *POD_IPS[family][2:]]
    found = [("pod", ip) for ip in pods] + [("external", ip) for ip in outside]
    found += [("node", ip) for ip in node_ips(cluster, family)]
    strange = [("node-as-vip", target.address), ("localhost", LOOPBACK[family])]
    return mostly(st.sampled_from(found), *strange)


def node_ips(cluster: Raw, family: int) -> list[str]:
    """Return the node's addresses in a family."""
    return [ip for ip in cluster["node"]["ips"] if (":" in ip) == (family == 6)]
