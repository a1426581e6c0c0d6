"""The fast path with real sockets: who takes it, who does not, and that nothing is lost by it."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.datapath.netlink.conversation import Conversation as Netlink
from bpfsvc.datapath.netlink.devices import leads_to_pod
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.lab.dial import Protocol, ask, connect, tally
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.node import Node
from bpfsvc.lab.patience import wait
from bpfsvc.lab.pod import Pod
from tests.lab.scene import API, LOCAL, ONE, WEB, Scene, built, objects
from tests.lab.shortcuts import FAST, Counts, fast, taken

_BIG = 2 << 20
_HOPS = {4: (socket.IPPROTO_IP, socket.IP_TTL), 6: (socket.IPPROTO_IPV6, 16)}
_ERRORS = {4: (socket.IPPROTO_IP, 11), 6: (socket.IPPROTO_IPV6, 25)}  # IP_RECVERR, IPV6_RECVERR


@pytest.fixture(scope="module")
def routed() -> Iterator[Scene]:
    """Pods with interfaces of their own: all can be fast."""
    with fast(layout="routed", cni_masquerade=True) as scene:
        yield scene


@pytest.fixture(scope="module")
def bridged() -> Iterator[Scene]:
    """Pods on a bridge: there is no straight way to them."""
    with fast(layout="bridge", cni_masquerade=True) as scene:
        yield scene


BACKENDS = pytest.mark.parametrize("backend", [0, 1, 2], ids=["itself", "same node", "other node"])


@BACKENDS
def test_a_pods_connections_are_fast_from_the_first_packet_to_the_last(
    routed: Scene, family: int, transport: Protocol, backend: int
) -> None:
    counts = Counts(routed.node, family)
    for _ in range(5):
        answer = ask(routed.pod, ONE[backend].vip(family), 80, transport)
        assert answer.pod == routed.lab.pods[backend].name
    counts.all_fast(least=50 if transport == "tcp" else 10)


@BACKENDS
def test_a_reset_ends_a_connection_at_once(routed: Scene, family: int, backend: int) -> None:
    counts = Counts(routed.node, family)
    for _ in range(3):
        conversation = connect(routed.pod, ONE[backend].vip(family), 80)
        conversation.who()
        conversation.reset()
    counts.all_fast(least=15)


@BACKENDS
def test_large_data_is_fast_and_arrives_whole(routed: Scene, family: int, backend: int) -> None:
    counts = Counts(routed.node, family)
    for verb in ("fetch", "deliver"):
        with connect(routed.pod, ONE[backend].vip(family), 80) as conversation:
            assert getattr(conversation, verb)(_BIG)
    counts.all_fast(least=30)


@pytest.mark.parametrize("backend", [0, 2], ids=["local backend", "remote backend"])
def test_a_client_of_a_node_port_is_masqueraded_on_the_fast_path(
    routed: Scene, family: int, transport: Protocol, backend: int
) -> None:
    counts = Counts(routed.node, family)
    pod = routed.lab.pods[backend]
    for _ in range(5):
        node_port = routed.node.address(family), ONE[backend].node_port
        answer = ask(routed.client, *node_port, transport)
        assert answer.pod == pod.name
        assert answer.peer.rpartition(":")[0].strip("[]") == routed.leaving(
            pod, routed.node, family
        )
    counts.all_fast(least=50 if transport == "tcp" else 10)


def test_a_client_keeps_its_address_with_the_local_policy(
    routed: Scene, family: int, transport: Protocol
) -> None:
    counts = Counts(routed.node, family)
    answer = ask(routed.client, routed.node.address(family), LOCAL.node_port, transport)
    assert answer.peer.rpartition(":")[0].strip("[]") == str(routed.lab.client.addresses[family])
    counts.all_fast()


def test_a_long_connection_goes_on_through_a_restart(routed: Scene, family: int) -> None:
    """Also through the end of an agent that had no time for it."""
    counts = Counts(routed.node, family)
    cluster, node = routed.cluster, routed.node
    with connect(routed.pod, ONE[2].vip(family), 80) as conversation:
        conversation.who()
        for end in (cluster.stop, cluster.kill):
            end(node)
            assert conversation.echo(b"nobody is there")
            cluster.start(node)
            assert conversation.echo(b"somebody is back")
    counts.all_fast(least=8)


def test_neighbours_are_found_when_they_are_not_known(routed: Scene, family: int) -> None:
    """Nothing is lost, and the stack is not asked."""
    counts = Counts(routed.node, family)
    with connect(routed.pod, ONE[2].vip(family), 80) as conversation:
        conversation.who()
        routed.node.run(["ip", f"-{family}", "neigh", "flush", "dev", "eth0"])
        assert conversation.echo(b"who has the way?")
    counts.all_fast()


def expired(place: Namespace, to: str, family: int, hops: int) -> int:
    """Send a datagram that lives for so many hops; give the error that came of it, 0 for none."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with place.socket(kind, socket.SOCK_DGRAM) as made:
        made.settimeout(2)
        made.setsockopt(*_HOPS[family], hops)
        made.setsockopt(*_ERRORS[family], 1)
        made.connect((to, 80))
        try:
            made.send(b"who\n")
            made.recv(1 << 16)
        except OSError as error:
            return error.errno or -1
    return 0


