"""When the fast path is not used or given up, and what becomes of connections then."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product

import pytest

from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.datapath.netlink.devices import allows_fast_path
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.devtools.lab.dial import ask, connect, tally
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.fast_path import (
    FAST,
    Counts,
    another_program,
    downloads_from_outside,
    fast,
    fast_packets,
)
from tests.lab.testbed import FAMILIES, ONE, WEB, Testbed, built_testbed, objects

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def routed() -> Iterator[Testbed]:
    """Pods with separate host interfaces: all can be fast."""
    with fast(layout="routed", cni_masquerade=True) as testbed:
        yield testbed


def test_an_interface_with_another_program_is_not_on_the_fast_path(routed: Testbed) -> None:
    """The program may enforce a CNI's policies or count packets."""
    node, pod = routed.node, routed.lab.pods[1]
    for family in FAMILIES:
        assert ask(pod, ONE[2].vip(family), 80).pod
    with another_program(routed, pod):
        for family, (namespace, backend) in product(FAMILIES, ((pod, 2), (routed.pod, 1))):
            counts = Counts(node, family)
            assert ask(namespace, ONE[backend].vip(family), 80).pod
            by_shortcut, forwarded, invalid = counts.since()
            assert (by_shortcut, invalid) == (0, 0)
            assert forwarded
        for family in FAMILIES:
            counts = Counts(node, family)
            assert ask(routed.pod, ONE[2].vip(family), 80).pod
            counts.all_fast()


def _interface(pod: LabPod) -> str:
    return pod.host_interface


def test_a_queueing_limit_on_a_pods_interface_is_kept(routed: Testbed, family: int) -> None:
    """Packets pass the queue of the interface, which the direct path would bypass."""
    node, pod = routed.node, routed.lab.pods[1]

    def found() -> dict[str, bool]:
        with node.entered():
            network = read_network()
        return {device.name: allows_fast_path(device, network) for device in network.devices}

    assert found() == {
        each: each.startswith("veth")
        for each in ("lo", "eth0", *map(_interface, node.pods.values()))
    }
    node.run(["tc", "qdisc", "replace", "dev", pod.host_interface, "root", "pfifo"])
    try:
        assert not found()[pod.host_interface]
    finally:
        node.run(["tc", "qdisc", "del", "dev", pod.host_interface, "root"])
    assert ask(routed.pod, ONE[1].vip(family), 80).pod == pod.name


@pytest.mark.parametrize(
    "rules",
    [
        ["iptables -w -N KUBE-POD-FW-X", "iptables -w -A FORWARD -j KUBE-POD-FW-X"],
        ["ip6tables -w -A FORWARD -s fd44:9::/64 -j DROP"],
        ["iptables -w -P FORWARD DROP", "iptables -w -A FORWARD -j ACCEPT"],
        ["nft add table inet guard", "nft add chain inet guard every {"
         " type filter hook forward priority 0 ; policy accept ; }"],
        ["nft add table ip filter", "nft add chain ip filter FORWARD {"
         " type filter hook forward priority 0 ; policy accept ; }",
         "nft add rule ip filter FORWARD ip saddr 10.9.0.0/16 reject"],
        ["ip link add cali0 type veth peer name other"],
    ],
    ids=["policies of a CNI", "a rule that drops", "a policy that drops", "nftables",
         "nftables under the names of iptables", "a device"],
)  # fmt: skip
def test_a_node_with_filter_rules_has_no_connection_fast_as_a_whole_and_says_so(
    rules: list[str],
) -> None:
    with built_testbed(layout="routed", nodes=1) as testbed:
        cluster, node = testbed.cluster, testbed.node
        cluster.put("services", *objects(WEB, testbed.lab.pods))
        for rule in rules:
            node.run(rule.split())
        cluster.start(options=FAST)
        assert "the fast path is used: " not in cluster.agents[node.name].log
        assert set(tally(testbed.pod, WEB.vip(4), 80, count=10)) <= {
            pod.name for pod in testbed.lab.pods
        }
        assert fast_packets(node) == 0
        shown = cluster.command(node, "status").stdout
        assert any(text in shown for text in ("no fast path: ", "established connections only: "))
        report = cluster.command(node, "doctor").stdout
        assert "the level fast is not for this node: " in report


