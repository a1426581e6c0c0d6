"""Which calls of pods the socket hooks translate, and which they leave to tc.

``test_traffic_sockets`` shows that both have the same result.
"""

from __future__ import annotations

import errno
import ipaddress
import itertools
import socket
from collections.abc import Iterator

import pytest

from bpfsvc.base import address
from bpfsvc.datapath.attach import cgroup
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.dial import Protocol, Reply, ask, tally
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.pod import LabPod
from tests.lab.known_pods import by_packets, known, make_known, opened, state, unknown_pod
from tests.lab.testbed import (
    EMPTY,
    INGRESS,
    LOCAL,
    ONE,
    WEB,
    Named,
    Testbed,
    ask_until_port_is_kept,
    at,
    built_testbed,
    host,
    objects,
)

STICKY = Named("sticky", 60)
ROLLED = Named("rolled", 61)
MESH_PORT = 15001

WITHOUT_PORT = ((socket.SOL_IP, 24, 1),)
"""IP_BIND_ADDRESS_NO_PORT (ip(7)): a bound socket gets its port when it connects, as others do."""

MARKED = ((socket.SOL_SOCKET, socket.SO_MARK, 1),)
"""A socket with a mark may have another route than others: it is left to tc."""


@pytest.fixture(scope="module")
def known_testbed() -> Iterator[Testbed]:
    """A lab whose pods are below the cgroup of their node, and known to the hooks."""
    with built_testbed(layout="routed", holds_pods=True) as testbed:
        lab, cluster = testbed
        ranges = [f"{lab.pods[0].address(4)}/32", f"{lab.pods[0].address(6)}/128"]
        every = {
            WEB: objects(WEB, lab.pods),
            STICKY: objects(STICKY, lab.pods, sessionAffinity="ClientIP"),
            EMPTY: objects(EMPTY, []),
            LOCAL: objects(
                LOCAL,
                lab.pods[2:3],
                ingress=list(INGRESS.values()),
                loadBalancerSourceRanges=ranges,
            ),
        } | {one: objects(one, [pod]) for one, pod in zip(ONE, lab.pods, strict=True)}
        cluster.put("services", *itertools.chain.from_iterable(every.values()))
        cluster.put("rolled", *objects(ROLLED, lab.pods[1:2]))
        cluster.start()
        make_known(testbed)
        yield testbed


@pytest.fixture
def new_pod(known_testbed: Testbed) -> Iterator[LabPod]:
    """A pod that the hooks do not know yet."""
    with unknown_pod(known_testbed.node) as pod:
        yield pod


def backend(testbed: Testbed) -> LabPod:
    """Return the pod of the other node that is the backend of ``ONE[2]``."""
    return next(iter(testbed.lab.nodes[1].pods.values()))


def ask_one(namespace: Namespace, family: int, protocol: Protocol = "tcp") -> Reply:
    return ask(namespace, ONE[2].vip(family), 80, protocol, connected=False)


# -- the hook or tc --


def test_a_call_of_a_pod_is_translated_before_there_is_a_packet(
    known_testbed: Testbed, family: int, transport: Protocol
) -> None:
    """TCP, and UDP without a connection: both sides see the same as with tc."""
    answer = ask_one(known_testbed.pod, family, transport)
    assert answer.pod == backend(known_testbed).name
    assert host(answer.peer) == known_testbed.pod.address(family)
    assert answer.local == at(backend(known_testbed).address(family), 8080)
    assert answer.remote == at(ONE[2].vip(family), 80)
    assert not by_packets(known_testbed.node, answer.peer)


def test_a_mapped_address_is_translated_too(known_testbed: Testbed) -> None:
    mapped = f"::ffff:{ONE[2].vip(4)}"
    answer = ask(known_testbed.pod, mapped, 80)
    assert (answer.pod, answer.remote) == (backend(known_testbed).name, at(mapped, 80))
    assert not by_packets(
        known_testbed.node, at(known_testbed.pod.address(4), int(answer.own.rpartition(":")[2]))
    )


