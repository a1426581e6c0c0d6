"""Replacing kube-proxy: its rules are removed; connections and rules of other programs stay.

The rules are real ones, written by the tools that kube-proxy uses.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from bpfsvc.devtools.lab.cluster import LabCluster
from bpfsvc.devtools.lab.dial import OpenConnection, ask, connect
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from bpfsvc.devtools.lab.topology import Lab
from tests.lab import kubeproxy
from tests.lab.kubeproxy import MODES, Mode
from tests.lab.testbed import FAMILIES, WEB, objects

pytestmark = pytest.mark.slow


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    """kube-proxy's modes."""
    chosen: Mode = request.param
    return chosen


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A node with two pods that serve; nothing on it uses conntrack but kube-proxy's rules."""
    with Lab("routed", nodes=1) as made:
        made.serve()
        yield made


@pytest.fixture
def cluster(lab: Lab) -> Iterator[LabCluster]:
    """A cluster for manifests and commands; no agent runs yet."""
    with LabCluster(lab) as made:
        yield made


def frontends(backend: LabPod) -> dict[str, str]:
    """Return the addresses of the Service, each with the address of its one endpoint."""
    return {WEB.vip(family): str(backend.addresses[family]) for family in FAMILIES}


def clean(cluster: LabCluster, *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``bpfsvc cleanup --kube-proxy`` without a terminal."""
    node = cluster.lab.nodes[0]
    return cluster.command(node, "cleanup", "--kube-proxy", *options, stdin=subprocess.DEVNULL)


def kept_active(rules: dict[str, list[str]]) -> set[str]:
    """Return the tables with bpfsvc's rule that keeps conntrack active."""
    return {table for table, lines in rules.items() if re.search("bpfsvc-hold", str(lines), re.I)}


def talk(stack: ExitStack, pod: LabPod, backend: LabPod) -> list[OpenConnection]:
    """Open a connection in each family, and assert which pod answers."""
    made = [stack.enter_context(connect(pod, WEB.vip(family), 80)) for family in FAMILIES]
    assert {conversation.who().pod for conversation in made} == {backend.name}
    return made


def test_exactly_kube_proxys_rules_are_removed_and_connections_continue(
    lab: Lab, cluster: LabCluster, mode: Mode
) -> None:
    """Rules of other programs do not change, and the rule that bpfsvc leaves names its purpose.

    Without that rule these connections would hang: nothing else here uses conntrack.
    """
    node, (pod, backend) = lab.nodes[0], lab.pods
    kubeproxy.write_others(node)
    before = kubeproxy.rules(node)
    kubeproxy.write(node, mode, frontends(backend))
    during = kubeproxy.rules(node)
    with ExitStack() as stack:
        conversations = talk(stack, pod, backend)
        shown = clean(cluster, "--dry-run", "--verbose")
        assert shown.returncode == 0, shown.stderr
        assert all(address in shown.stdout for address in frontends(backend))
        assert kubeproxy.rules(node) == during
        done = clean(cluster, "--yes")
        assert done.returncode == 0, done.stderr
        assert "nothing of kube-proxy is left here" in done.stdout
        assert "kube-proxy " not in str(kubeproxy.rules(node)["nftables"])
        for conversation in conversations:
            assert conversation.echo(bytes(10_000))
        again = clean(cluster)
        assert (again.returncode, again.stdout) == (0, "nothing of kube-proxy is left here\n")
        for conversation in conversations:
            assert conversation.echo(bytes(10_000))
    assert len(kept_active(kubeproxy.rules(node))) >= 1
    released = clean(cluster, "--release")
    assert released.returncode == 0, released.stderr
    assert kubeproxy.rules(node) == before


def test_a_release_that_would_end_connections_is_asked_about(
    lab: Lab, cluster: LabCluster, mode: Mode
) -> None:
    """They are counted by endpoint. Without a terminal it needs --yes, unless there are none."""
    node, (pod, backend) = lab.nodes[0], lab.pods
    kubeproxy.write(node, mode, frontends(backend))
    with ExitStack() as stack:
        conversations = talk(stack, pod, backend)
        assert clean(cluster, "--yes").returncode == 0
        kept = kept_active(kubeproxy.rules(node))
        refused = clean(cluster, "--release")
        assert refused.returncode == 2
        assert "nothing was released: 2 TCP connections that netfilter translates" in refused.stderr
        assert f"{backend.addresses[4]}:8080 (1)" in refused.stderr
        assert f"[{backend.addresses[6]}]:8080 (1)" in refused.stderr
        assert kept_active(kubeproxy.rules(node)) == kept != set()
        for conversation in conversations:
            assert conversation.echo(bytes(10_000))
        forced = clean(cluster, "--release", "--yes")
        assert forced.returncode == 0
        assert "note: 2 TCP connections" in forced.stderr
        assert kept_active(kubeproxy.rules(node)) == set()


@pytest.mark.slow
def test_starting_beside_kube_proxys_rules_breaks_no_connection(
    lab: Lab, cluster: LabCluster, mode: Mode
) -> None:
    """Connections that kube-proxy translated stay; the agent translates new ones at once."""
    node, (pod, backend) = lab.nodes[0], lab.pods
    kubeproxy.write(node, mode, frontends(backend))
    # The agent has another endpoint than the rules, so answers show which of them translated.
    cluster.put("services", *objects(WEB, [pod]))
    with ExitStack() as stack:
        conversations = talk(stack, pod, backend)
        cluster.start(node)
        for conversation in conversations:
            assert conversation.echo(bytes(10_000))
        for client in (pod, node):
            assert {ask(client, WEB.vip(family), 80).pod for family in FAMILIES} == {pod.name}
        done = clean(cluster, "--yes")
        assert done.returncode == 0, done.stderr
        for conversation in conversations:
            assert conversation.echo(bytes(10_000))
        for client in (pod, node):
            assert {ask(client, WEB.vip(family), 80).pod for family in FAMILIES} == {pod.name}
    cluster.stop(node)
    assert cluster.command(node, "cleanup").returncode == 0
    node.pin_root.mkdir(exist_ok=True)
    assert kept_active(kubeproxy.rules(node)) == set()


def test_nothing_is_removed_without_confirmation(lab: Lab, cluster: LabCluster) -> None:
    """Without a terminal the command cannot ask; with a terminal, the answer "no" ends it."""
    node = lab.nodes[0]
    kubeproxy.write(node, "iptables-nft", frontends(lab.pods[1]))
    before = kubeproxy.rules(node)
    refused = clean(cluster)
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    keyboard, terminal = os.openpty()
    try:
        os.write(keyboard, b"n\n")
        asked = cluster.command(node, "cleanup", "--kube-proxy", stdin=terminal)
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert asked.returncode == 130
    assert "Remove all of this?" in asked.stdout
    assert kubeproxy.rules(node) == before


def running(node: LabNode) -> subprocess.Popen[bytes]:
    """Start a process that looks like kube-proxy, and wait until it does."""
    made = node.popen(["bash", "-c", "exec -a /usr/local/bin/kube-proxy sleep infinity"])
    words = Path(f"/proc/{made.pid}/cmdline")
    wait(lambda: words.read_bytes().startswith(b"/usr/local"), "it looks like kube-proxy")
    return made


def test_cleanup_is_refused_while_kube_proxy_runs(lab: Lab, cluster: LabCluster) -> None:
    """A running kube-proxy would write its rules again; --while-running overrides this."""
    node = lab.nodes[0]
    kubeproxy.write(node, "iptables-legacy", frontends(lab.pods[1]))
    before = kubeproxy.rules(node)
    process = running(node)
    refused = clean(cluster, "--yes")
    assert refused.returncode == 1
    assert f"kube-proxy runs (process {process.pid})" in refused.stderr
    assert "--while-running" in refused.stderr
    assert kubeproxy.rules(node) == before
    assert clean(cluster, "--dry-run").returncode == 0
    assert clean(cluster, "--yes", "--while-running").returncode == 0
    assert "KUBE-SERVICES" not in str(kubeproxy.rules(node))


def test_chains_that_other_rules_use_stay_and_work(lab: Lab, cluster: LabCluster) -> None:
    """A CNI may use kube-proxy's chain to mark its host ports: both stay, and this is reported."""
    node = lab.nodes[0]
    kubeproxy.write(node, "iptables-nft", frontends(lab.pods[1]))
    node.run(["iptables-nft", "-t", "nat", "-N", "CNI-HOSTPORT-SETMARK"])
    node.run(["iptables-nft", "-t", "nat", "-A", "CNI-HOSTPORT-SETMARK", "-j", "KUBE-MARK-MASQ"])
    done = clean(cluster, "--yes")
    assert done.returncode == 0, done.stderr
    assert "KUBE-MARK-MASQ, KUBE-POSTROUTING must stay" in done.stderr
    left = [line for line in kubeproxy.rules(node)["iptables-nft"] if "KUBE" in line]
    assert ":KUBE-MARK-MASQ -" in left
    assert any(line.startswith("-A POSTROUTING") for line in left)
    assert "KUBE-SERVICES" not in str(left)
    assert clean(cluster).returncode == 0


def test_the_device_and_the_sets_of_ipvs_mode_are_removed(lab: Lab, cluster: LabCluster) -> None:
    """Devices and sets of other programs stay."""
    node = lab.nodes[0]
    node.run(["ip", "link", "add", "kube-ipvs0", "type", "bridge"])  # this kernel has no dummies
    node.run(["ip", "address", "add", "10.96.0.10/32", "dev", "kube-ipvs0"])
    for name in ("KUBE-CLUSTER-IP", "KUBE-SRC-ABCDEF"):
        node.run(["ipset", "create", name, "hash:ip"])
    shown = clean(cluster, "--dry-run")
    assert "device: kube-ipvs0 with 1 address" in shown.stdout
    assert clean(cluster, "--yes").returncode == 0
    assert "kube-ipvs0" not in node.interfaces()
    assert node.run(["ipset", "list", "-name"]).stdout.split() == ["KUBE-SRC-ABCDEF"]


def test_rules_that_cannot_be_removed_are_reported(lab: Lab, cluster: LabCluster) -> None:
    """A set that a foreign rule uses stays; the rest is removed; the exit status is an error."""
    node = lab.nodes[0]
    kubeproxy.write(node, "iptables-nft", frontends(lab.pods[1]))
    node.run(["ipset", "create", "KUBE-CLUSTER-IP", "hash:ip"])
    rule = "-A INPUT -m set --match-set KUBE-CLUSTER-IP dst -j ACCEPT"
    node.run(["iptables-nft", *rule.split()])
    done = clean(cluster, "--yes")
    assert done.returncode == 1
    assert "failed: ipset: 1 set" in done.stdout
    assert "not everything was removed: ipset" in done.stderr
    left = kubeproxy.rules(node)["iptables-nft"]
    assert [line for line in left if "KUBE" in line] == [rule]


@pytest.mark.slow
def test_the_way_back_ends_no_connection_and_waits_for_the_last(
    lab: Lab, cluster: LabCluster, mode: Mode
) -> None:
    """New connections go to kube-proxy's endpoint, old ones stay; then everything is removed."""
    node, (pod, backend) = lab.nodes[0], lab.pods
    kubeproxy.write(node, mode, frontends(backend))
    # The agent has another endpoint than the rules, so answers show which of them translated.
    cluster.put("services", *objects(WEB, [pod]))
    cluster.start(node, options=("--socket-lb", "off"))
    for family in FAMILIES:
        lab.client.route(WEB.vip(family), via=node)
    with ThreadPoolExecutor() as aside, ExitStack() as stack:
        made = [
            stack.enter_context(connect(lab.client, WEB.vip(family), 80)) for family in FAMILIES
        ]
        assert {conversation.who().pod for conversation in made} == {pod.name}
        cluster.stop(node)
        done = aside.submit(cluster.command, node, "cleanup", "--drain")
        for family in FAMILIES:
            wait(
                lambda family=family: (  # type: ignore[misc]
                    ask(lab.client, WEB.vip(family), 80).pod == backend.name
                ),
                "kube-proxy's rules have new connections",
            )
        for conversation in made:
            assert conversation.echo(bytes(10_000))
        assert not done.done(), "it waits for them"
        stack.close()
        result = done.result(timeout=60)
    assert result.returncode == 0, result.stderr
    assert "no connection is left" in result.stdout
    assert "nothing of bpfsvc is left here" in result.stdout
    node.pin_root.mkdir(exist_ok=True)


@pytest.mark.slow
def test_netfilter_leaves_ports_of_ended_connections_alone_too(
    lab: Lab, cluster: LabCluster
) -> None:
    """While a program takes packets to such a port for answers of the old connection.

    kube-proxy chooses ports at random: some of a hundred new connections had such a port, and hung.
    """
    node, (pod, backend) = lab.nodes[0], lab.pods
    kubeproxy.write(node, "nftables", frontends(backend))
    cluster.put("services", *objects(WEB, [pod]))
    cluster.start(node, options=("--socket-lb", "off"))
    lab.client.route(WEB.vip(4), via=node)
    with (
        ThreadPoolExecutor() as aside,
        ExitStack() as stack,
        connect(lab.client, WEB.vip(4), 80) as ended,
    ):
        held = stack.enter_context(connect(lab.client, WEB.vip(4), 80))
        wanted = {port_of(held), port_of(ended)}
        ended.close()
        cluster.stop(node)
        done = aside.submit(cluster.command, node, "cleanup", "--drain")
        wait(
            lambda: ask(lab.client, WEB.vip(4), 80).pod == backend.name,
            "kube-proxy's rules have new connections",
        )
        assert wanted <= tracked_ports(node, str(pod.addresses[4]))
        stack.close()
        assert done.result(timeout=60).returncode == 0
    assert not wanted & tracked_ports(node, str(pod.addresses[4]))
    node.pin_root.mkdir(exist_ok=True)


def port_of(conversation: OpenConnection) -> int:
    """Return the port that the backend sees."""
    return int(conversation.who().peer.rpartition(":")[2])


def tracked_ports(node: LabNode, backend: str) -> set[int]:
    """Return the ports from which netfilter has connections to a backend."""
    listed = node.run(["conntrack", "-L", "-p", "tcp"]).stdout.splitlines()
    return {
        int(port[1])
        for line in listed
        if (port := re.search(rf"dst={re.escape(backend)} sport=(\d+)", line))
    }


def test_a_drain_ends_in_time_and_says_what_was_left(lab: Lab, cluster: LabCluster) -> None:
    node, (pod, _) = lab.nodes[0], lab.pods
    cluster.put("services", *objects(WEB, [pod]))
    cluster.start(node, options=("--socket-lb", "off"))
    lab.client.route(WEB.vip(4), via=node)
    with connect(lab.client, WEB.vip(4), 80) as conversation:
        assert conversation.who().pod == pod.name
        cluster.stop(node)
        result = cluster.command(node, "cleanup", "--drain=2")
    assert result.returncode == 0, result.stderr
    assert "1 connection had not ended after 2 s" in result.stdout
    node.pin_root.mkdir(exist_ok=True)
