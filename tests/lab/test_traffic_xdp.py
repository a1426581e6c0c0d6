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

from bpfsvc.datapath import syscall
from bpfsvc.datapath.attach import xdp
from bpfsvc.datapath.loader import creation
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.devtools.lab.dial import Protocol, ask, connect, tally
from bpfsvc.devtools.lab.links import End
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import stretched, wait
from tests.lab.test_traffic_hitless import OPTIONS
from tests.lab.testbed import ONE, WEB, Testbed, built_testbed, objects

pytestmark = pytest.mark.slow

BY_XDP = ("--xdp", "eth0")
LOCAL, REMOTE = ONE[0], ONE[2]

XDP, XDP_PASS, DRIVER_MODE = 6, 2, 1 << 2
"""BPF_PROG_TYPE_XDP, its verdict, XDP_FLAGS_DRV_MODE."""


@contextmanager
def foreign_xdp(node: LabNode) -> Iterator[None]:
    """Attach another program's XDP to the uplink; it lets everything pass."""
    code = struct.pack("=BBhiBBhi", 0xB7, 0, 0, XDP_PASS, 0x95, 0, 0, 0)
    program = creation.load_program("stranger", XDP, xdp.ATTACH_TYPE, code, "GPL")
    with node.entered():
        link = syscall.link_create(program, node.uplink.index, xdp.ATTACH_TYPE, DRIVER_MODE)
    os.close(program)
    try:
        yield
    finally:
        os.close(link)


@pytest.fixture(scope="module")
def xdp_testbed() -> Iterator[Testbed]:
    """A lab whose first node has XDP on its uplink; one backend is local, and one is not."""
    with built_testbed(layout="routed") as testbed:
        lab, cluster = testbed
        port = End(lab.switch, testbed.node.name, lab.switch.index(testbed.node.name), "")
        port.offload("tx", False)
        port.offload("gro", True)
        pods = lab.pods
        cluster.put(
            "services",
            *objects(WEB, pods),
            *objects(LOCAL, pods[:1]),
            *objects(REMOTE, pods[2:3]),
        )
        cluster.start(testbed.node, options=BY_XDP)
        cluster.start(lab.nodes[1])
        yield testbed


def counter(node: LabNode, name: str) -> int:
    """Read a counter of the programs of a node, over all CPUs."""
    pinned = Pinned(PinRoot(node.pin_root).current)
    try:
        found, record = pinned.map("counters"), pinned.layout.maps["counters"].value
        raw = found.lookup(bytes(4)) or b""
    finally:
        pinned.close()
    size = found.cpu_value_size
    return sum(int(record.unpack(raw[at : at + size])[name]) for at in range(0, len(raw), size))


def has_xdp(node: LabNode) -> bool:
    """True if an XDP program is on the uplink, as the kernel reports it."""
    return "prog/xdp" in node.run(["ip", "-d", "link", "show", "eth0"]).stdout


def test_tcp_to_a_remote_backend_is_forwarded_by_xdp(xdp_testbed: Testbed, family: int) -> None:
    """Large transfers in both directions arrive unchanged; the end goes by the stack."""
    node, size = xdp_testbed.node, 1 << 20
    assert has_xdp(node)
    before = counter(node, "edge_forwarded")
    with connect(xdp_testbed.client, node.address(family), REMOTE.node_port) as conversation:
        assert conversation.deliver(size)
    delivered = counter(node, "edge_forwarded")
    assert delivered - before > size // 1500, "XDP forwarded the packets with data"
    with connect(xdp_testbed.client, node.address(family), REMOTE.node_port) as conversation:
        assert conversation.fetch(size)
    assert counter(node, "edge_forwarded") - delivered > size // 1500


def test_one_connection_after_another(
    xdp_testbed: Testbed, family: int, transport: Protocol
) -> None:
    """tc opens each connection, and the backend, which sees the node, answers each."""
    node, backend = xdp_testbed.node, xdp_testbed.lab.pods[2]
    answers = tally(xdp_testbed.client, node.address(family), REMOTE.node_port, transport, count=40)
    assert answers == {backend.name: 40}
    answer = ask(xdp_testbed.client, node.address(family), REMOTE.node_port, transport)
    assert node.address(family) in answer.peer