def test_connected_datagrams_are_left_to_tc(known_testbed: Testbed, family: int) -> None:
    """They could not get another backend later: sockets can be closed in one namespace only."""
    answer = ask_until_port_is_kept(known_testbed.pod, ONE[2].vip(family), 80, "udp")
    assert (answer.pod, answer.peer) == (backend(known_testbed).name, answer.own)
    assert by_packets(known_testbed.node, answer.peer)


def test_masqueraded_calls_are_left_to_tc(
    known_testbed: Testbed, family: int, transport: Protocol
) -> None:
    """A NodePort with the Cluster policy: the backend sees the node."""
    to = (known_testbed.node.address(family), ONE[2].node_port)
    answer = ask(known_testbed.pod, *to, transport, connected=False)
    assert answer.pod == backend(known_testbed).name
    assert host(answer.peer) == known_testbed.leaving(
        backend(known_testbed), known_testbed.node, family
    )
    own = at(known_testbed.pod.address(family), int(answer.own.rpartition(":")[2]))
    assert by_packets(known_testbed.node, own)


def test_a_pod_reaches_itself_as_often_as_any_other_backend(
    known_testbed: Testbed, family: int
) -> None:
    """Hairpin: the hook chooses, and tc, which masquerades, does not choose again."""
    answer = ask(known_testbed.pod, ONE[0].vip(family), 80)
    assert (answer.pod, answer.remote) == (known_testbed.pod.name, at(ONE[0].vip(family), 80))
    assert host(answer.peer) == known_testbed.leaving(known_testbed.pod, known_testbed.node, family)
    counts = tally(known_testbed.pod, WEB.vip(family), 80, count=400)
    # Binomial with 400 trials and a quarter: within six standard deviations. With two choices
    # it would be a sixteenth, 25.
    assert 48 <= counts[known_testbed.pod.name] <= 152


def test_refusals_are_left_to_tc(known_testbed: Testbed, family: int) -> None:
    """A call that does not wait is not refused at once: tc refuses none at once either."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    with known_testbed.pod.socket(domain) as made:
        made.setblocking(False)
        assert made.connect_ex((EMPTY.vip(family), 80)) == errno.EINPROGRESS
    assert tally(known_testbed.pod, EMPTY.vip(family), 80, count=2) == {"refused": 2}
    with known_testbed.pod.socket(domain, socket.SOCK_DGRAM) as made:
        made.sendto(b"who", (EMPTY.vip(family), 80))


def test_loopback_in_a_pod_is_not_translated(known_testbed: Testbed) -> None:
    """127.0.0.1:nodePort is a frontend on the node, not in its pods."""
    for own in ("127.0.0.1", "::1"):
        assert tally(known_testbed.pod, own, ONE[2].node_port, count=1) == {"refused": 1}


# -- the same rules --


def test_affinity_is_by_the_pods_address(known_testbed: Testbed, family: int) -> None:
    """The hook and tc share the affinity entries."""
    for first, second in (((), MARKED), (MARKED, ())):
        for pod in known_testbed.node.pods.values():
            with opened(known_testbed.node) as pinned:
                affinities = pinned.map("affinities")
                affinities.delete_many([key for key, _ in affinities.items()])
            chosen = ask(pod, STICKY.vip(family), 80, options=first).pod
            for options in (first, second) * 4:
                assert ask(pod, STICKY.vip(family), 80, options=options).pod == chosen


def test_a_socket_that_has_a_port_is_left_to_tc(known_testbed: Testbed, family: int) -> None:
    """Another socket may have the same port and get the same backend."""
    answer = ask(
        known_testbed.pod, ONE[2].vip(family), 80, source=(known_testbed.pod.address(family), 0)
    )
    assert host(answer.peer) == known_testbed.pod.address(family)
    assert by_packets(known_testbed.node, answer.peer)


def test_source_ranges_are_checked_with_the_pods_address(
    known_testbed: Testbed, family: int
) -> None:
    allowed, other = known_testbed.node.pods.values()
    answer = ask(allowed, INGRESS[family], 80)
    assert answer.pod == backend(known_testbed).name
    assert not by_packets(known_testbed.node, answer.peer)
    assert tally(other, INGRESS[family], 80, count=1, timeout=0.3) == {"timeout": 1}


def test_a_socket_that_is_bound_keeps_its_address(known_testbed: Testbed, family: int) -> None:
    """Bound to the known address of the pod it is translated; bound to another it is left to tc."""
    pod = list(known_testbed.node.pods.values())[1]
    own = (pod.address(family), 0)
    answer = ask(pod, ONE[2].vip(family), 80, source=own, options=WITHOUT_PORT)
    assert host(answer.peer) == pod.address(family)
    assert not by_packets(known_testbed.node, answer.peer)
    second = "10.244.1.99" if family == 4 else "fd44:1::99"
    add_pod_address(pod, second)
    answer = ask(pod, ONE[2].vip(family), 80, source=(second, 0))
    assert host(answer.peer) == second
    assert by_packets(known_testbed.node, answer.peer)
    assert state(pod, family) == "proven"


def add_pod_address(pod: LabPod, text: str) -> None:
    """Add an address to a pod, and a route to it on its node."""
    added = ipaddress.ip_address(text)
    links.add_address(pod.uplink, added)
    links.await_address(pod.uplink, added)
    links.add_route(pod.node, links.host_route(added), pod.host_end)
    links.add_neighbour(pod.host_end, added, pod.uplink.mac)


# -- datagrams --


def test_datagrams_of_a_socket_get_another_backend_when_theirs_is_removed(
    known_testbed: Testbed, family: int
) -> None:
    """One socket keeps its backend, and gets another one when that is removed."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    pods = known_testbed.lab.pods
    with known_testbed.pod.socket(domain, socket.SOCK_DGRAM) as made:
        made.settimeout(2)
        for chosen in (pods[1:2], pods[2:3], pods[3:4]):
            known_testbed.cluster.apply("rolled", *objects(ROLLED, chosen))
            for _ in range(3):
                assert who(made, ROLLED.vip(family)) == chosen[0].name
        own = at(known_testbed.pod.address(family), made.getsockname()[1])
        # An earlier connection of the pod may have had the port.
        flow = f"UDP {at(ROLLED.vip(family), 80)}"
        assert flow not in by_packets(known_testbed.node, own)


