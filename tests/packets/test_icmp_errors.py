"""ICMP errors about translated packets reach who sent the packet, who recognises it.

In each test the error quotes what was seen where it arose. The checksums of the wanted packets are
scapy's own; the quoted transport checksum stays as it was.
"""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, TCP, IPOption_NOP
from scapy.packet import Packet

from tests.packets.errors import KINDS, error
from tests.packets.node import Node, same, tcp
from tests.packets.scene import Scene, bare

ABOUT = pytest.mark.parametrize("kind", KINDS)
QUOTED = pytest.mark.parametrize("transport", [0, 8], ids=["all quoted", "8 bytes quoted"])


@ABOUT
@QUOTED
def test_from_a_router_about_a_packet_to_a_backend(
    node: Node, scene: Scene, kind: str, transport: int
) -> None:
    client, vip, backend = scene.client, scene.vip, scene.backend
    scene.service(node, [backend])
    scene.connect(node, client, vip, backend)
    arrived = error(scene.router, bare(client), scene.data(client, backend), kind, transport)
    assert same(node.ingress(arrived), arrived)
    wanted = error(scene.router, bare(client), scene.data(client, vip), kind, transport)
    assert same(node.egress(arrived), wanted)
    assert node.counter("icmp_errors_translated") == 1


@ABOUT
def test_from_the_backend_itself_comes_as_from_the_frontend(
    node: Node, scene: Scene, kind: str
) -> None:
    client, vip, backend = scene.client, scene.vip, scene.backend
    scene.service(node, [backend])
    node.forward(scene.opening(client, vip))
    arrived = error(bare(backend), bare(client), scene.opening(client, backend), kind)
    wanted = error(bare(vip), bare(client), scene.opening(client, vip), kind)
    assert same(node.forward(arrived), wanted)


@ABOUT
@QUOTED
def test_from_a_router_about_a_masqueraded_packet(
    node: Node, scene: Scene, kind: str, transport: int
) -> None:
    client, vip, backend = scene.stranger, scene.vip, scene.backend
    scene.service(node, [backend], masquerade=True)
    seen = scene.connect(node, client, vip, backend)
    arrived = error(scene.router, scene.us, scene.data(seen, backend), kind, transport)
    routed = node.ingress(arrived)
    assert same(
        routed, error(scene.router, bare(client), scene.data(client, backend), kind, transport)
    )
    wanted = error(scene.router, bare(client), scene.data(client, vip), kind, transport)
    assert same(node.egress(routed), wanted)


def test_from_the_backend_itself_about_a_masqueraded_packet(node: Node, scene: Scene) -> None:
    client, vip, backend = scene.stranger, scene.vip, scene.backend
    scene.service(node, [backend], masquerade=True)
    out = node.forward(scene.opening(client, vip))
    arrived = error(bare(backend), scene.us, out, "port unreachable")
    wanted = error(bare(vip), bare(client), scene.opening(client, vip), "port unreachable")
    assert same(node.forward(arrived), wanted)


@ABOUT
@QUOTED
def test_from_a_router_about_a_reply(node: Node, scene: Scene, kind: str, transport: int) -> None:
    """The reply left with the frontend's address, and there the error is sent."""
    client, vip, backend = scene.stranger, scene.vip, scene.backend
    scene.service(node, [backend])
    scene.connect(node, client, vip, backend)
    arrived = error(scene.router, bare(vip), scene.data(vip, client), kind, transport)
    wanted = error(scene.router, bare(backend), scene.data(backend, client), kind, transport)
    assert same(node.forward(arrived), wanted)


def test_from_a_router_about_a_reply_to_a_masqueraded_client(node: Node, scene: Scene) -> None:
    client, vip, backend = scene.stranger, scene.vip, scene.backend
    scene.service(node, [backend], masquerade=True)
    seen = scene.connect(node, client, vip, backend)
    routed = node.ingress(error(scene.router, bare(vip), scene.data(vip, client)))
    assert same(routed, error(scene.router, bare(backend), scene.data(backend, client)))
    wanted = error(scene.router, bare(backend), scene.data(backend, seen))
    assert same(node.egress(routed), wanted)


