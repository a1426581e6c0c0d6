"""A lab with a network policy on each node, and the fast path in the middle of connections.

The policy is what policy engines make: established connections go on, new ones are accepted from
one pod alone, and invalid packets are dropped and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bpfsvc.devtools.lab.dial import OpenConnection
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.fast_path import fast_packets, services
from tests.lab.testbed import Testbed, built_testbed

ESTABLISHED = ("--fast-path", "established", "--socket-lb", "off")

_POLICY = """
table inet guard {{
    set allowed4 {{ type ipv4_addr; elements = {{ {v4} }} }}
    set allowed6 {{ type ipv6_addr; elements = {{ {v6} }} }}
    chain first {{ }}
    chain forward {{
        type filter hook forward priority 0; policy drop;
        jump first
        ct state established,related counter accept comment "seen"
        ct state invalid counter drop comment "invalid"
        meta l4proto ipv6-icmp accept
        ip saddr @allowed4 accept
        ip6 saddr @allowed6 accept
    }}
}}
"""


def enforce_policy(node: LabNode, client: LabPod) -> None:
    """Accept new connections of one pod, and no others."""
    text = _POLICY.format(v4=client.address(4), v6=client.address(6))
    node.run(["nft", "-f", "-"], input=text)


@contextmanager
def established(options: tuple[str, ...] = ESTABLISHED, **network: Any) -> Iterator[Testbed]:
    """Build a lab with such a policy; its agents translate all packets themselves."""
    with built_testbed(**network) as testbed:
        for node in testbed.lab.nodes:
            enforce_policy(node, testbed.pod)
            node.serve(6443)
        services(testbed)
        testbed.cluster.options = options
        testbed.cluster.start()
        yield testbed


def counted(node: LabNode, name: str) -> int:
    """Return the packets that a rule of the policy has seen."""
    listed = node.run(["nft", "list", "chain", "inet", "guard", "forward"]).stdout
    match = re.search(rf'packets (\d+) .*comment "{name}"', listed)
    assert match
    return int(match[1])


def invalid(testbed: Testbed) -> int:
    """Return the invalid packets on all nodes."""
    return sum(counted(node, "invalid") for node in testbed.lab.nodes)


def tracked(node: LabNode, client: LabPod, family: int, protocol: str = "tcp") -> list[str]:
    """Return netfilter's entries of what a pod has begun, as ``conntrack -L`` prints them."""
    command = ["conntrack", "-L", "-f", f"ipv{family}", "-p", protocol]
    return node.run([*command, "-s", client.address(family)]).stdout.splitlines()


def forget(node: LabNode, client: LabPod, family: int, protocol: str = "tcp") -> None:
    """Remove those entries, as policy engines do when a policy has changed."""
    command = ["conntrack", "-D", "-f", f"ipv{family}", "-p", protocol]
    node.run([*command, "-s", client.address(family)])


def become_fast(opened: OpenConnection, *nodes: LabNode) -> None:
    """Exchange data until they are fast on these nodes."""

    def is_fast() -> bool:
        before = [fast_packets(node) for node in nodes]
        for _ in range(50):
            assert opened.echo(b"are we fast?")
        return all(fast_packets(node) - old >= 50 for node, old in zip(nodes, before, strict=True))

    wait(is_fast, "the middle of the connection is fast", 20)