def test_one_socket_has_one_backend(known_testbed: Testbed, family: int) -> None:
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    for _ in range(4):
        with known_testbed.pod.socket(domain, socket.SOCK_DGRAM) as made:
            made.settimeout(2)
            assert len({who(made, WEB.vip(family)) for _ in range(8)}) == 1


def who(made: socket.socket, vip: str) -> str:
    """Send one datagram; assert that the answer comes from the same address."""
    made.sendto(b"echo " + vip.encode(), (vip, 80))
    data, remote = made.recvfrom(100)
    assert (data, remote[0], remote[1]) == (b"echo " + vip.encode(), vip, 80)
    made.sendto(b"who\n", (vip, 80))
    return str(made.recvfrom(1 << 16)[0].split(b'"')[3].decode())


# -- learning a namespace --


def test_a_namespace_is_learned_from_its_first_packets(
    known_testbed: Testbed, new_pod: LabPod, family: int
) -> None:
    """The first call is translated by tc; the second is a trial; then the namespace is known."""
    answer = ask_one(new_pod, family)
    assert (answer.pod, answer.peer) == (backend(known_testbed).name, answer.own)
    assert by_packets(known_testbed.node, answer.peer)
    assert state(new_pod, family) == "learned"
    answer = ask_one(new_pod, family)
    assert (answer.pod, answer.peer) == (backend(known_testbed).name, answer.own)
    assert not by_packets(known_testbed.node, answer.peer)
    assert state(new_pod, family) == "proven"
    (row,) = [row for row in known(known_testbed.node) if row["address"] == new_pod.address(family)]
    assert (row["interface"], row["clients"]) == (f"#{new_pod.host_end.index}", "pod")


