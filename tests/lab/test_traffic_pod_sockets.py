"""What the socket hooks do for pods, and what they leave to tc.

That both give the same is shown elsewhere (``test_traffic_sockets``); here is who does it.
"""

from __future__ import annotations

import errno
import ipaddress
import itertools
import socket
from collections.abc import Iterator

import pytest

from bpfsvc import address
from bpfsvc.datapath import sockets
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.lab import links
from bpfsvc.lab.dial import Answer, Protocol, ask, tally
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.patience import wait
from bpfsvc.lab.pod import Pod
from tests.lab.acquainted import acquaint, by_packets, known, opened, state
from tests.lab.scene import (
    EMPTY,
    INGRESS,
    LOCAL,
    ONE,
    WEB,
    Named,
    Scene,
    at,
    built,
    host,
    objects,
)
from tests.lab.test_traffic_interfaces import attached

STICKY = Named("sticky", 60)
ROLLED = Named("rolled", 61)
MESH_PORT = 15001

WITHOUT_PORT = ((socket.SOL_IP, 24, 1),)
"""IP_BIND_ADDRESS_NO_PORT (ip(7)): a bound socket gets its port when it connects, as others do."""

MARKED = ((socket.SOL_SOCKET, socket.SO_MARK, 1),)
"""A socket with a mark may be routed in another way than others: it is left to tc."""


@pytest.fixture(scope="module")
def met() -> Iterator[Scene]:
    """A lab whose pods are below the cgroup of their node, and known to the hooks."""
    with built(layout="routed", holds_pods=True) as scene:
        lab, cluster = scene
        ranges = [f"{lab.pods[0].address(4)}/32", f"{lab.pods[0].address(6)}/128"]
        every = {
            WEB: objects(WEB, lab.pods),
            STICKY: objects(STICKY, lab.pods, sessionAffinity="ClientIP"),
            ROLLED: objects(ROLLED, lab.pods[1:2]),
            EMPTY: objects(EMPTY, []),
            LOCAL: objects(
                LOCAL,
                lab.pods[2:3],
                ingress=list(INGRESS.values()),
                loadBalancerSourceRanges=ranges,
            ),
        } | {one: objects(one, [pod]) for one, pod in zip(ONE, lab.pods, strict=True)}
        cluster.put("services", *itertools.chain.from_iterable(every.values()))
        cluster.start()
        acquaint(scene)
        yield scene


@pytest.fixture
def newcomer(met: Scene) -> Iterator[Pod]:
    """A pod that the hooks have not met."""
    pod = met.node.add_pod("newcomer")
    wait(lambda: attached(met.node, pod), "the programs are attached")
    yield pod
    pod.remove()


def backend(scene: Scene) -> Pod:
    """Give a pod of the other node, which ``ONE[2]`` leads to."""
    return next(iter(scene.lab.nodes[1].pods.values()))


def ask_one(place: Namespace, family: int, protocol: Protocol = "tcp") -> Answer:
    return ask(place, ONE[2].vip(family), 80, protocol, connected=False)


# -- who translates --


def test_a_call_of_a_pod_is_translated_before_there_is_a_packet(
    met: Scene, family: int, transport: Protocol
) -> None:
    """TCP, and UDP without a connection: either side sees what it would see by tc."""
    answer = ask_one(met.pod, family, transport)
    assert answer.pod == backend(met).name
    assert host(answer.peer) == met.pod.address(family)
    assert answer.local == at(backend(met).address(family), 8080)
    assert answer.remote == at(ONE[2].vip(family), 80)
    assert not by_packets(met.node, answer.peer)


def test_a_mapped_address_is_as_good(met: Scene) -> None:
    mapped = f"::ffff:{ONE[2].vip(4)}"
    answer = ask(met.pod, mapped, 80)
    assert (answer.pod, answer.remote) == (backend(met).name, at(mapped, 80))
    assert not by_packets(met.node, at(met.pod.address(4), int(answer.own.rpartition(":")[2])))


def test_connected_datagrams_are_left_to_packets(met: Scene, family: int) -> None:
    """Nobody could lead them to another backend later: sockets are closed in one namespace only."""
    answer = ask(met.pod, ONE[2].vip(family), 80, "udp")
    assert (answer.pod, answer.peer) == (backend(met).name, answer.own)
    assert by_packets(met.node, answer.peer)


def test_what_is_masqueraded_is_left_to_packets(
    met: Scene, family: int, transport: Protocol
) -> None:
    """A NodePort under the Cluster policy: the backend sees the node."""
    to = (met.node.address(family), ONE[2].node_port)
    answer = ask(met.pod, *to, transport, connected=False)
    assert answer.pod == backend(met).name
    assert host(answer.peer) == met.leaving(backend(met), met.node, family)
    own = at(met.pod.address(family), int(answer.own.rpartition(":")[2]))
    assert by_packets(met.node, own)


