"""The fast path with real sockets: which connections take it, and that nothing is lost."""

from __future__ import annotations

import errno
import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bpfsvc.devtools.lab.dial import Protocol, ask, connect, tally
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import stretched, wait
from tests.lab.fast_path import (
    OUTSIDE,
    Counts,
    another_program,
    downloads_from_outside,
    fast,
    packets_by_port,
)
from tests.lab.testbed import (
    API,
    FAMILIES,
    LOCAL,
    ONE,
    TRANSPORTS,
    Named,
    Testbed,
    objects,
)

SCALED = Named("scaled", 65)
_BIG = 2 << 20
_SOCKETS = {4: socket.AF_INET, 6: socket.AF_INET6}
_HOPS = {4: (socket.IPPROTO_IP, socket.IP_TTL), 6: (socket.IPPROTO_IPV6, 16)}
_ERRORS = {4: (socket.IPPROTO_IP, 11), 6: (socket.IPPROTO_IPV6, 25)}  # IP_RECVERR, IPV6_RECVERR


@pytest.fixture(scope="module")
def routed() -> Iterator[Testbed]:
    """Pods with separate host interfaces: all can be fast."""
    with fast(layout="routed", cni_masquerade=True) as testbed:
        yield testbed


@pytest.fixture(scope="module")
def bridged() -> Iterator[Testbed]:
    """Pods on a bridge: packets go to them by the bridge."""
    with fast(layout="bridge", cni_masquerade=True) as testbed:
        yield testbed


@pytest.fixture(params=["routed", "bridged"])
def any_layout(request: pytest.FixtureRequest) -> Testbed:
    """Both of them."""
    testbed = request.getfixturevalue(request.param)
    assert isinstance(testbed, Testbed)
    return testbed


BACKENDS = pytest.mark.parametrize("backend", [0, 1, 2], ids=["itself", "same node", "other node"])


@BACKENDS
def test_a_pods_connections_are_fast_from_the_first_packet_to_the_last(
    routed: Testbed, family: int, transport: Protocol, backend: int
) -> None:
    counts = Counts(routed.node, family)
    for _ in range(5):
        answer = ask(routed.pod, ONE[backend].vip(family), 80, transport)
        assert answer.pod == routed.lab.pods[backend].name
    counts.all_fast(least=50 if transport == "tcp" else 10)


@pytest.mark.parametrize("way", ["to the pod itself", "through a Service"])
@pytest.mark.parametrize(
    ("layout", "backend"),
    [("routed", 1), ("routed", 2), ("bridged", 2)],
    ids=["same node", "other node", "other node, on a bridge"],
)
def test_packets_between_pods_are_fast_on_the_nodes_of_both(
    request: pytest.FixtureRequest,
    family: int,
    transport: Protocol,
    layout: str,
    backend: int,
    way: str,
) -> None:
    """Netfilter sees nothing of them, neither at the client's node nor at the backend's."""
    testbed: Testbed = request.getfixturevalue(layout)
    counts = [Counts(node, family) for node in testbed.lab.nodes]
    pod = testbed.lab.pods[backend]
    direct = way == "to the pod itself"
    to = (pod.address(family), 8080) if direct else (ONE[backend].vip(family), 80)
    for _ in range(5):
        assert ask(testbed.pod, *to, transport).pod == pod.name
    for each in counts if backend == 2 else counts[:1]:
        each.all_fast(least=50 if transport == "tcp" else 10)