def test_datagrams_of_a_socket_are_forwarded_by_xdp(xdp_testbed: Testbed, family: int) -> None:
    node, count = xdp_testbed.node, 50
    kind = socket.AF_INET if family == 4 else socket.AF_INET6
    before = counter(node, "edge_forwarded")
    with xdp_testbed.client.socket(kind, socket.SOCK_DGRAM) as asking:
        asking.settimeout(5)
        asking.connect((node.address(family), REMOTE.node_port))
        for number in range(count):
            message = b"echo %d" % number
            asking.send(message)
            assert asking.recv(100) == message
    assert counter(node, "edge_forwarded") - before >= 2 * count - 10


def test_a_backend_on_the_node_itself_is_served_by_tc(xdp_testbed: Testbed, family: int) -> None:
    node = xdp_testbed.node
    before = counter(node, "edge_forwarded")
    with connect(xdp_testbed.client, node.address(family), LOCAL.node_port) as conversation:
        assert conversation.fetch(200_000)
    assert counter(node, "edge_forwarded") == before
    assert counter(node, "edge_passed__not_by_uplink") > 0


def test_status_shows_where_xdp_is_attached(xdp_testbed: Testbed) -> None:
    status = xdp_testbed.cluster.command(xdp_testbed.node, "status").stdout
    assert re.search(r"interfaces: .*, XDP on eth0", status), status
    assert "XDP" not in xdp_testbed.cluster.command(xdp_testbed.lab.nodes[1], "status").stdout


@pytest.mark.parametrize("more", [(), OPTIONS], ids=["the same build", "another build"])
def test_a_killed_agent_and_its_restart_lose_nothing(
    xdp_testbed: Testbed, more: tuple[str, ...]
) -> None:
    """XDP continues without it, and the next agent takes over, with its own programs if needed."""
    node, cluster, address = xdp_testbed.node, xdp_testbed.cluster, xdp_testbed.node.address()
    loads = [
        xdp_testbed.client.load(
            kind, address, REMOTE.node_port, seconds=stretched(60), interval=0.01
        )
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
    wait(lambda: counter(node, "edge_forwarded") > before + 100, "XDP continues to forward")
    for load in loads:
        load.more(20)
    for load in loads:
        result = load.stop()
        assert result.failures == {}, result.examples


def test_xdp_is_detached_by_an_agent_without_the_flag_and_attached_again(
    xdp_testbed: Testbed,
) -> None:
    node, cluster, address = xdp_testbed.node, xdp_testbed.cluster, xdp_testbed.node.address()
    with connect(xdp_testbed.client, address, REMOTE.node_port) as conversation:
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


def test_another_programs_xdp_stays_and_tc_serves_all(xdp_testbed: Testbed) -> None:
    node, cluster, address = xdp_testbed.node, xdp_testbed.cluster, xdp_testbed.node.address()
    cluster.stop(node)
    cluster.start(node)
    with foreign_xdp(node):
        cluster.stop(node)
        cluster.start(node, options=BY_XDP)
        agent = cluster.agents[node.name]
        # Its number alone: to read the name of another's program takes CAP_SYS_ADMIN.
        agent.expect("eth0 is not served by XDP: another XDP program is there (")
        assert agent.health().status == 200
        before = counter(node, "edge_forwarded")
        with connect(xdp_testbed.client, address, REMOTE.node_port) as conversation:
            assert conversation.fetch(100_000)
        assert counter(node, "edge_forwarded") == before
        status = cluster.command(node, "status").stdout
        assert status.startswith("healthy")
        assert "XDP on" not in status
    cluster.stop(node)
    cluster.start(node, options=BY_XDP)
    assert has_xdp(node)


def test_cleanup_detaches_xdp(xdp_testbed: Testbed) -> None:
    node, cluster = xdp_testbed.node, xdp_testbed.cluster
    cluster.stop(node)
    done = cluster.command(node, "cleanup")
    assert "detached XDP from eth0" in done.stdout
    node.pin_root.mkdir(exist_ok=True)
    assert not has_xdp(node)
    cluster.start(node, options=BY_XDP)
    wait(lambda: has_xdp(node), "XDP is back")
