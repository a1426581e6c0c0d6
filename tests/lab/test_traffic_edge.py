"""XDP on the uplink of a node: real sockets from outside, through a NodePort to another node.

The cable of the node is made to behave as one between real interfaces: no packet without a
checksum reaches it, and its other end takes frames from XDP.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bpfsvc.datapath import bpf, creation, xdp
from bpfsvc.datapath.pins import Pinned, PinRoot
from bpfsvc.lab.dial import Protocol, ask, connect, tally
from bpfsvc.lab.links import End
from bpfsvc.lab.node import Node
from bpfsvc.lab.patience import stretched, wait
from tests.lab.scene import ONE, WEB, Scene, built, objects
from tests.lab.test_traffic_hitless import OPTIONS

BY_XDP = ("--xdp", "eth0")
LOCAL, REMOTE = ONE[0], ONE[2]

XDP, XDP_PASS, DRIVER_MODE = 6, 2, 1 << 2
"""BPF_PROG_TYPE_XDP, its verdict, XDP_FLAGS_DRV_MODE."""


@contextmanager
def stranger(node: Node) -> Iterator[None]:
    """Put an XDP program of somebody else on the uplink; it lets everything pass."""
    code = struct.pack("=BBhiBBhi", 0xB7, 0, 0, XDP_PASS, 0x95, 0, 0, 0)
    program = creation.load_program("stranger", XDP, xdp.ATTACH_TYPE, code, "GPL")
    with node.entered():
        link = bpf.link_create(program, node.uplink.index, xdp.ATTACH_TYPE, DRIVER_MODE)
    os.close(program)
    try:
        yield
    finally:
        os.close(link)


@pytest.fixture(scope="module")
def edge() -> Iterator[Scene]:
    """A lab whose first node has XDP on its uplink; one backend is local, and one is not."""
    with built(layout="routed") as scene:
        lab, cluster = scene
        port = End(lab.switch, scene.node.name, lab.switch.index(scene.node.name), "")
        port.offload("tx", False)
        port.offload("gro", True)
        pods = lab.pods
        cluster.put(
            "services",
            *objects(WEB, pods),
            *objects(LOCAL, pods[:1]),
            *objects(REMOTE, pods[2:3]),
        )
        cluster.start(scene.node, options=BY_XDP)
        cluster.start(lab.nodes[1])
        yield scene


def counter(node: Node, name: str) -> int:
    """Read a counter of the programs of a node, over all CPUs."""
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        found, record = pinned.map("counters"), pinned.layout.maps["counters"].value
        raw = found.lookup(bytes(4)) or b""
    finally:
        pinned.close()
    size = found.cpu_value_size
    return sum(int(record.unpack(raw[at : at + size])[name]) for at in range(0, len(raw), size))


def has_xdp(node: Node) -> bool:
    """Whether an XDP program is on the uplink, as the kernel tells everybody."""
    return "prog/xdp" in node.run(["ip", "-d", "link", "show", "eth0"]).stdout


def test_tcp_to_a_backend_elsewhere_is_sent_on_by_xdp(edge: Scene, family: int) -> None:
    """Large transfers in both directions, whole and unchanged; then the end, by the stack."""
    node, size = edge.node, 1 << 20
    assert has_xdp(node)
    before = counter(node, "edge_forwarded")
    with connect(edge.client, node.address(family), REMOTE.node_port) as conversation:
        assert conversation.deliver(size)
    delivered = counter(node, "edge_forwarded")
    assert delivered - before > size // 1500, "by XDP went what carries the data"
    with connect(edge.client, node.address(family), REMOTE.node_port) as conversation:
        assert conversation.fetch(size)
    assert counter(node, "edge_forwarded") - delivered > size // 1500


def test_one_connection_after_another(edge: Scene, family: int, transport: Protocol) -> None:
    """Each is opened by tc, and each is answered by the backend, which sees the node."""
    node, backend = edge.node, edge.lab.pods[2]
    answers = tally(edge.client, node.address(family), REMOTE.node_port, transport, count=40)
    assert answers == {backend.name: 40}
    answer = ask(edge.client, node.address(family), REMOTE.node_port, transport)
    assert node.address(family) in answer.peer


def test_datagrams_of_a_socket_are_sent_on_by_xdp(edge: Scene, family: int) -> None:
    node, count = edge.node, 50
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    before = counter(node, "edge_forwarded")
    with edge.client.socket(kind, socket.SOCK_DGRAM) as asking:
        asking.settimeout(5)
        asking.connect((node.address(family), REMOTE.node_port))
        for number in range(count):
            message = b"echo %d" % number
            asking.send(message)
            assert asking.recv(100) == message
    assert counter(node, "edge_forwarded") - before >= 2 * count - 10


def test_a_backend_on_the_node_itself_is_served_by_tc(edge: Scene, family: int) -> None:
    node = edge.node
    before = counter(node, "edge_forwarded")
    with connect(edge.client, node.address(family), LOCAL.node_port) as conversation:
        assert conversation.fetch(200_000)
    assert counter(node, "edge_forwarded") == before
    assert counter(node, "edge_passed__not_by_uplink") > 0


def test_status_says_where_xdp_is(edge: Scene) -> None:
    told = edge.cluster.command(edge.node, "status").stdout
    assert re.search(r"interfaces: .*, XDP on eth0", told), told
    assert "XDP" not in edge.cluster.command(edge.lab.nodes[1], "status").stdout


@pytest.mark.parametrize("more", [(), OPTIONS], ids=["the same build", "another build"])
def test_an_agent_that_dies_and_comes_back_loses_nothing(
    edge: Scene, more: tuple[str, ...]
) -> None:
    """XDP goes on without it, and the next agent takes over, with its own programs if need be."""
    node, cluster, address = edge.node, edge.cluster, edge.node.address()
    loads = [
        edge.client.load(kind, address, REMOTE.node_port, seconds=stretched(60), interval=0.01)
        for kind in ("stream", "connect", "datagram")
    ]
    for load in loads:
        load.more(20)
    cluster.kill(node)
    assert has_xdp(node)
    for load in loads:
        load.more(20)
    cluster.start(node, options=(*BY_XDP, *more))
    before = counter(node, "edge_forwarded")
    wait(lambda: counter(node, "edge_forwarded") > before + 100, "XDP goes on sending")
    for load in loads:
        load.more(20)
    for load in loads:
        result = load.stop()
        assert result.failures == {}, result.examples


def test_switched_off_it_goes_with_the_next_agent_and_comes_again(edge: Scene) -> None:
    node, cluster, address = edge.node, edge.cluster, edge.node.address()
    with connect(edge.client, address, REMOTE.node_port) as conversation:
        conversation.who()
        cluster.stop(node)
        cluster.start(node)
        assert not has_xdp(node)
        before = counter(node, "edge_forwarded")
        assert conversation.echo(bytes(10_000))
        assert counter(node, "edge_forwarded") == before
        cluster.stop(node)
        cluster.start(node, options=BY_XDP)
        assert has_xdp(node)
        assert conversation.echo(bytes(10_000))
        assert counter(node, "edge_forwarded") > before


def test_where_another_program_is_it_stays_and_tc_does_all(edge: Scene) -> None:
    node, cluster, address = edge.node, edge.cluster, edge.node.address()
    cluster.stop(node)
    cluster.start(node)
    with stranger(node):
        cluster.stop(node)
        cluster.start(node, options=BY_XDP)
        agent = cluster.agents[node.name]
        agent.expect("eth0 is not served by XDP: another XDP program is there (stranger ")
        assert agent.health().status == 200
        before = counter(node, "edge_forwarded")
        with connect(edge.client, address, REMOTE.node_port) as conversation:
            assert conversation.fetch(100_000)
        assert counter(node, "edge_forwarded") == before
        told = cluster.command(node, "status").stdout
        assert told.startswith("well")
        assert "XDP on" not in told
    cluster.stop(node)
    cluster.start(node, options=BY_XDP)
    assert has_xdp(node)


def test_cleanup_takes_it_away(edge: Scene) -> None:
    node, cluster = edge.node, edge.cluster
    cluster.stop(node)
    done = cluster.command(node, "cleanup")
    assert "detached XDP from eth0" in done.stdout
    node.pin_root.mkdir(exist_ok=True)
    assert not has_xdp(node)
    cluster.start(node, options=BY_XDP)
    wait(lambda: has_xdp(node), "XDP is back")
