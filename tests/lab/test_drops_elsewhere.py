"""``bpfsvc observe --drops-elsewhere``: packets of Services that other parts of the node drop."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from bpfsvc.base.http_client import encode_get
from bpfsvc.base.local_socket import address_of
from bpfsvc.datapath import syscall
from bpfsvc.devtools.lab.dial import ask, connect
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.objects import port
from bpfsvc.devtools.lab.patience import stretched, wait
from tests.lab.known_pods import make_known, opened
from tests.lab.test_observe import Line, Observer, observing, of_service
from tests.lab.test_quarantine import GIVES_UP
from tests.lab.testbed import ONE, Named, Testbed, built_testbed, objects, put_one_each

ELSEWHERE = "dropped_elsewhere"

pytestmark = pytest.mark.slow

FULL = Named("full", 71)
RANGES = Named("ranges", 72)


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """A lab whose packets take the stack, where rules and routes see them."""
    with built_testbed(layout="routed", holds_pods=True) as made:
        lab, cluster = made
        put_one_each(made)
        unread = (port(9998, "web"), port(9998, "dns", "UDP"))
        cluster.put(FULL.name, *objects(FULL, [lab.pods[1]], unread))
        restricted = objects(
            RANGES,
            [lab.pods[1]],
            families=(4,),
            ingress=["80.11.12.20"],
            loadBalancerSourceRanges=["203.0.113.0/24"],
        )
        cluster.put(RANGES.name, *restricted)
        lab.client.route("80.11.12.0/24", via=lab.nodes[0])
        cluster.options = ("--fast-path", "off")
        cluster.start()
        make_known(made)
        yield made


@contextmanager
def asking(testbed: Testbed, *words: str) -> Iterator[Observer]:
    """Observe drops elsewhere on the first node."""
    with observing(testbed, "--drops-elsewhere", *words) as observer:
        yield observer


@contextmanager
def dropping(namespace: Namespace, hook: str, match: str) -> Iterator[None]:
    """Have nftables drop what matches."""
    namespace.run(["nft", "add table inet site"])
    chain = f"add chain inet site drops {{ type filter hook {hook} priority 0; }}"
    namespace.run(["nft", chain])
    namespace.run(["nft", f"add rule inet site drops {match} drop"])
    try:
        yield
    finally:
        namespace.run(["nft", "delete table inet site"])


def fails(namespace: Namespace, address: str, number: int) -> None:
    with pytest.raises((TimeoutError, ConnectionError, PermissionError)):
        ask(namespace, address, number, options=[GIVES_UP])


def attached(testbed: Testbed) -> int:
    """Return how often this node's program is at the tracepoint: links are the whole machine's."""
    with opened(testbed.node) as pinned:
        program = syscall.program_id(pinned.program("dropped"))
    shown = json.loads(testbed.node.run(["bpftool", "link", "show", "-j"]).stdout)
    return sum(link.get("prog_id") == program for link in shown)


def check_ends(testbed: Testbed, told: Line, of: Named, backend: int) -> None:
    assert told["service"] == {"namespace": "default", "name": of.name, "port": "web"}
    assert told["client"]["address"] == str(testbed.lab.client.addresses[4])
    assert told["backend"]["pod"] == f"default/{testbed.lab.pods[backend].name}"
    assert told["frontend"] == {"address": testbed.node.address(4), "port": of.node_port}


@pytest.mark.parametrize("number", [1, 2], ids=["here", "elsewhere, masqueraded"])
def test_a_rule_of_netfilter_in_forward_is_named(testbed: Testbed, number: int) -> None:
    with dropping(testbed.node, "forward", "tcp dport 8080"), asking(testbed) as observer:
        fails(testbed.client, testbed.node.address(4), ONE[number].node_port)
        told = observer.next(of_service(ONE[number].name, ELSEWHERE))
    assert told["reason"] == "SKB_DROP_REASON_NETFILTER_DROP"
    check_ends(testbed, told, ONE[number], number)


def test_a_rule_for_what_leaves_and_what_answers_is_named(testbed: Testbed) -> None:
    """Behind the masquerade a packet has none of the addresses that its client knows."""
    of = ONE[2]
    for hook, match in (("postrouting", "tcp dport 8080"), ("prerouting", "tcp sport 8080")):
        with dropping(testbed.node, hook, match), asking(testbed) as observer:
            fails(testbed.client, testbed.node.address(4), of.node_port)
            told = observer.next(of_service(of.name, ELSEWHERE))
        assert told["reason"] == "SKB_DROP_REASON_NETFILTER_DROP"
        check_ends(testbed, told, of, 2)


def test_ipv6_is_told_too(testbed: Testbed) -> None:
    with dropping(testbed.node, "forward", "tcp dport 8080"), asking(testbed) as observer:
        fails(testbed.client, testbed.node.address(6), ONE[1].node_port)
        told = observer.next(of_service(ONE[1].name, ELSEWHERE))
    assert told["frontend"]["address"] == testbed.node.address(6)
    assert told["backend"]["pod"] == f"default/{testbed.lab.pods[1].name}"


def test_rp_filter_is_named(testbed: Testbed) -> None:
    reason = "SKB_DROP_REASON_IP_RPFILTER"
    node, client = testbed.node, str(testbed.lab.client.addresses[4])
    pod = testbed.lab.pods[0]
    device = node.run(["ip", "-j", "route", "get", pod.address(4)]).stdout
    wrong = json.loads(device)[0]["dev"]
    node.run(["ip", "route", "add", f"{client}/32", "dev", wrong])
    try:
        with asking(testbed) as observer:
            fails(testbed.client, node.address(4), ONE[1].node_port)
            of_one = of_service(ONE[1].name, ELSEWHERE)
            # An earlier connection may end meanwhile: its packets find no neighbour there.
            told = observer.next(lambda event: of_one(event) and event["reason"] == reason)
    finally:
        node.run(["ip", "route", "del", f"{client}/32", "dev", wrong])
    check_ends(testbed, told, ONE[1], 1)


def test_a_missing_route_is_told(testbed: Testbed, family: int) -> None:
    """Of IPv4, Linux 6.18 gives no reason where it forwards."""
    node, pod = testbed.node, testbed.lab.pods[2]
    route = ["unreachable", f"{pod.address(family)}/{32 if family == 4 else 128}"]
    node.run(["ip", "route", "add", *route])
    try:
        with asking(testbed) as observer:
            with suppress(OSError):
                ask(testbed.client, node.address(family), ONE[2].node_port, options=[GIVES_UP])
            told = observer.next(of_service(ONE[2].name, ELSEWHERE))
    finally:
        node.run(["ip", "route", "del", *route])
    assert (
        told["reason"].removeprefix("SKB_DROP_REASON_")
        in {
            4: ("NOT_SPECIFIED",),
            6: ("IP_INNOROUTES", "IP_OUTNOROUTES"),
        }[family]
    )
    assert told["backend"]["pod"] == f"default/{pod.name}"


def test_a_full_socket_buffer_is_named(testbed: Testbed) -> None:
    server = testbed.lab.pods[1].socket(socket.AF_INET, socket.SOCK_DGRAM)
    with server, asking(testbed) as observer:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
        server.bind(("0.0.0.0", 9998))
        with testbed.client.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(64):
                sender.sendto(bytes(1000), (testbed.node.address(4), FULL.node_port))
        told = observer.next(of_service(FULL.name, ELSEWHERE))
    assert told["reason"] == "SKB_DROP_REASON_SOCKET_RCVBUFF"
    assert (told["service"]["port"], told["protocol"]) == ("dns", "UDP")


@pytest.mark.parametrize("by", ["pod", "node"])
def test_a_translated_socket_is_known_by_its_cookie(testbed: Testbed, by: str) -> None:
    """Its packets have never had the frontend's address, and no entry."""
    sender = testbed.pod if by == "pod" else testbed.node
    with dropping(sender, "output", "tcp dport 8080"), asking(testbed) as observer:
        fails(sender, ONE[2].vip(4), 80)
        told = observer.next(of_service(ONE[2].name, ELSEWHERE))
    assert told["path"] == "socket"
    assert told["frontend"] == {"address": ONE[2].vip(4), "port": 80}
    assert told["backend"]["pod"] == f"default/{testbed.lab.pods[2].name}"