def test_a_pod_reaches_itself_as_often_as_any_other(met: Scene, family: int) -> None:
    """Hairpin: the hook has chosen, and tc, which masquerades, does not choose again."""
    answer = ask(met.pod, ONE[0].vip(family), 80)
    assert (answer.pod, answer.remote) == (met.pod.name, at(ONE[0].vip(family), 80))
    assert host(answer.peer) == met.leaving(met.pod, met.node, family)
    counts = tally(met.pod, WEB.vip(family), 80, count=400)
    # Binomial with 400 trials and a quarter: within six standard deviations. By two choices it
    # would be a sixteenth, 25.
    assert 48 <= counts[met.pod.name] <= 152


def test_a_refusal_is_left_to_packets(met: Scene, family: int) -> None:
    """A call that does not wait is not refused at once, as none is by tc."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    with met.pod.socket(domain) as made:
        made.setblocking(False)
        assert made.connect_ex((EMPTY.vip(family), 80)) == errno.EINPROGRESS
    assert tally(met.pod, EMPTY.vip(family), 80, count=2) == {"refused": 2}
    with met.pod.socket(domain, socket.SOCK_DGRAM) as made:
        made.sendto(b"who", (EMPTY.vip(family), 80))


def test_loopback_is_the_pods_own(met: Scene) -> None:
    """127.0.0.1:nodePort is the node's, and not that of its pods."""
    for own in ("127.0.0.1", "::1"):
        assert tally(met.pod, own, ONE[2].node_port, count=1) == {"refused": 1}


# -- the same rules --


def test_affinity_is_that_of_the_pods_address(met: Scene, family: int) -> None:
    """What the hook remembers is what tc remembers, and the other way round."""
    for first, second in (((), MARKED), (MARKED, ())):
        for pod in met.node.pods.values():
            with opened(met.node) as pinned:
                affinities = pinned.map("affinities")
                affinities.delete_many([key for key, _ in affinities.items()])
            chosen = ask(pod, STICKY.vip(family), 80, options=first).pod
            for options in (first, second) * 4:
                assert ask(pod, STICKY.vip(family), 80, options=options).pod == chosen


def test_a_socket_that_has_a_port_is_left_to_tc(met: Scene, family: int) -> None:
    """Another may have the same one, and be given the same backend."""
    answer = ask(met.pod, ONE[2].vip(family), 80, source=(met.pod.address(family), 0))
    assert host(answer.peer) == met.pod.address(family)
    assert by_packets(met.node, answer.peer)


def test_source_ranges_know_the_pods_address(met: Scene, family: int) -> None:
    allowed, other = met.node.pods.values()
    answer = ask(allowed, INGRESS[family], 80)
    assert answer.pod == backend(met).name
    assert not by_packets(met.node, answer.peer)
    assert tally(other, INGRESS[family], 80, count=1, timeout=0.3) == {"timeout": 1}


def test_a_socket_that_is_bound_keeps_its_address(met: Scene, family: int) -> None:
    """To the address that is known of the pod it is translated; to another it is left to tc."""
    pod = list(met.node.pods.values())[1]
    own = (pod.address(family), 0)
    answer = ask(pod, ONE[2].vip(family), 80, source=own, options=WITHOUT_PORT)
    assert host(answer.peer) == pod.address(family)
    assert not by_packets(met.node, answer.peer)
    second = "10.244.1.99" if family == 4 else "fd44:1::99"
    give(pod, second)
    answer = ask(pod, ONE[2].vip(family), 80, source=(second, 0))
    assert host(answer.peer) == second
    assert by_packets(met.node, answer.peer)
    assert state(pod, family) == "proven"


def give(pod: Pod, text: str) -> None:
    """Let a pod have a further address, which its node knows of."""
    added = ipaddress.ip_address(text)
    links.add_address(pod.uplink, added)
    links.await_address(pod.uplink, added)
    links.add_route(pod.node, links.host_route(added), pod.host_end)
    links.add_neighbour(pod.host_end, added, pod.uplink.mac)


# -- datagrams --


def test_datagrams_of_a_socket_leave_a_backend_that_serves_no_more(met: Scene, family: int) -> None:
    """One socket keeps its backend, and takes another when that is none any more."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    pods = met.lab.pods
    with met.pod.socket(domain, socket.SOCK_DGRAM) as made:
        made.settimeout(2)
        for chosen in (pods[1:2], pods[2:3], pods[3:4]):
            met.cluster.apply("rolled", *objects(ROLLED, chosen))
            for _ in range(3):
                assert who(made, ROLLED.vip(family)) == chosen[0].name
        own = at(met.pod.address(family), made.getsockname()[1])
        assert not by_packets(met.node, own)


def test_one_socket_has_one_backend(met: Scene, family: int) -> None:
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    for _ in range(4):
        with met.pod.socket(domain, socket.SOCK_DGRAM) as made:
            made.settimeout(2)
            assert len({who(made, WEB.vip(family)) for _ in range(8)}) == 1


def who(made: socket.socket, vip: str) -> str:
    """Ask by one datagram; the answer is from whom was asked."""
    made.sendto(b"echo " + vip.encode(), (vip, 80))
    data, remote = made.recvfrom(100)
    assert (data, remote[0], remote[1]) == (b"echo " + vip.encode(), vip, 80)
    made.sendto(b"who\n", (vip, 80))
    return str(made.recvfrom(1 << 16)[0].split(b'"')[3].decode())


# -- getting to know a namespace --


def test_a_namespace_is_learned_from_its_first_packets(
    met: Scene, newcomer: Pod, family: int
) -> None:
    """The first call is tc's, and works; the second is a trial; then the namespace is known."""
    answer = ask_one(newcomer, family)
    assert (answer.pod, answer.peer) == (backend(met).name, answer.own)
    assert by_packets(met.node, answer.peer)
    assert state(newcomer, family) == "learned"
    answer = ask_one(newcomer, family)
    assert (answer.pod, answer.peer) == (backend(met).name, answer.own)
    assert not by_packets(met.node, answer.peer)
    assert state(newcomer, family) == "proven"
    (row,) = [row for row in known(met.node) if row["address"] == newcomer.address(family)]
    assert (row["interface"], row["clients"]) == (f"#{newcomer.host_end.index}", "pod")