def test_datagrams_of_a_service_that_is_scaled_to_zero_reach_its_next_endpoint(
    routed: Testbed, family: int
) -> None:
    """The endpoint's pod is gone with its endpoint. New flows are refused until another comes."""
    backends, to = routed.lab.pods[1:3], (SCALED.vip(family), 80)
    routed.cluster.apply("scaled", *objects(SCALED, backends[:1]))
    with routed.pod.socket(_SOCKETS[family], socket.SOCK_DGRAM) as made:
        made.settimeout(stretched(0.5))
        made.connect(to)

        def served_by() -> str:
            try:
                made.send(b"who\n")
                return str(json.loads(made.recv(1 << 16))["pod"])
            except OSError:
                return ""

        counts = Counts(routed.node, family)
        assert served_by() == backends[0].name
        counts.all_fast()
        routed.cluster.apply("scaled", *objects(SCALED, []))
        assert tally(routed.pod, *to, "udp", count=3) == {"refused": 3}
        assert served_by() in (backends[0].name, "")
        routed.cluster.apply("scaled", *objects(SCALED, backends[1:]))
        wait(lambda: served_by() == backends[1].name, "the flow has the new endpoint", timeout=5)
        assert tally(routed.pod, *to, "udp", count=3) == {backends[1].name: 3}
    routed.cluster.drop("scaled")


def test_between_pods_of_one_bridge_all_packets_take_the_stack(
    bridged: Testbed, family: int, transport: Protocol
) -> None:
    """The bridge switches the answers, and netfilter may see those: it has to see all."""
    counts = Counts(bridged.node, family)
    for backend in (0, 1):
        answer = ask(bridged.pod, ONE[backend].vip(family), 80, transport)
        assert answer.pod == bridged.lab.pods[backend].name
    by_fast_path, _, invalid = counts.since()
    assert (by_fast_path, invalid) == (0, 0)


@pytest.mark.parametrize("where", [0, 1], ids=["by its own node", "by another node"])
def test_a_port_of_a_node_that_netfilter_translates_works_between_pods(
    any_layout: Testbed, family: int, transport: Protocol, where: int
) -> None:
    """A hostPort: netfilter must see the answers, which look as if the pods talked directly."""
    node, pod = any_layout.lab.nodes[where], any_layout.lab.pods[(1, 2)[where]]
    target = pod.address(family) if family == 4 else f"[{pod.address(family)}]"
    rule = ["PREROUTING", "-d", node.address(family), "-p", transport, "--dport", "8088"]
    rule += ["-j", "DNAT", "--to-destination", f"{target}:8080"]
    tool = ["iptables" if family == 4 else "ip6tables", "-w", "-t", "nat"]
    node.run([*tool, "-A", *rule])
    try:
        for _ in range(5):
            assert ask(any_layout.pod, node.address(family), 8088, transport).pod == pod.name
            assert ask(any_layout.pod, pod.address(family), 8080, transport).pod == pod.name
    finally:
        node.run([*tool, "-D", *rule])


@BACKENDS
def test_a_reset_ends_a_connection_at_once(routed: Testbed, family: int, backend: int) -> None:
    counts = Counts(routed.node, family)
    for _ in range(3):
        conversation = connect(routed.pod, ONE[backend].vip(family), 80)
        conversation.who()
        conversation.reset()
    counts.all_fast(least=15)


@BACKENDS
def test_large_data_is_fast_and_arrives_whole(routed: Testbed, family: int, backend: int) -> None:
    counts = Counts(routed.node, family)
    for verb in ("fetch", "deliver"):
        with connect(routed.pod, ONE[backend].vip(family), 80) as conversation:
            assert getattr(conversation, verb)(_BIG)
    counts.all_fast(least=30)


@pytest.mark.parametrize("backend", [1, 2], ids=["local backend", "remote backend"])
def test_a_pod_that_asks_a_node_port_is_masqueraded_on_the_fast_path(
    routed: Testbed, family: int, transport: Protocol, backend: int
) -> None:
    counts = Counts(routed.node, family)
    pod = routed.lab.pods[backend]
    for _ in range(5):
        node_port = routed.node.address(family), ONE[backend].node_port
        answer = ask(routed.pod, *node_port, transport)
        assert answer.pod == pod.name
        assert answer.peer.rpartition(":")[0].strip("[]") == routed.leaving(
            pod, routed.node, family
        )
    counts.all_fast(least=50 if transport == "tcp" else 10)