def test_from_the_masqueraded_client_itself_comes_as_from_the_node(
    node: Node, scene: Scene
) -> None:
    client, vip, backend = scene.stranger, scene.vip, scene.backend
    scene.service(node, [backend], masquerade=True)
    seen = scene.connect(node, client, vip, backend)
    arrived = error(bare(client), bare(vip), scene.data(vip, client), "port unreachable")
    wanted = error(scene.us, bare(backend), scene.data(backend, seen), "port unreachable")
    assert same(node.forward(arrived), wanted)


def test_about_a_direct_connection_with_a_changed_port(node: Node, scene: Scene) -> None:
    client, backend = scene.client, scene.backend
    scene.service(node, [backend])
    scene.connect(node, client, scene.vip, backend)
    out = node.forward(scene.opening(client, backend))
    wanted = error(scene.router, bare(client), scene.opening(client, backend))
    assert same(node.forward(error(scene.router, bare(client), out)), wanted)


@ABOUT
def test_about_an_unknown_connection_is_left_alone(node: Node, scene: Scene, kind: str) -> None:
    scene.service(node, [scene.backend])
    for about in (
        scene.data(scene.client, scene.backend),
        scene.data(scene.vip, scene.client),
        scene.data(scene.node_place(20000), scene.backend),
    ):
        arrived = error(scene.router, about.src, about, kind)
        assert same(node.forward(arrived), arrived)
    assert node.counter("icmp_errors_translated") == 0


def test_about_a_packet_that_was_no_tcp_or_udp_is_left_alone(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    about = error(bare(scene.client), bare(scene.backend), scene.data(scene.client, scene.backend))
    arrived = error(scene.router, bare(scene.client), about)
    assert same(node.forward(arrived), arrived)


def test_the_quoted_packet_may_have_ip_options(node: Node) -> None:
    node.service("web", ["10.244.2.7:8080"], frontends=["10.96.0.10:80"])
    node.forward(tcp("10.244.1.5:40000", "10.96.0.10:80"))
    options = [IPOption_NOP()] * 12

    def quoting(destination: str, port: int) -> Packet:
        about = IP(src="10.244.1.5", dst=destination, options=options)
        return error("172.16.0.1", "10.244.1.5", about / TCP(sport=40000, dport=port, flags="S"))

    assert same(node.forward(quoting("10.244.2.7", 8080)), quoting("10.96.0.10", 80))


def test_the_quoted_packet_may_be_the_first_of_its_fragments(node: Node, ipv4_scene: Scene) -> None:
    scene = ipv4_scene
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)

    def quoting(destination: str) -> Packet:
        about = scene.data(scene.client, destination)
        about.flags = "MF"
        return error(scene.router, bare(scene.client), about)

    assert same(node.forward(quoting(scene.backend)), quoting(scene.vip))


def test_about_a_later_fragment_is_left_alone(node: Node, ipv4_scene: Scene) -> None:
    """What is quoted of it are no ports."""
    scene = ipv4_scene
    scene.service(node, [scene.backend])
    scene.connect(node, scene.client, scene.vip, scene.backend)
    about = scene.data(scene.client, scene.backend)
    about.frag = 100
    arrived = error(scene.router, bare(scene.client), about)
    assert same(node.forward(arrived), arrived)


def test_a_first_packet_that_waits_for_its_masquerade_has_no_errors_yet(
    node: Node, scene: Scene
) -> None:
    """Below the hooks the CNI may have masqueraded instead; the error is its own to translate."""
    scene.service(node, [scene.backend], masquerade=True)
    node.ingress(scene.opening(scene.stranger, scene.vip))
    about = scene.data(scene.backend, scene.stranger)
    arrived = error(scene.router, bare(scene.backend), about)
    assert same(node.egress(arrived), arrived)
