"""Taking over from kube-proxy: its rules go, and neither a connection nor a foreign rule with them.

The rules are real ones, put in by the tools that kube-proxy uses.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bpfsvc.lab.cluster import Cluster
from bpfsvc.lab.dial import Conversation, ask, connect
from bpfsvc.lab.node import Node
from bpfsvc.lab.patience import wait
from bpfsvc.lab.pod import Pod
from bpfsvc.lab.topology import Lab
from tests.lab import kubeproxy
from tests.lab.kubeproxy import MODES, Mode
from tests.lab.scene import FAMILIES, WEB, objects


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Mode:
    """kube-proxy's ways."""
    found: Mode = request.param
    return found


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A node with two pods that serve; nothing on it uses conntrack but kube-proxy's rules."""
    with Lab("routed", nodes=1) as made:
        made.serve()
        yield made


@pytest.fixture
def cluster(lab: Lab) -> Iterator[Cluster]:
    """A place for manifests and commands; no agent runs yet."""
    with Cluster(lab) as made:
        yield made


def frontends(backend: Pod) -> dict[str, str]:
    """Give the addresses of the Service, each with that of its one endpoint."""
    return {WEB.vip(family): str(backend.addresses[family]) for family in FAMILIES}


def clean(cluster: Cluster, *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``bpfsvc cleanup --kube-proxy``, which has no terminal here."""
    node = cluster.lab.nodes[0]
    return cluster.command(node, "cleanup", "--kube-proxy", *options, stdin=subprocess.DEVNULL)


def held(rules: dict[str, list[str]]) -> set[str]:
    """Tell where conntrack is held."""
    return {place for place, lines in rules.items() if re.search("bpfsvc-hold", str(lines), re.I)}


def talk(stack: ExitStack, pod: Pod, backend: Pod) -> list[Conversation]:
    """Open a connection in each family, and see by whom it is served."""
    made = [stack.enter_context(connect(pod, WEB.vip(family), 80)) for family in FAMILIES]
    assert {conversation.who().pod for conversation in made} == {backend.name}
    return made


def test_exactly_its_rules_go_and_connections_go_on(lab: Lab, cluster: Cluster, mode: Mode) -> None:
    """What others wrote is afterwards as it was, and what is left of ours says why it is there.

    Without that, these connections would hang: nothing else here uses conntrack.
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
        assert all(each in shown.stdout for each in frontends(backend))
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
    assert len(held(kubeproxy.rules(node))) >= 1
    released = clean(cluster, "--release")
    assert released.returncode == 0, released.stderr
    assert kubeproxy.rules(node) == before


def test_starting_beside_its_rules_cuts_nothing(lab: Lab, cluster: Cluster, mode: Mode) -> None:
    """Connections it translated stay where they are; new ones are the agent's, before and after."""
    node, (pod, backend) = lab.nodes[0], lab.pods
    kubeproxy.write(node, mode, frontends(backend))
    # The agent is told of another endpoint than the rules, so that answers tell who translated.
    cluster.put("services", *objects(WEB, [pod]))
    with ExitStack() as stack:
        conversations = talk(stack, pod, backend)
        cluster.start(node)
        for conversation in conversations:
            assert conversation.echo(bytes(10_000))
        for place in (pod, node):
            assert {ask(place, WEB.vip(family), 80).pod for family in FAMILIES} == {pod.name}
        done = clean(cluster, "--yes")
        assert done.returncode == 0, done.stderr
        for conversation in conversations:
            assert conversation.echo(bytes(10_000))
        for place in (pod, node):
            assert {ask(place, WEB.vip(family), 80).pod for family in FAMILIES} == {pod.name}
    cluster.stop(node)
    assert cluster.command(node, "cleanup").returncode == 0
    node.pin_root.mkdir(exist_ok=True)
    assert held(kubeproxy.rules(node)) == set()


def test_nothing_is_removed_without_a_yes(lab: Lab, cluster: Cluster) -> None:
    """There is nobody to ask where there is no terminal; on one, a no is taken for a no."""
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


def running(node: Node) -> subprocess.Popen[bytes]:
    """Start a process that looks like kube-proxy, and wait until it does."""
    made = node.popen(["bash", "-c", "exec -a /usr/local/bin/kube-proxy sleep infinity"])
    words = Path(f"/proc/{made.pid}/cmdline")
    wait(lambda: words.read_bytes().startswith(b"/usr/local"), "it looks like kube-proxy")
    return made


def test_a_kube_proxy_that_runs_would_write_its_rules_again(lab: Lab, cluster: Cluster) -> None:
    """So nothing is removed while it does, unless that is wanted."""
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


def test_chains_that_others_use_stay_and_work(lab: Lab, cluster: Cluster) -> None:
    """A CNI may have its host ports marked by kube-proxy's chain: both stay, and that is told."""
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


def test_the_device_and_the_sets_of_ipvs_mode_go(lab: Lab, cluster: Cluster) -> None:
    """Devices and sets of others stay."""
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


def test_what_will_not_go_is_told(lab: Lab, cluster: Cluster) -> None:
    """A set that a foreign rule names stays; the rest goes, and the status says so."""
    node = lab.nodes[0]
    kubeproxy.write(node, "iptables-nft", frontends(lab.pods[1]))
    node.run(["ipset", "create", "KUBE-CLUSTER-IP", "hash:ip"])
    rule = "-A INPUT -m set --match-set KUBE-CLUSTER-IP dst -j ACCEPT"
    node.run(["iptables-nft", *rule.split()])
    done = clean(cluster, "--yes")
    assert done.returncode == 1
    assert "not done: ipset: 1 set" in done.stdout
    assert "not everything went: ipset" in done.stderr
    left = kubeproxy.rules(node)["iptables-nft"]
    assert [line for line in left if "KUBE" in line] == [rule]