def test_a_socket_that_began_by_packets_stays_there(met: Scene, newcomer: Pod, family: int) -> None:
    """Else its flow would change its backend while it lives."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    with newcomer.socket(domain, socket.SOCK_DGRAM) as made:
        made.settimeout(2)
        chosen = {who(made, WEB.vip(family)) for _ in range(2)}
        acquaint(met, newcomer)
        chosen |= {who(made, WEB.vip(family)) for _ in range(8)}
        assert len(chosen) == 1
        assert by_packets(met.node, at(newcomer.address(family), made.getsockname()[1]))


def test_a_namespace_with_two_addresses_is_left_alone(met: Scene, newcomer: Pod) -> None:
    """One call a second is looked at; a packet from another address ends it."""
    acquaint(met, newcomer)
    first, second = newcomer.address(4), "10.244.1.98"
    give(newcomer, second)
    newcomer.netlink.route(
        "replace", dst="default", gateway="169.254.1.1", oif=newcomer.uplink.index, prefsrc=second
    )

    def is_unsure() -> bool:
        assert host(ask_one(newcomer, 4).peer) == second
        return any(row["address"] == first and row["state"] == "unsure" for row in known(met.node))

    wait(is_unsure, "the second address is noticed")
    assert by_packets(met.node, ask_one(newcomer, 4).peer)
    answer = ask_one(newcomer, 6)
    assert not by_packets(met.node, answer.peer)


# -- who wants to be left alone --


@pytest.mark.parametrize("listens", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_pod_with_a_proxy_of_a_mesh_is_left_alone(
    met: Scene, newcomer: Pod, listens: str
) -> None:
    """While somebody listens on a port of ``--mesh-ports`` within the pod."""
    acquaint(met, newcomer)
    with newcomer.socket(socket.AF_INET6 if ":" in listens else socket.AF_INET) as proxy:
        if ":" in listens:
            proxy.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        proxy.bind((listens, MESH_PORT))
        proxy.listen()
        wait(lambda: translators(met, newcomer) == {"tc"}, "its calls are left alone")
    wait(lambda: translators(met, newcomer) == {"hook"}, "they are translated again")


def test_a_pod_that_opted_out_is_left_alone(met: Scene, newcomer: Pod) -> None:
    """By either of its addresses."""
    acquaint(met, newcomer)
    with opened(met.node) as pinned:
        optouts = pinned.map("socket_optouts")
        key = address.pack(newcomer.address(4))
        optouts.update(key, bytes(optouts.value_size))
        try:
            wait(lambda: translators(met, newcomer) == {"tc"}, "its calls are left alone")
        finally:
            optouts.delete(key)
        wait(lambda: translators(met, newcomer) == {"hook"}, "they are translated again")


def translators(scene: Scene, pod: Pod) -> set[str]:
    """Give who translates calls of a pod, of all families, just now."""
    found = set()
    for family in scene.lab.families:
        answer = ask_one(pod, family)
        assert answer.pod == backend(scene).name
        found.add("tc" if by_packets(scene.node, answer.peer) else "hook")
    return found


# -- last: other ways to be started --


def test_whose_sockets_are_translated_can_be_told(met: Scene) -> None:
    """``host``: not those of pods; ``off``: nothing is attached, and nothing is amiss."""
    root = PinRoot(met.node.pin_root)
    for whose, hooks in (("host", 8), ("off", 0), ("all", 8)):
        met.cluster.stop(met.node)
        met.cluster.start(met.node, options=("--socket-lb", whose))
        assert len(sockets.attached(root)) == hooks
        assert translators(met, met.pod) == {"hook" if whose == "all" else "tc"}
        if whose != "off":
            assert ask_one(met.node, 4).pod == backend(met).name
        said = met.cluster.command(met.node, "status")
        assert f"{hooks} of 8 hooks attached" in said.stdout
        assert "socket hooks are not attached" not in said.stdout