@pytest.mark.parametrize("which", OUTSIDE)
@pytest.mark.parametrize("layout", ["routed", "bridged"])
def test_a_client_outside_is_served_by_the_fast_path(
    request: pytest.FixtureRequest, layout: str, family: int, transport: Protocol, which: str
) -> None:
    """On the node that it asks: netfilter sees nothing there that a CNI could masquerade."""
    testbed: Testbed = request.getfixturevalue(layout)
    counts = Counts(testbed.node, family)
    ask(testbed.client, testbed.node.address(family), OUTSIDE[which].node_port, transport)
    counts.all_fast()


def test_packets_go_into_a_pod_on_a_bridge_past_its_port(bridged: Testbed, family: int) -> None:
    """But for one now and then, by which the kernel learns that its neighbour is in use."""
    pod = bridged.lab.pods[2]
    with connect(bridged.pod, pod.address(family), 8080) as conversation:
        conversation.who()

        def go_past_the_port() -> bool:
            before = packets_by_port(pod)
            assert all(conversation.echo(b"question %d" % number) for number in range(50))
            return packets_by_port(pod) - before < 25

        # A neighbour that the kernel still asks for has no fast path until the next tick.
        wait(go_past_the_port, "packets go past the port")


def test_a_client_outside_reaches_a_pod_of_a_bridge_whose_port_has_another_program(
    bridged: Testbed,
) -> None:
    """Its answers come by the port, so they take the stack: the question does, too.

    Else a CNI's masquerade takes the first answer for a connection of the pod's own.
    """
    pod = bridged.lab.pods[0]
    ways = list(itertools.product(FAMILIES, TRANSPORTS, ("local", "masqueraded")))

    def answering(family: int, transport: Protocol, which: str) -> str:
        number = OUTSIDE[which].node_port
        return ask(bridged.client, bridged.node.address(family), number, transport).pod

    with another_program(bridged, pod):
        for way in ways:
            counts = Counts(bridged.node, way[0])
            assert answering(*way) == pod.name
            by_fast_path, forwarded, invalid = counts.since()
            assert (by_fast_path, invalid, bool(forwarded)) == (0, 0, True), way
    for way in ways:
        counts = Counts(bridged.node, way[0])
        assert answering(*way) == pod.name
        counts.all_fast()


def assert_fast_through_restarts(
    testbed: Testbed, client: Namespace, *frontends: tuple[int, tuple[str, int]]
) -> None:
    """Assert that connections stay fast while the agent is stopped, killed and started.

    ``frontends``: each with its family.
    """
    cluster, node = testbed.cluster, testbed.node
    counts = [Counts(node, family) for family in FAMILIES]
    with ExitStack() as stack:
        conversations = [stack.enter_context(connect(client, *to)) for _, to in frontends]
        for conversation in conversations:
            conversation.who()
        for end in (cluster.stop, cluster.kill):
            end(node)
            assert all(conversation.echo(b"no agent runs") for conversation in conversations)
            cluster.start(node)
            assert all(conversation.echo(b"an agent runs") for conversation in conversations)
    for of_family in counts:
        of_family.all_fast(least=8)


@pytest.mark.slow
def test_connections_from_outside_survive_a_restart_of_the_agent(routed: Testbed) -> None:
    """They stay fast, though the new agent has still to find out whether they may be."""
    node = routed.node
    asked = itertools.product(FAMILIES, OUTSIDE.values())
    frontends = [(family, (node.address(family), of.node_port)) for family, of in asked]
    assert_fast_through_restarts(routed, routed.client, *frontends)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--fast-path=off", "--fast-path=established"])
def test_downloads_from_outside_go_on_when_the_agent_is_started_without_the_fast_path(
    routed: Testbed, option: str
) -> None:
    """Netfilter is told of them first, or the CNI would masquerade the next answer."""
    cluster, node = routed.cluster, routed.node
    with downloads_from_outside(routed) as downloads:
        try:
            assert all(download.goes_on() for _, download in downloads)
            cluster.stop(node)
            assert all(download.goes_on() for _, download in downloads)
            cluster.start(node, options=[option])
            assert all(download.goes_on() for _, download in downloads)
            counts = [Counts(node, family) for family in FAMILIES]
            for family, download in downloads:
                words = ["-f", f"ipv{family}", "-p", "tcp", "--sport", download.port]
                assert "ESTABLISHED" in node.run(["conntrack", "-L", *words]).stdout
                download.finish()
            for of_family in counts:
                by_fast_path, _, invalid = of_family.since()
                assert (by_fast_path, invalid) == (0, 0)
        finally:
            cluster.stop(node)
            cluster.start(node)


