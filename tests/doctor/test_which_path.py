"""The level that ``--fast-path auto`` gets beside CNIs and firewalls: the table of which-path.md.

The rules are as those programs write them. They are loaded into a namespace, and read as the agent
reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bpfsvc.base.fast_path import LEVELS_OF_MODE, STACK, FastPathUse
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.doctor.agent_checks import FastPathCheck
from bpfsvc.doctor.collect import fast_path
from bpfsvc.doctor.facts import POLICY_PINS
from bpfsvc.migration.netfilter import tools

_RULES = Path(__file__).parent / "rules"
_PAGE = Path(__file__).parents[2] / "docs" / "which-path.md"
_PODS = ("10.244.0.0/16",)


class Row(NamedTuple):
    """A row of the table, and a node of its kind: a file of rules, devices, route rules, pins."""

    beside: str
    level: str
    rules: str = ""
    devices: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    reason: str = ""


ROWS = (
    Row("Flannel, and other CNIs that only route and masquerade", "fast"),
    Row("Flannel, and other CNIs that only route and masquerade", "fast", "flannel.iptables"),
    Row("Calico, Canal (iptables)", "established", "calico.iptables", ("cali0a1b2c3d4e5",)),
    Row("Calico (nftables)", "established", "calico.nft", ("cali0a1b2c3d4e5",)),
    Row("Calico with packet rates of pods", "stack", "calico-packet-rate.iptables",
        reason="1000/sec"),
    Row("Calico with DSCP for pods", "stack", "calico-dscp.iptables", reason="0x20"),
    Row("Calico in eBPF mode", "stack", devices=("bpfin.cali", "cali0a1b2c3d4e5"),
        reason="Calico's eBPF"),
    Row("kube-router, k3s (iptables)", "established", "kube-router.iptables"),
    Row("kube-router (nftables)", "established", "kube-router.nft"),
    Row("kindnet, kube-network-policies", "established", "kindnet.nft"),
    Row("Weave Net", "established", "weave.iptables"),
    Row("Azure's network policy manager", "established", "azure.iptables"),
    Row("Cilium, GKE Dataplane V2", "stack", devices=("cilium_host",), reason="Cilium"),
    Row("Antrea", "stack", devices=("antrea-gw0",), reason="Antrea"),
    Row("OVN-Kubernetes", "stack", devices=("ovn-k8s-mp0",), reason="OVN-Kubernetes"),
    Row("Kube-OVN", "stack", devices=("ovn0",), reason="Kube-OVN"),
    Row("the AWS network policy agent", "stack", pinned=tuple(POLICY_PINS), reason="AWS"),
    Row("the AWS VPC CNI", "stack", "eks.iptables",
        commands=("ip rule add fwmark 0x80/0x80 lookup main",), reason="fwmark"),
    Row("the CNI plugin bridge with `macspoofchk`", "established", "bridge-spoofing.nft"),
    Row("the CNI plugins bridge and ptp, `ipMasq` by nftables", "established",
        "cni-masquerade.nft"),
    Row("Docker", "established", "docker.iptables"),
    Row("firewalld", "established", "firewalld.nft"),
    Row("ufw", "established", "ufw.iptables"),
    Row("kube-proxy, or its rules", "established", "kube-proxy.iptables"),
    Row("a firewall that first accepts what is established", "established",
        "own-stateful.nft"),
    Row("a firewall that looks at addresses and ports alone", "established",
        "own-stateless.nft"),
    Row("limits of packets (`limit`, `quota` ...)", "stack", "rate-limit.iptables",
        reason="hashlimit"),
    Row("queues to programs (intrusion prevention)", "stack", "inspection.iptables",
        reason="NFQUEUE"),
    Row("queues to programs (intrusion prevention)", "stack", "queue.nft", reason="queue"),
    Row("rules about what packets carry (`string`, `u32` ...)", "stack", "content.iptables",
        reason="forbidden"),
    Row("accounting (counters with a name, rules without a target)", "stack", "accounting.nft",
        reason="counter of-pods"),
    Row("accounting (counters with a name, rules without a target)", "stack",
        "accounting.iptables", reason="-A FORWARD -s 10.244.0.0/16"),
    Row("logs of each packet", "stack", "log.iptables", reason="NFLOG"),
    Row("IPsec policies", "stack", commands=("ip xfrm policy add src 10.9.0.0/16 dst 10.8.0.0/16"
        " dir fwd",), reason="IPsec"),
)  # fmt: skip

_QUEUE, _QUEUE_STANDS_IN = "queue flags bypass to 102", 'log prefix "queue"'
"""A kernel may be without nft's queue: the statement is put into what nft prints."""


@pytest.fixture
def node() -> Iterator[Namespace]:
    """A node without rules."""
    namespace = Namespace("which-path")
    with closing(namespace):
        namespace.run(["ip", "link", "set", "lo", "up"])
        yield namespace


@pytest.fixture(autouse=True)
def as_on_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are tracked, as on each node; and nft knows queues."""
    run = tools.run
    queue = '"queue": {"num": 102, "flags": "bypass"}'
    monkeypatch.setattr(
        tools, "run", lambda *args: run(*args).replace('"log": {"prefix": "queue"}', queue)
    )
    monkeypatch.setattr(fast_path, "tracks", lambda: True)


def load(node: Namespace, file: str, flavour: str) -> None:
    """Load a file of rules, and the sets that it looks up."""
    text = (_RULES / file).read_text()
    if file.endswith(".nft"):
        node.run(["nft", "-f", "-"], input=text.replace(_QUEUE, _QUEUE_STANDS_IN))
        return
    for name in sorted(set(re.findall(r"--match-set (\S+)", text))):
        node.run(["ipset", "create", name, "hash:ip"])
    node.run([f"iptables-{flavour}-restore"], input=text)


def cases() -> Iterator[Any]:
    """Yield each row with each flavour of iptables that can have its rules."""
    for row in ROWS:
        for flavour in ("nft", "legacy") if row.rules.endswith(".iptables") else ("nft",):
            yield pytest.param(row, flavour, id=f"{row.rules or row.beside}, {flavour}")


@pytest.mark.parametrize(("row", "flavour"), [*cases()])
def test_the_level_is_the_one_that_the_table_says(
    node: Namespace, monkeypatch: pytest.MonkeyPatch, row: Row, flavour: str
) -> None:
    for index, device in enumerate(row.devices):
        node.run(["ip", "link", "add", device, "type", "veth", "peer", "name", f"far{index}"])
    for command in row.commands:
        node.run(command.split())
    if row.rules:
        load(node, row.rules, flavour)
    monkeypatch.setattr(fast_path, "existing_pins", lambda _: frozenset(row.pinned))
    check = FastPathCheck(_PODS, LEVELS_OF_MODE["auto"])
    with node.entered():
        level, reason = check.look(FastPathUse(STACK), rules_changed=True)
    assert (level, row.reason in reason) == (row.level, True), reason
    assert bool(reason) is (level != "fast")


def test_the_page_has_these_rows_and_levels() -> None:
    cells = [line.strip("| ").split(" | ") for line in _PAGE.read_text().splitlines()]
    written = {row[0]: row[1].strip("`") for row in cells if len(row) > 2 and row[1][0] == "`"}
    assert written == {row.beside: row.level for row in ROWS}


def test_each_file_of_rules_has_a_row() -> None:
    assert {file.name for file in _RULES.iterdir()} == {row.rules for row in ROWS} - {""}
