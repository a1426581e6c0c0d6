"""Addresses of a node that come and go while clients use them: NodePorts, and masquerades."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bpfsvc.devtools.lab.dial import Protocol, ask, connect, tally
from bpfsvc.devtools.lab.patience import stretched, wait
from tests.lab.testbed import ONE, Testbed, built_testbed, host, objects

LASTING = {4: "192.168.77.1", 6: "fd77::1"}
"""Of the loopback device, where clients send to."""
PASSING = {4: "192.168.78.1", 6: "fd78::1"}
NEW = {4: "192.168.50.78/24", 6: "fd50::78/64"}
"""A further address of the uplink."""

FAR = ONE[2]
"""A Service whose backend is on the other node: clients from outside are masqueraded."""


@pytest.fixture(scope="module", params=["off", "auto"], ids=["stack", "fast path"])
def testbed(request: pytest.FixtureRequest) -> Iterator[Testbed]:
    with built_testbed(layout="routed") as testbed:
        lab, cluster = testbed
        for of_family, address in LASTING.items():
            bits = "32" if of_family == 4 else "128"
            testbed.node.run(["ip", "address", "add", f"{address}/{bits}", "dev", "lo"])
            for routed in (address, PASSING[of_family]):
                lab.client.route(f"{routed}/{bits}", via=testbed.node)
        testbed.node.run(["sysctl", "-qw", "net.ipv4.conf.all.promote_secondaries=1"])
        # A node that does not have an address shows the client another way to it.
        for of in ("ipv4.conf.all", "ipv4.conf.eth0", "ipv6.conf.eth0"):
            lab.client.run(["sysctl", "-qw", f"net.{of}.accept_redirects=0"])
        cluster.put("services", *objects(FAR, lab.pods[2:3]))
        cluster.options = (
            *("--nodeport-addresses", "0.0.0.0/0,::/0"),
            *("--fast-path", request.param),
        )
        cluster.start()
        yield testbed


def served(testbed: Testbed, address: str, transport: Protocol) -> bool:
    wanted = {testbed.lab.pods[2].name: 1}
    return tally(testbed.client, address, FAR.node_port, transport, count=1, timeout=0.1) == wanted


def test_a_node_port_answers_at_an_address_as_long_as_the_node_has_it(
    testbed: Testbed, family: int, transport: Protocol
) -> None:
    address = PASSING[family]
    assert not served(testbed, address, transport)
    change = [f"{address}/{'32' if family == 4 else '128'}", "dev", "lo"]
    testbed.node.run(["ip", "address", "add", *change])
    try:
        wait(lambda: served(testbed, address, transport), "answers at the new address")
    finally:
        testbed.node.run(["ip", "address", "del", *change])
    wait(lambda: not served(testbed, address, transport), "no answers at the old address")
    wait(lambda: served(testbed, LASTING[family], transport), "answers at the lasting address")


@contextmanager
def readdressed(testbed: Testbed, family: int) -> Iterator[str]:
    """Give the uplink of the node another address while this lasts; return it."""
    bits = "24" if family == 4 else "64"
    old = f"{testbed.node.address(family)}/{bits}"
    options = ["nodad"] if family == 6 else []
    testbed.node.run(["ip", "address", "add", NEW[family], "dev", "eth0", *options])
    testbed.node.run(["ip", "address", "del", old, "dev", "eth0"])
    try:
        yield NEW[family].partition("/")[0]
    finally:
        testbed.node.run(["ip", "address", "add", old, "dev", "eth0", *options])
        testbed.node.run(["ip", "address", "del", NEW[family], "dev", "eth0"])
        wait(
            lambda: _seen_as(testbed, family) == testbed.node.address(family),
            "masquerades to the node's own address",
        )


def _seen_as(testbed: Testbed, family: int) -> str:
    try:
        return host(ask(testbed.client, LASTING[family], FAR.node_port).peer)
    except OSError:
        return "no answer"


def test_new_connections_are_masqueraded_to_the_address_that_the_node_has_now(
    testbed: Testbed, family: int
) -> None:
    assert _seen_as(testbed, family) == testbed.node.address(family)
    with readdressed(testbed, family) as new:
        wait(lambda: _seen_as(testbed, family) == new, "masquerades to the new address")


def test_a_udp_flow_goes_on_when_the_address_that_it_is_masqueraded_to_is_gone(
    testbed: Testbed, family: int
) -> None:
    """Netfilter forgets such flows, too. The client sees nothing of it."""
    kind = socket.AF_INET6 if family == 6 else socket.AF_INET
    with testbed.client.socket(kind, socket.SOCK_DGRAM) as made:
        made.settimeout(stretched(0.3))
        made.connect((LASTING[family], FAR.node_port))

        def seen_as() -> str:
            made.send(b"who\n")
            try:
                return host(json.loads(made.recv(1 << 16))["peer"])
            except TimeoutError:
                return "no answer"

        assert seen_as() == testbed.node.address(family)
        with readdressed(testbed, family) as new:
            wait(lambda: seen_as() == new, "the flow by the new address", timeout=5)


def test_a_connection_ends_when_the_address_that_it_is_masqueraded_to_is_gone(
    testbed: Testbed, family: int
) -> None:
    with connect(testbed.client, LASTING[family], FAR.node_port) as opened:
        assert host(opened.who().peer) == testbed.node.address(family)
        opened.socket.settimeout(stretched(0.3))

        def is_reset() -> bool:
            """Until its neighbours forget the address, the node still gets answers to it."""
            try:
                return not opened.echo(b"still there?")
            except TimeoutError:
                return False
            except ConnectionResetError:
                return True

        with readdressed(testbed, family):
            wait(is_reset, "a reset of the connection", timeout=5)