def test_a_long_connection_survives_a_restart_of_the_agent(routed: Testbed) -> None:
    """Also through a kill -9 of the agent."""
    frontends = [(family, (ONE[2].vip(family), 80)) for family in FAMILIES]
    assert_fast_through_restarts(routed, routed.pod, *frontends)


def test_unknown_neighbours_are_resolved(routed: Testbed, family: int) -> None:
    """Nothing is lost, and no packet goes by the stack."""
    counts = Counts(routed.node, family)
    with connect(routed.pod, ONE[2].vip(family), 80) as conversation:
        conversation.who()
        routed.node.run(["ip", f"-{family}", "neigh", "flush", "dev", "eth0"])
        assert conversation.echo(b"which neighbour?")
    counts.all_fast()


def expired(namespace: Namespace, to: str, family: int, hops: int) -> int:
    """Send a datagram with so many hops; return the resulting error, 0 for none."""
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with namespace.socket(kind, socket.SOCK_DGRAM) as made:
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


def test_hops_are_counted_and_their_end_is_reported(routed: Testbed, family: int) -> None:
    """A traceroute to the frontend shows this node, the other node, and the pod."""
    counts = Counts(routed.node, family)
    to = ONE[2].vip(family)
    seen = [expired(routed.pod, to, family, hops) for hops in (1, 2, 3)]
    assert seen == [errno.EHOSTUNREACH, errno.EHOSTUNREACH, 0]
    assert counts.since()[1:] == (0, 0)


def test_packets_that_leave_the_pod_range_are_passed_to_the_cni(
    routed: Testbed, family: int, transport: Protocol
) -> None:
    """The CNI masquerades them in netfilter: here a pod's connection to an API server."""
    counts = Counts(routed.node, family)
    answer = ask(routed.pod, API.vip(family), 80, transport)
    assert answer.peer.rpartition(":")[0].strip("[]") == routed.node.address(family)
    by_shortcut, forwarded, _ = counts.since()
    assert by_shortcut == 0
    assert forwarded


# -- packets that are too long -----------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow() -> Iterator[Testbed]:
    """Tunnels with a smaller MTU than the pods', and a client behind a link of 1300 bytes."""
    with fast(layout="routed", overlay="vxlan", pod_mtu=1500, far_mtu=1300) as testbed:
        yield testbed


def learned(namespace: Namespace, to: str) -> str:
    """Return the route to an address in a namespace, with the learned MTU."""
    return namespace.run(["ip", "-o", "route", "get", to]).stdout


def test_a_pod_learns_what_fits_from_its_own_node(narrow: Testbed, family: int) -> None:
    """The stack sends the error before netfilter runs; packets that fit are fast again."""
    counts = Counts(narrow.node, family)
    with connect(narrow.pod, ONE[2].vip(family), 80) as conversation:
        assert conversation.deliver(_BIG)
    assert "mtu 1450" in learned(narrow.pod, ONE[2].vip(family))
    by_shortcut, forwarded, invalid = counts.since()
    assert by_shortcut > 30
    assert (forwarded, invalid) == (0, 0)


def test_errors_of_remote_routers_reach_a_backend(narrow: Testbed, family: int) -> None:
    """Conntrack would call them invalid: they are about connections that it never saw."""
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


@pytest.mark.parametrize("which", OUTSIDE)
def test_answers_in_fragments_reach_a_client_outside(
    routed: Testbed, family: int, which: str
) -> None:
    """They take the stack, where the CNI masquerades an answer to nothing."""
    to = routed.node.address(family), OUTSIDE[which].node_port
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    with routed.client.socket(kind, socket.SOCK_DGRAM) as made:
        made.settimeout(3)
        made.connect(to)
        for size in (100, 4000, 100, 4000):
            made.send(b"send %d" % size)
            assert len(made.recv(1 << 16)) == size