def test_hops_are_counted_and_their_end_is_told(routed: Scene, family: int) -> None:
    """As a traceroute to the frontend sees it: this node, the other node, the pod."""
    counts = Counts(routed.node, family)
    to = ONE[2].vip(family)
    found = [expired(routed.pod, to, family, hops) for hops in (1, 2, 3)]
    assert found == [errno.EHOSTUNREACH, errno.EHOSTUNREACH, 0]
    assert counts.since()[1:] == (0, 0)


def test_what_leaves_the_range_of_pods_is_left_to_the_cni(
    routed: Scene, family: int, transport: Protocol
) -> None:
    """It masquerades that, in netfilter: here what a pod says to the API server on a node."""
    counts = Counts(routed.node, family)
    answer = ask(routed.pod, API.vip(family), 80, transport)
    assert answer.peer.rpartition(":")[0].strip("[]") == routed.node.address(family)
    by_shortcut, forwarded, _ = counts.since()
    assert by_shortcut == 0
    assert forwarded


def test_on_a_bridge_pods_are_served_by_the_stack(
    bridged: Scene, family: int, transport: Protocol
) -> None:
    """In both directions; but a client outside may be led on to another node."""
    counts = Counts(bridged.node, family)
    for backend in (0, 1, 2):
        answer = ask(bridged.pod, ONE[backend].vip(family), 80, transport)
        assert answer.pod == bridged.lab.pods[backend].name
    by_shortcut, forwarded, invalid = counts.since()
    assert (by_shortcut, invalid) == (0, 0)
    assert forwarded
    counts = Counts(bridged.node, family)
    ask(bridged.client, bridged.node.address(family), ONE[2].node_port, transport)
    counts.all_fast()


# -- packets that are too long -----------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow() -> Iterator[Scene]:
    """Tunnels that carry less than pods believe, and a client behind a link of 1300 bytes."""
    with fast(layout="routed", overlay="vxlan", pod_mtu=1500, far_mtu=1300) as scene:
        yield scene


def learned(place: Namespace, to: str) -> str:
    """Give what a place knows of the way to an address."""
    return place.run(["ip", "-o", "route", "get", to]).stdout


def test_a_pod_learns_what_fits_from_its_own_node(narrow: Scene, family: int) -> None:
    """The stack says so, before netfilter is asked; what fits is fast again."""
    counts = Counts(narrow.node, family)
    with connect(narrow.pod, ONE[2].vip(family), 80) as conversation:
        assert conversation.deliver(_BIG)
    assert "mtu 1450" in learned(narrow.pod, ONE[2].vip(family))
    by_shortcut, forwarded, invalid = counts.since()
    assert by_shortcut > 30
    assert (forwarded, invalid) == (0, 0)


def test_errors_from_afar_reach_a_backend(narrow: Scene, family: int) -> None:
    """conntrack would find them invalid: they are about connections that it never saw."""
    node = narrow.node
    for number, backend in ((LOCAL.node_port, 0), (ONE[0].node_port, 0), (ONE[2].node_port, 2)):
        counts = Counts(node, family)
        with connect(narrow.lab.far, node.address(family), number) as conversation:
            assert conversation.fetch(_BIG)
            seen = conversation.socket.getsockname()[0]
        pod = narrow.lab.pods[backend]
        if number != LOCAL.node_port:
            seen = narrow.leaving(pod, node, family)
        assert "mtu 1300" in learned(pod, seen)
        assert counts.since()[2] == 0