def test_a_packet_that_never_reaches_bpfsvc_is_known_by_its_frontend(testbed: Testbed) -> None:
    """A firewall in the client's own namespace. No hook translates a socket with a port."""
    of, pod = ONE[1], testbed.pod
    source = (pod.address(4), 41999)
    with dropping(pod, "output", "tcp dport 80"), asking(testbed) as observer:
        with pytest.raises(TimeoutError):
            ask(pod, of.vip(4), 80, source=source, options=[GIVES_UP])
        told = observer.next(of_service(of.name, ELSEWHERE))
    assert told["reason"] == "SKB_DROP_REASON_NETFILTER_DROP"
    assert told["frontend"] == {"address": of.vip(4), "port": 80}
    assert (told["client"]["port"], told["client"]["pod"]) == (41999, f"default/{pod.name}")
    assert "backend" not in told


def test_what_bpfsvc_drops_itself_and_what_ends_well_is_no_drop_elsewhere(
    testbed: Testbed,
) -> None:
    with asking(testbed) as observer:
        for of in ONE:
            for sender in (testbed.client, testbed.pod, testbed.node):
                ask(sender, testbed.node.address(4), of.node_port)
                connect(sender, testbed.node.address(4), of.node_port).reset()
        fails(testbed.client, "80.11.12.20", 80)
        ask(testbed.client, testbed.node.address(4), ONE[3].node_port, "udp")
        seen: list[Line] = []

        def is_last(event: Line) -> bool:
            seen.append(event)
            return event.get("protocol") == "UDP"

        observer.next(is_last)
    kinds = [event.get("kind") for event in seen]
    assert [event["reason"] for event in seen if event.get("kind") == "dropped"][0:1] == [
        "source_range"
    ]
    assert ELSEWHERE not in kinds