def test_the_doctor_reports_that_the_fast_path_bypasses_nothing(routed: Testbed) -> None:
    assert "with the fast path" in routed.cluster.command(routed.node, "status").stdout
    report = routed.cluster.command(routed.node, "doctor").stdout
    assert "nothing was found that --fast-path would bypass" in report


PROMISED = {
    "iptables": (
        ["ip6tables", "-w", "-A", "FORWARD", "-s", "fd44:9::/64", "-j", "DROP"],
        ["ip6tables", "-w", "-D", "FORWARD", "-s", "fd44:9::/64", "-j", "DROP"],
        "established",
        15,
    ),
    "nftables": (
        ["nft", "add table inet guard; add chain inet guard every"
         " { type filter hook forward priority 0; policy accept; }"],
        ["nft", "delete table inet guard"],
        "established",
        15,
    ),
    "IPsec": (
        ["ip", "xfrm", "policy", "add", "src", "10.9.0.0/16", "dst", "10.8.0.0/16", "dir", "fwd"],
        ["ip", "xfrm", "policy", "del", "src", "10.9.0.0/16", "dst", "10.8.0.0/16", "dir", "fwd"],
        "stack",
        30,
    ),
    "a route rule": (
        ["ip", "rule", "add", "fwmark", "0x77", "lookup", "100"],
        ["ip", "rule", "del", "fwmark", "0x77", "lookup", "100"],
        "stack",
        30,
    ),
    "a second uplink": (
        ["sh", "-c", "ip link add eth9 type veth peer name far9 && ip link set eth9 up &&"
         " ip address add 192.168.90.11/24 dev eth9"],
        ["ip", "link", "del", "eth9"],
        "established",
        30,
    ),
}  # fmt: skip
"""What ends the fast path, what brings it back, the level meanwhile, and after how many seconds."""


def await_level(testbed: Testbed, node: LabNode, level: str, seconds: float) -> None:
    """Wait until a node's programs are told the level, and its agent says it."""

    def is_told() -> bool:
        settings = _settings(node)
        if bool(settings["fast_path"]) is not (level == "fast"):
            return False  # which is seen a hundred times faster than what the agent says
        shown = testbed.cluster.command(node, "status").stdout
        return {
            "fast": "with the fast path" in shown and "for established connections" not in shown,
            "established": "with the fast path for established connections" in shown,
            "stack": "with the fast path" not in shown,
        }[level]

    wait(is_told, f"the level is {level}", seconds)


def _settings(node: LabNode) -> dict[str, object]:
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        raw = pinned.map("settings").lookup(bytes(4)) or b""
        return dict(pinned.layout.maps["settings"].value.unpack(raw))
    finally:
        pinned.close()


@contextmanager
def given_up(testbed: Testbed) -> Iterator[None]:
    """Have both nodes leave the level fast, as a rule stops packets there."""
    add, remove, level, seconds = PROMISED["nftables"]
    nodes = testbed.lab.nodes[:2]

    for node in nodes:
        node.run(add)
    try:
        for node in nodes:
            await_level(testbed, node, level, seconds)
        yield
    finally:
        for node in nodes:
            node.run(remove)
        for node in nodes:
            await_level(testbed, node, "fast", seconds)