# -- interfaces and nodes that take no part ------------------------------------------------------


def test_an_interface_with_somebody_elses_program_takes_no_part(routed: Scene, family: int) -> None:
    """A CNI's policies may be enforced there; the program might as well count packets."""
    node, pod = routed.node, routed.lab.pods[1]
    assert ask(pod, ONE[2].vip(family), 80).pod
    routed.cluster.stop(node)
    node.run(["tc", "qdisc", "add", "dev", pod.host_interface, "clsact"])
    words = ["tc", "filter", "add", "dev", pod.host_interface, "egress", "protocol", "all"]
    node.run([*words, "bpf", "da", "pinned", str(program_of(node))])
    try:
        routed.cluster.start(node)
        for place, backend in ((pod, 2), (routed.pod, 1)):
            counts = Counts(node, family)
            assert ask(place, ONE[backend].vip(family), 80).pod
            by_shortcut, forwarded, invalid = counts.since()
            assert (by_shortcut, invalid) == (0, 0)
            assert forwarded
        counts = Counts(node, family)
        assert ask(routed.pod, ONE[2].vip(family), 80).pod
        counts.all_fast()
    finally:
        routed.cluster.stop(node)
        node.run(["tc", "qdisc", "del", "dev", pod.host_interface, "clsact"])
        routed.cluster.start(node)


def _interface(pod: Pod) -> str:
    return pod.host_interface


def program_of(node: Node) -> Path:
    """Give the pin of a program for interfaces of another kind: it lets all frames pass."""
    return PinRoot(node.pin_root).current / "programs" / "egress_l3"


def test_limits_on_the_way_to_a_pod_are_kept(routed: Scene, family: int) -> None:
    """A queue on its interface is passed, where the straight way would lead past it."""
    node, pod = routed.node, routed.lab.pods[1]

    def found() -> dict[str, bool]:
        with node.entered(), Netlink() as talk:
            network = read_network(talk)
        return {each.name: leads_to_pod(each, network) for each in network.devices}

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
        ["ip link add cali0 type veth peer name other"],
    ],
    ids=["policies of a CNI", "a rule that drops", "a policy that drops", "nftables", "a device"],
)  # fmt: skip
def test_a_guarded_node_keeps_to_the_stack_and_says_so(rules: list[str]) -> None:
    with built(layout="routed", nodes=1) as scene:
        cluster, node = scene.cluster, scene.node
        cluster.put("services", *objects(WEB, scene.lab.pods))
        for rule in rules:
            node.run(rule.split())
        cluster.start(options=FAST)
        assert "--fast-path is not used" in cluster.agents[node.name].log
        assert set(tally(scene.pod, WEB.vip(4), 80, count=10)) <= {
            pod.name for pod in scene.lab.pods
        }
        assert taken(node) == 0
        assert "with the fast path" not in cluster.command(node, "status").stdout
        told = cluster.command(node, "doctor").stdout
        assert "--fast-path would be declined" in told


def test_a_node_without_guards_is_told_to_be_fit(routed: Scene) -> None:
    assert "with the fast path" in routed.cluster.command(routed.node, "status").stdout
    told = routed.cluster.command(routed.node, "doctor").stdout
    assert "nothing is seen that --fast-path would pass by" in told


@pytest.mark.slow
def test_a_guard_that_comes_later_ends_the_fast_path() -> None:
    """Within half a minute, and connections that were fast go on by the stack."""
    with fast(layout="routed", cni_masquerade=True) as scene:
        cluster, node = scene.cluster, scene.node
        with connect(scene.pod, ONE[2].vip(4), 80) as conversation:
            conversation.who()
            node.run(["ip6tables", "-w", "-A", "FORWARD", "-s", "fd44:9::/64", "-j", "DROP"])
            wait(
                lambda: "--fast-path is not used any more" in cluster.agents[node.name].log,
                "the agent gives it up",
                45,
            )
            before = taken(node)
            assert conversation.echo(b"still there")
            assert taken(node) == before