@contextmanager
def reader(testbed: Testbed, query: str) -> Iterator[socket.socket]:
    """Read beside others: yield the connection to the agent, which has admitted it."""
    with testbed.node.socket(socket.AF_UNIX) as made:
        made.settimeout(stretched(20))
        made.connect(address_of(testbed.node.pin_root))
        made.sendall(encode_get(f"/observe{query}"))
        assert made.recv(12) == b"HTTP/1.1 200"
        yield made


def test_the_program_is_attached_only_while_somebody_asks(testbed: Testbed) -> None:
    wait(lambda: attached(testbed) == 0, "earlier readers have left")
    with reader(testbed, ""):
        assert attached(testbed) == 0
    with reader(testbed, "?drops=1"):
        assert attached(testbed) == 1
        with reader(testbed, "?drops=1"):
            assert attached(testbed) == 1
        with reader(testbed, "?drops=1&follow=0&last=1") as short:
            while short.recv(1 << 16):
                pass
        assert attached(testbed) == 1
    wait(lambda: attached(testbed) == 0, "the program is detached")


def test_text_says_why_in_words_and_who_did_not_ask_sees_nothing(testbed: Testbed) -> None:
    of = ONE[1]
    received = b""
    with (
        dropping(testbed.node, "forward", "tcp dport 8080"),
        reader(testbed, "") as other,
        asking(testbed) as observer,
    ):
        for _ in range(2):
            fails(testbed.client, testbed.node.address(4), of.node_port)
            observer.next(of_service(of.name, ELSEWHERE))
        while received.count(b'"kind":"made"') < 2:
            received += other.recv(1 << 16)
        other.close()
    assert ELSEWHERE.encode() not in received

    def said() -> str:
        words = ("observe", "--last", "1", "--reason", "skb-drop-reason-netfilter-drop")
        return testbed.cluster.command(testbed.node, *words).stdout

    wait(lambda: said() != "", "the agent remembers the event, which the reader had before")
    text = " ".join(said().split())
    assert "dropped_elsewhere TCP 192.168.50.100:" in text
    assert "; a rule of netfilter drops it (SKB_DROP_REASON_NETFILTER_DROP)" in text
    assert max(map(len, said().splitlines())) <= 100


def test_it_is_not_asked_of_the_past(testbed: Testbed) -> None:
    done = testbed.cluster.command(testbed.node, "observe", "--drops-elsewhere", "--last", "3")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: --drops-elsewhere asks for what happens from now on")


def test_an_event_of_a_sample_says_for_how_many_it_stands(testbed: Testbed) -> None:
    """The sample is that of failures, whatever that of connections is."""
    node = testbed.node
    with dropping(node, "forward", "tcp dport 8080"), asking(testbed) as observer:
        with opened(node) as pinned:
            record, asked = pinned.layout.maps["observed"].value, pinned.map("observed")
            fields = record.unpack(asked.lookup(bytes(4)) or b"")
            asked.update(bytes(4), record.pack({**fields, "failures": 1}))
        client = testbed.client
        with ExitStack() as stack:
            for _ in range(16):  # one of two is told
                made = stack.enter_context(client.socket(socket.AF_INET, socket.SOCK_STREAM))
                made.setblocking(False)
                made.connect_ex((node.address(4), ONE[1].node_port))
            told = observer.next(of_service(ONE[1].name, ELSEWHERE))
    assert told["sample"] == 2