@pytest.mark.parametrize("first", ["data", "the end"])
def test_what_the_stack_gets_first_when_the_fast_path_is_given_up_arrives(
    routed: Testbed, first: str
) -> None:
    """Data tell conntrack of a connection. An end is invalid and dropped, until the other side has
    sent something, be it a keepalive: then its repetition arrives.
    """
    server_pod = routed.lab.pods[2]
    with server_pod.socket(socket.AF_INET) as server, routed.pod.socket(socket.AF_INET) as client:
        server.bind((str(server_pod.address(4)), 0))
        server.listen()
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        with accepted, given_up(routed):
            counts = Counts(routed.node, 4)
            accepted.settimeout(10)
            if first == "data":
                client.sendall(b"data")
                assert accepted.recv(9) == b"data"
                assert counts.since()[2] == 0
            client.shutdown(socket.SHUT_WR)
            if first == "the end":
                wait(lambda: counts.since()[2] >= 2, "the end is dropped, and repeated")
                accepted.setblocking(False)
                with pytest.raises(BlockingIOError):
                    accepted.recv(9)
                accepted.settimeout(10)
                accepted.sendall(b"are you there?")
            assert accepted.recv(9) == b""


@pytest.mark.parametrize("kind", PROMISED)
def test_what_has_to_see_packets_changes_the_level_until_it_is_gone(
    routed: Testbed, kind: str
) -> None:
    """Connections that were open before are still open at the end."""
    add, remove, level, seconds = PROMISED[kind]
    node = routed.node

    await_level(routed, node, "fast", seconds)
    with ExitStack() as stack:
        opened = [
            stack.enter_context(connect(routed.pod, *to))
            for family in FAMILIES
            for to in ((ONE[2].vip(family), 80), (routed.lab.pods[2].address(family), 8080))
        ]
        for connection in opened:
            connection.who()
        node.run(add)
        try:
            await_level(routed, node, level, seconds)
            before = fast_packets(node)
            assert all(connection.echo(b"by the stack") for connection in opened)
            assert fast_packets(node) == before
        finally:
            node.run(remove)
        await_level(routed, node, "fast", seconds)
        for connection in opened:
            before = fast_packets(node)
            assert connection.echo(b"fast")
            assert fast_packets(node) > before


def test_downloads_from_outside_go_on_when_the_fast_path_is_given_up(routed: Testbed) -> None:
    """Their servers send before their clients do: netfilter meets the connections by answers."""
    with downloads_from_outside(routed) as downloads, given_up(routed):
        for _, download in downloads:
            download.finish()


def test_without_an_agent_only_what_has_begun_stays_fast(routed: Testbed) -> None:
    """Nobody sees a new rule, so netfilter gets what begins more than a minute later."""
    cluster, node = routed.cluster, routed.node
    written = _guarded(node)
    wait(lambda: _guarded(node) > written, "the agent tells that it is there")
    with connect(routed.pod, ONE[2].vip(4), 80) as older:
        older.who()
        cluster.kill(node)
        _guarded(node, seconds_ago=61)
        counts = Counts(node, 4)
        assert older.echo(b"still fast")
        counts.all_fast()
        with connect(routed.pod, ONE[2].vip(4), 80) as newer:
            newer.who()
            _, by_netfilter, invalid = counts.since()
            assert by_netfilter >= 4
            cluster.start(node)
            for each in (older, newer):
                assert each.echo(b"an agent runs again")
        assert counts.since()[2] == invalid == 0
    counts = Counts(node, 4)
    ask(routed.pod, ONE[2].vip(4), 80)
    counts.all_fast()


def _guarded(node: LabNode, *, seconds_ago: int | None = None) -> int:
    """Return when the agent has last vouched for the fast path; write another time if asked to."""
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        settings = pinned.map("settings")
        record = pinned.layout.maps["settings"].value
        values = dict(record.unpack(settings.lookup(bytes(4)) or b""))
        if seconds_ago is not None:
            values["fast_path_second"] = (int(time.monotonic()) - seconds_ago) % (1 << 32)
            settings.update(bytes(4), record.pack(values))
        return int(values["fast_path_second"])
    finally:
        pinned.close()
