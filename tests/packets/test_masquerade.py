"""Clients that are sent on under the node's own address."""

from __future__ import annotations

from bpfsvc.address import unpack
from tests.packets.node import Node, same, tcp, udp
from tests.packets.scene import Scene, bare

NOTHING = unpack(bytes(16))


def test_a_stranger_gets_the_address_of_the_interface_and_hears_the_frontend(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend], masquerade=True)
    routed = node.ingress(scene.opening(scene.stranger, scene.vip))
    assert same(routed, scene.opening(scene.stranger, scene.backend))
    out = node.egress(routed)
    port = out.payload.sport
    seen = scene.node_place(port)
    assert 10000 <= port < 30000
    assert same(out, scene.opening(seen, scene.backend))

    routed = node.ingress(scene.answer(scene.backend, seen))
    assert same(routed, scene.answer(scene.backend, scene.stranger))
    assert same(node.egress(routed), scene.answer(scene.vip, scene.stranger))
    again = node.forward(scene.data(scene.stranger, scene.vip))
    assert same(again, scene.data(seen, scene.backend))


def test_a_retransmitted_first_packet_keeps_its_port(node: Node, scene: Scene) -> None:
    scene.service(node, [scene.backend], masquerade=True)
    first = node.forward(scene.opening(scene.stranger, scene.vip))
    for _ in range(5):
        assert same(node.forward(scene.opening(scene.stranger, scene.vip)), first)


def test_a_pod_that_reaches_itself_is_masqueraded(node: Node, scene: Scene) -> None:
    """Hairpin: the pod would otherwise answer itself, and not know the frontend's address."""
    itself = scene.at(scene.client, 8080)
    scene.service(node, [itself], hairpin=True)
    out = node.forward(scene.opening(scene.client, scene.vip))
    seen = scene.node_place(out.payload.sport)
    assert same(out, scene.opening(seen, itself))
    back = node.forward(scene.answer(itself, seen))
    assert same(back, scene.answer(scene.vip, scene.client))
    again = node.forward(scene.data(scene.client, scene.vip))
    assert same(again, scene.data(seen, itself))


def test_without_an_address_on_the_interface_the_packet_is_dropped_and_counted(
    node: Node, scene: Scene
) -> None:
    scene.service(node, [scene.backend], masquerade=True)
    record = node.pinned.layout.maps["interfaces"].value
    node.pinned.map("interfaces").update(node.interface.to_bytes(4, "little"), record.pack({}))
    routed = node.ingress(scene.opening(scene.stranger, scene.vip))
    assert node.drops("egress", routed)
    assert node.counter("dropped__no_masquerade_address") == 1
    node.masquerade_address("192.168.50.11", "fd50::11")
    out = node.forward(scene.opening(scene.stranger, scene.vip))
    assert out.src == scene.us


def test_when_the_cni_masquerades_first_the_reply_still_finds_its_frontend(
    node: Node, scene: Scene
) -> None:
    """The CNI's own translation comes after our ingress and before our egress, both ways."""
    scene.service(node, [scene.backend], masquerade=True)
    node.ingress(scene.opening(scene.stranger, scene.vip))
    by_cni = scene.node_place(1024)
    assert same(
        node.egress(scene.opening(by_cni, scene.backend)), scene.opening(by_cni, scene.backend)
    )
    answer = scene.answer(scene.backend, by_cni)
    assert same(node.ingress(answer), answer)
    back = node.egress(scene.answer(scene.backend, scene.stranger))
    assert same(back, scene.answer(scene.vip, scene.stranger))
    again = node.ingress(scene.data(scene.stranger, scene.vip))
    assert same(again, scene.data(scene.stranger, scene.backend))
    assert node.states() == (1, 2), "what our egress never saw stays half-open"


def test_a_pod_to_a_backend_on_a_node_whose_reply_the_cni_restores_hears_the_frontend(
    node: Node, scene: Scene
) -> None:
    """default/kubernetes: we masquerade nothing, but the reply comes to the node's address."""
    scene.service(node, [scene.at(scene.stranger, 6443)])
    api = scene.at(scene.stranger, 6443)
    routed = node.ingress(scene.opening(scene.client, scene.vip))
    assert same(routed, scene.opening(scene.client, api))
    answer = scene.answer(api, scene.node_place(33333))
    assert same(node.ingress(answer), answer)
    back = node.egress(scene.answer(api, scene.client))
    assert same(back, scene.answer(scene.vip, scene.client))


def test_a_client_never_leaves_under_its_own_address_after_its_masquerade_was_lost(
    node: Node, udp_scene: Scene
) -> None:
    """Each pair lives on its own: after a pause one may be collected, and then a packet comes."""
    stranger, vip, backend = udp_scene.stranger, udp_scene.vip, udp_scene.backend
    udp_scene.service(node, [backend], masquerade=True)
    udp_scene.connect(node, stranger, vip, backend)
    around_the_wire = node.flow("egress", udp(stranger, backend))
    assert node.collect(around_the_wire, force=True) == 1
    node.age(2)
    routed = node.ingress(udp(stranger, vip))
    verdict, out = node.run("egress", routed)
    assert out.src != bare(stranger) or verdict == 2


def test_a_reopened_connection_is_masqueraded_though_the_client_never_saw_the_reset(
    node: Node, tcp_scene: Scene
) -> None:
    """A backend's RST may be lost between the hooks; then only the pair at the wire is closed."""
    stranger, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=True)
    seen = tcp_scene.connect(node, stranger, vip, backend)
    reset = tcp_scene.opening(backend, seen)
    reset.payload.flags = "R"
    node.ingress(reset)
    verdict, out = node.run("egress", node.ingress(tcp_scene.opening(stranger, vip)))
    assert out.src != bare(stranger) or verdict == 2


def test_a_masquerade_that_was_lost_and_came_back_is_established_again(
    node: Node, tcp_scene: Scene
) -> None:
    """Else it may be evicted, and its port is anyone's after 5 s of silence."""
    stranger, vip, backend = tcp_scene.stranger, tcp_scene.vip, tcp_scene.backend
    tcp_scene.service(node, [backend], masquerade=True)
    tcp_scene.connect(node, stranger, vip, backend)
    around_the_wire = node.flow("egress", tcp(stranger, backend))
    assert node.collect(around_the_wire, force=True) == 1
    node.age(2)
    out = node.forward(tcp_scene.data(stranger, vip))
    seen = tcp_scene.at(out.src, out.payload.sport)
    back = node.forward(tcp_scene.data(backend, seen))
    assert same(back, tcp_scene.data(vip, stranger))
    node.forward(tcp_scene.data(stranger, vip))
    assert node.states() == (0, 4)
