"""kube-proxy's nftables rules of 1.37 and 1.38, from a listing of 1.36's.

Nothing was recorded of these releases. The pull requests of kubernetes/kubernetes say what changed:

* #140723, #140960: a Service of a single endpoint translates without a map;
* #138427: with the gate KubeProxyNFTablesLocalhostNodePorts, packets for a NodePort on loopback are
  refused unless a process of kube-proxy listens; the refused ones are counted by protocol. The
  names of the counters are kube-proxy's; those of the map and chains are made up.
"""

from __future__ import annotations

import json
from typing import Any

Item = dict[str, Any]

_LOOPBACK: dict[int, Any] = {4: {"prefix": {"addr": "127.0.0.0", "len": 8}}, 6: "::1"}
_CHAINS = {
    "tcp": "reject-chain",
    "udp": "localhost-reject-udp",
    "sctp": "localhost-reject-sctp",
}
"""The chains that refuse, by protocol. A process of kube-proxy may serve TCP: it is not counted."""


def rewritten(listed: str, family: int) -> str:
    """Return the listing of a table as these releases would write it."""
    items: list[Item] = json.loads(listed)["nftables"]
    for item in items:
        for expression in item.get("rule", {}).get("expr", ()):
            if "dnat" in expression:
                expression["dnat"] = _translation(expression["dnat"])
    node_ports = next(item["map"] for item in items if _name(item) == "service-nodeports")
    made = _loopback(node_ports, family)
    # Chains and the map before the rules.
    first_rule = next(number for number, item in enumerate(items) if "rule" in item)
    before = [item for item in made if "rule" not in item]
    check = next(item for item in made if _of_chain(item) == "nodeport-endpoints-check")
    rest = [item for item in made if "rule" in item and item is not check]
    return json.dumps(
        {"nftables": [*items[:first_rule], *before, check, *items[first_rule:], *rest]}
    )


def _name(item: Item) -> str:
    ((_, value),) = item.items()
    return str(value.get("name", ""))


def _of_chain(item: Item) -> str:
    return str(item.get("rule", {}).get("chain", ""))


def _translation(dnat: Item) -> Item:
    """Return a translation without its map, if the map has a single endpoint."""
    if isinstance(dnat["addr"], str) or len(dnat["addr"]["map"]["data"]["set"]) > 1:
        return dnat
    ((_, backend),) = dnat["addr"]["map"]["data"]["set"]
    address, port = backend["concat"]
    return {"addr": address, "port": port}


def _loopback(node_ports: Item, family: int) -> list[Item]:
    """Return what refuses packets for NodePorts on loopback: counters, chains, a map, rules."""
    of = {"family": node_ports["family"], "table": "kube-proxy"}
    loopback = {"payload": {"protocol": of["family"], "field": "daddr"}}
    key = [{"meta": {"key": "l4proto"}}, {"payload": {"protocol": "th", "field": "dport"}}]
    refused = [
        [place, {"goto": {"target": _CHAINS[place["concat"][0]]}}]
        for place, _ in node_ports["elem"]
    ]
    on_loopback = {"match": {"op": "==", "left": {"meta": {"key": "oifname"}}, "right": "lo"}}
    reject = {"reject": None}
    made: list[Item] = []
    for protocol in ("udp", "sctp"):
        counter, chain = f"localhost-nodeport-rejected-{protocol}", _CHAINS[protocol]
        made += [
            {"counter": {**of, "name": counter, "packets": 0, "bytes": 0}},
            {"chain": {**of, "name": chain}},
            {"rule": {**of, "chain": chain, "expr": [on_loopback, {"counter": counter}, reject]}},
        ]
    return [
        *made,
        {
            "map": {
                **of,
                "name": "localhost-nodeports",
                "type": ["inet_proto", "inet_service"],
                "map": "verdict",
                "elem": refused,
            }
        },
        {
            "rule": {
                **of,
                "chain": "nodeport-endpoints-check",
                "expr": [
                    {"match": {"op": "==", "left": loopback, "right": _LOOPBACK[family]}},
                    {"vmap": {"key": {"concat": key}, "data": "@localhost-nodeports"}},
                ],
            }
        },
    ]
