"""A connection's packets, there and back, byte by byte."""

from __future__ import annotations

import pytest

from tests.packets.node import Node, same, tcp, udp

FAMILIES = [
    pytest.param("10.244.1.5", "10.96.0.10", "10.244.2.7", id="IPv4"),
    pytest.param("[fd44:0:0:1::5]", "[fd96::10]", "[fd44:0:0:2::7]", id="IPv6"),
]
PROTOCOLS = [pytest.param(tcp, "TCP", id="TCP"), pytest.param(udp, "UDP", id="UDP")]


def family(address: str) -> int:
    return 6 if ":" in address else 4


@pytest.mark.parametrize(("client", "vip", "backend"), FAMILIES)
@pytest.mark.parametrize(("packet", "protocol"), PROTOCOLS)
def test_a_pod_reaches_a_backend_and_hears_the_frontend(
    node: Node, packet, protocol: str, client: str, vip: str, backend: str
) -> None:
    node.service(
        "web", [f"{backend}:8080"], frontends=[f"{vip}:80"], protocol=protocol, family=family(vip)
    )
    out = node.forward(packet(f"{client}:40000", f"{vip}:80"))
    assert same(out, packet(f"{client}:40000", f"{backend}:8080"))
    flags = {"flags": "SA"} if protocol == "TCP" else {}
    back = node.forward(packet(f"{backend}:8080", f"{client}:40000", **flags))
    assert same(back, packet(f"{vip}:80", f"{client}:40000", **flags))


@pytest.mark.parametrize(("client", "vip", "backend"), FAMILIES)
@pytest.mark.parametrize(("packet", "protocol"), PROTOCOLS)
def test_a_stranger_is_masqueraded_to_the_address_of_the_interface_and_hears_the_frontend(
    node: Node, packet, protocol: str, client: str, vip: str, backend: str
) -> None:
    stranger, us = ("[fd50::9]", "[fd50::11]") if family(vip) == 6 else ("192.168.50.9", "192.168.50.11")
    node.service(
        "web",
        [f"{backend}:8080"],
        frontends=[f"{vip}:80"],
        protocol=protocol,
        masquerade=True,
        family=family(vip),
    )
    routed = node.ingress(packet(f"{stranger}:40000", f"{vip}:80"))
    assert same(routed, packet(f"{stranger}:40000", f"{backend}:8080"))
    out = node.egress(routed)
    port = out.payload.sport
    assert 10000 <= port < 30000
    assert same(out, packet(f"{us}:{port}", f"{backend}:8080"))

    flags = {"flags": "SA"} if protocol == "TCP" else {}
    routed = node.ingress(packet(f"{backend}:8080", f"{us}:{port}", **flags))
    assert same(routed, packet(f"{backend}:8080", f"{stranger}:40000", **flags))
    assert same(node.egress(routed), packet(f"{vip}:80", f"{stranger}:40000", **flags))
    if protocol == "TCP":
        again = node.forward(packet(f"{stranger}:40000", f"{vip}:80", flags="A", payload=b"hi"))
        assert same(again, packet(f"{us}:{port}", f"{backend}:8080", flags="A", payload=b"hi"))