def test_a_socket_that_tc_translated_first_stays_with_tc(
    known_testbed: Testbed, new_pod: LabPod, family: int
) -> None:
    """Otherwise its flow might change its backend."""
    domain = socket.AF_INET if family == 4 else socket.AF_INET6
    with new_pod.socket(domain, socket.SOCK_DGRAM) as made:
        made.settimeout(2)
        chosen = {who(made, WEB.vip(family)) for _ in range(2)}
        assert state(new_pod, family) == "learned"  # none of its calls was a trial
        make_known(known_testbed, new_pod)
        chosen |= {who(made, WEB.vip(family)) for _ in range(8)}
        assert len(chosen) == 1
        assert by_packets(known_testbed.node, at(new_pod.address(family), made.getsockname()[1]))


def test_a_namespace_with_two_addresses_is_left_to_tc(
    known_testbed: Testbed, new_pod: LabPod
) -> None:
    """One call per second is checked; a packet from another address ends the translation."""
    make_known(known_testbed, new_pod)
    first, second = new_pod.address(4), "10.244.1.98"
    add_pod_address(new_pod, second)
    new_pod.netlink.route(
        "replace", dst="default", gateway="169.254.1.1", oif=new_pod.uplink.index, prefsrc=second
    )

    def is_unsure() -> bool:
        assert host(ask_one(new_pod, 4).peer) == second
        return any(
            row["address"] == first and row["state"] == "unsure"
            for row in known(known_testbed.node)
        )

    wait(is_unsure, "the second address is noticed")
    assert by_packets(known_testbed.node, ask_one(new_pod, 4).peer)
    answer = ask_one(new_pod, 6)
    assert not by_packets(known_testbed.node, answer.peer)


# -- pods that opt out --


@pytest.mark.parametrize("listens", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_a_pod_with_a_mesh_proxy_is_left_to_tc(
    known_testbed: Testbed, new_pod: LabPod, listens: str
) -> None:
    """While a program listens on a port of ``--mesh-ports`` in the pod."""
    make_known(known_testbed, new_pod)
    with new_pod.socket(socket.AF_INET6 if ":" in listens else socket.AF_INET) as proxy:
        if ":" in listens:
            proxy.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        proxy.bind((listens, MESH_PORT))
        proxy.listen()
        wait(lambda: translators(known_testbed, new_pod) == {"tc"}, "its calls are left to tc")
    wait(lambda: translators(known_testbed, new_pod) == {"hook"}, "they are translated again")


def test_a_pod_that_opted_out_is_left_to_tc(known_testbed: Testbed, new_pod: LabPod) -> None:
    """By both of its addresses."""
    make_known(known_testbed, new_pod)
    with opened(known_testbed.node) as pinned:
        optouts = pinned.map("socket_optouts")
        key = address.pack(new_pod.address(4))
        optouts.update(key, bytes(optouts.value_size))
        try:
            wait(lambda: translators(known_testbed, new_pod) == {"tc"}, "its calls are left to tc")
        finally:
            optouts.delete(key)
        wait(lambda: translators(known_testbed, new_pod) == {"hook"}, "they are translated again")


def translators(testbed: Testbed, pod: LabPod) -> set[str]:
    """Return what translates calls of a pod at present, over all families: "hook" or "tc"."""
    seen = set()
    for family in testbed.lab.families:
        answer = ask_one(pod, family)
        assert answer.pod == backend(testbed).name
        seen.add("tc" if by_packets(testbed.node, answer.peer) else "hook")
    return seen


# -- last: other flags of the agent --


def test_socket_lb_can_be_limited_to_the_node_or_turned_off(known_testbed: Testbed) -> None:
    """``host``: no sockets of pods; ``off``: nothing is attached, and no warning is given."""
    root = PinRoot(known_testbed.node.pin_root)
    for whose, hooks in (("host", 9), ("off", 0), ("all", 9)):
        known_testbed.cluster.stop(known_testbed.node)
        known_testbed.cluster.start(known_testbed.node, options=("--socket-lb", whose))
        assert len(cgroup.attached(root)) == hooks
        assert translators(known_testbed, known_testbed.pod) == {"hook" if whose == "all" else "tc"}
        if whose != "off":
            assert ask_one(known_testbed.node, 4).pod == backend(known_testbed).name
        status = known_testbed.cluster.command(known_testbed.node, "status")
        assert f"{hooks} of 9 hooks attached" in status.stdout
        assert "socket hooks are not attached" not in status.stdout
