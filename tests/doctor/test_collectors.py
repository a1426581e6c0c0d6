"""What the doctor reads from the kernel and from tools becomes facts."""

from __future__ import annotations

import json

from bpfsvc.base.address import pack
from bpfsvc.datapath.netlink.devices import Device, DeviceAddress, Interfaces
from bpfsvc.doctor.collect.node import dropping_chains, is_service
from bpfsvc.doctor.collect.others import gateway_of
from bpfsvc.doctor.collect.ports import is_health_check, listeners_at, read_sockets
from bpfsvc.doctor.facts import ChainPolicy
from bpfsvc.http.service_health import response
from bpfsvc.migration.kube_proxy.leftovers import Leftovers
from bpfsvc.migration.netfilter.iptables import read_tables
from bpfsvc.migration.netfilter.nftables import read_listing
from bpfsvc.migration.netfilter.tools import Flavour

HEAD = "  sl  local_address rem_address   st tx:rx tr:when retrnsmt uid timeout inode\n"
REST = "00000000:00000000 00:00000000 00000000     0        0 4711 1 ffff"
"""The end of the line of a socket that a program has."""


def test_antrea_is_found_by_its_routes() -> None:
    routes = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eth0\t00000000\t0132A8C0\t0003\t0\t0\t0\t00000000\n"
        "antrea-gw0\tFD00FEA9\t00000000\t0005\t0\t0\t0\tFFFFFFFF\n"
    )
    assert gateway_of(routes, "169.254.0.253") == "antrea-gw0"
    assert gateway_of(routes, "169.254.0.252") == ""


def test_listening_sockets_are_distinguished_from_connections() -> None:
    text = (
        HEAD
        + f"   0: 0100007F:2810 00000000:0000 0A {REST}\n"
        + f"   1: 0100007F:2710 0100007F:1F90 01 {REST}\n"
    )
    assert [(socket.port, socket.listens) for socket in read_sockets(text)] == [
        (10256, True),
        (10000, False),
    ]


def test_closed_connections_are_no_programs_that_use_a_port() -> None:
    """A connection in TIME_WAIT, one in FIN_WAIT2 without a client, and an open one."""
    text = (
        HEAD
        + "   0: 0100007F:2710 0100007F:1F90 06 0:0 03:00001751 00000000     0        0 0 3 ffff\n"
        + "   1: 0100007F:2711 0100007F:1F90 05 0:0 03:00001751 00000000     0        0 0 3 ffff\n"
        + f"   2: 0100007F:2712 0100007F:1F90 01 {REST}\n"
    )
    assert [(socket.port, socket.listens) for socket in read_sockets(text)] == [(10002, False)]


def test_a_health_check_of_a_service_is_known_by_its_answer() -> None:
    """kube-proxy's answer, and ours, which is the same."""
    ours = response(("prod", "web"), 1, healthy=True).partition(b"\r\n\r\n")[2]
    assert is_health_check(json.loads(ours))
    theirs = (
        '{"service":{"namespace":"a","name":"b"},"localEndpoints":0,"serviceProxyHealthy":true}'
    )
    assert is_health_check(json.loads(theirs))
    assert not is_health_check({"service": "billing"})
    assert not is_health_check(None)


def listeners(address: str, protocol: str, text: str) -> list[str]:
    return list(listeners_at({pack(address)}, protocol, read_sockets(text)))


def test_listeners_at_cluster_ips_are_found_and_no_other_sockets() -> None:
    """As the kernel of a little-endian machine prints them."""
    text = (
        f"{HEAD}"
        f"   0: 0A00600A:0035 00000000:0000 07 {REST}\n"
        f"   1: 0A00600A:0036 0B00600A:0035 01 {REST}\n"
        f"   2: 00000000:0035 00000000:0000 07 {REST}\n"
        f"   3: 0A14FEA9:0035 00000000:0000 07 {REST}\n"
    )
    assert list(listeners_at({pack("10.96.0.10")}, "udp", read_sockets(text))) == [
        "udp 10.96.0.10 port 53"
    ]
    text = (
        f"{HEAD}"
        "   0: 000096FD000000000000000010000000:0035"
        f" 00000000000000000000000000000000:0000 0A {REST}\n"
    )
    assert list(listeners_at({pack("fd96::10")}, "tcp", read_sockets(text))) == [
        "tcp fd96::10 port 53"
    ]


def test_dropping_chains_of_nftables_are_found_except_those_of_iptables() -> None:
    """iptables' chains are read by iptables, which also knows how to add a rule."""
    listed = """{"nftables": [{"metainfo": {}},
        {"chain": {"family": "inet", "table": "fw", "name": "f", "hook": "forward",
            "policy": "drop"}},
        {"chain": {"family": "inet", "table": "fw", "name": "i", "hook": "input",
            "policy": "drop"}},
        {"chain": {"family": "ip6", "table": "fw", "name": "o", "hook": "forward",
            "policy": "accept"}},
        {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward",
            "policy": "drop"}},
        {"chain": {"family": "ip", "table": "fw", "name": "jump"}}]}"""
    assert list(dropping_chains(read_listing(listed))) == [
        ChainPolicy("the policy of chain inet fw f", 0)
    ]


NAT = """*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-A
COMMIT
"""


def test_addresses_of_services_are_found_in_kube_proxys_leftovers() -> None:
    """By its rules, its nftables tables, or its device; an endpoint is none."""
    address = DeviceAddress(pack("10.96.0.30"), 32, 0, True)
    network = Interfaces((Device(9, "kube-ipvs0", "dummy", 0, True, 1, (address,)),), 0, 0)
    leftovers = Leftovers(
        saved={Flavour("nft", 4, "", ""): read_tables(NAT)},
        nft_services="elements = { 10.96.0.20 . tcp . 443 : goto service-X }\n"
        "meta l4proto tcp dnat ip to numgen random mod 1 map { 0 : 10.96.0.25 . 6443 }",
        keepalive=None,
        parts=(),
        unseen=(),
        remarks=(),
    )
    known = [number for number in range(40) if is_service(f"10.96.0.{number}", network, leftovers)]
    assert known == [1, 20, 30]
    assert not is_service("api.example.org", network, leftovers)
