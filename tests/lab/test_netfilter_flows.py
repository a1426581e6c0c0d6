"""Connections that netfilter translates, as the agent learns of them."""

from __future__ import annotations

import socket
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from bpfsvc.base.address import pack, unpack
from bpfsvc.base.errors import SystemUnfit
from bpfsvc.datapath.netlink.conntrack.events import NewFlow, NewFlows
from bpfsvc.datapath.netlink.conntrack.flows import forgotten, masqueraded_flows, translated_flows
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow
from bpfsvc.datapath.netlink.conntrack.reservations import release, reserve

RULES = """
table {family} migration {{
  chain output {{ type nat hook output priority -100
    {family} daddr {vip} tcp dport 80 dnat to {to}
    {family} daddr {vip} udp dport 80 dnat to {to}
    {family} daddr {vip} tcp dport 81 dnat to {source}:8081
  }}
  chain postrouting {{ type nat hook postrouting priority 100
    {family} daddr {host} tcp dport {{ 8080, 8081 }} snat to {source}:10000-10009
  }}
}}
"""
HOSTS = {socket.AF_INET: ("ip", "127.0.0.1", "127.9.9.9"), socket.AF_INET6: ("ip6", "::1", "::9")}


@pytest.fixture(params=HOSTS, ids=["IPv4", "IPv6"])
def hosts(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Rules as kube-proxy's; the address of the backend, and the address of the Service."""
    family, host, vip = HOSTS[request.param]
    to = f"[{host}]:8080" if ":" in host else f"{host}:8080"
    rules = RULES.format(
        family=family, vip=vip, to=to, host=host, source=f"[{host}]" if ":" in host else host
    )
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    subprocess.run(["ip", "address", "add", vip, "dev", "lo"], check=False, capture_output=True)
    yield host, vip
    subprocess.run(["nft", "delete", "table", family, "migration"], check=True)


def flows_to(
    host: str, port: int, flows: Iterable[TranslatedFlow] | None = None
) -> list[TranslatedFlow]:
    target = pack(host), socket.htons(port)
    return [
        flow
        for flow in flows or translated_flows()
        if (flow.destination, flow.destination_port) == target
    ]


@contextmanager
def accepted(host: str, asked: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """Connect to ``asked``, by which a server at port 8080 is reached; yield who that sees."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 8080), family=family) as server:
        client = socket.create_connection(asked, timeout=5)
        made, peer = server.accept()
        with client, made:
            yield peer[:2]


def test_a_masqueraded_connection_is_known_by_the_port_that_the_backend_sees(
    hosts: tuple[str, str],
) -> None:
    host, vip = hosts
    with accepted(host, (vip, 80)) as peer:
        # Connections of other tests are known for a while.
        known = {socket.ntohs(flow.source_port): flow for flow in flows_to(host, 8080)}
    assert 10000 <= peer[1] <= 10009
    found = known[peer[1]]
    assert found.source == pack(peer[0])
    assert found.protocol == socket.IPPROTO_TCP


def test_a_flow_of_datagrams_is_known_by_its_clients_port(hosts: tuple[str, str]) -> None:
    host, vip = hosts
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.connect((vip, 80))
        client.send(b"x")
        ports = [
            socket.ntohs(each.source_port)
            for each in flows_to(host, 8080)
            if each.protocol == socket.IPPROTO_UDP
        ]
        assert client.getsockname()[1] in ports


def test_a_connection_that_is_not_translated_is_left_out(hosts: tuple[str, str]) -> None:
    host, _ = hosts
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as server,
        socket.create_connection((host, server.getsockname()[1])),
    ):
        assert flows_to(host, server.getsockname()[1]) == []


ZONED = """
table inet zoned {
  chain output { type filter hook output priority -300
    ct zone set 7
  }
}
"""


@pytest.fixture
def zone() -> Iterator[None]:
    """Netfilter follows what this node sends in conntrack zone 7, as a virtual switch's flows."""
    subprocess.run(["nft", ZONED], check=True)
    yield
    subprocess.run(["nft", "delete", "table", "inet", "zoned"], check=True)


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize("asked", [8080, 80], ids=["masqueraded alone", "translated"])
def test_a_connection_of_a_zone_is_left_out(hosts: tuple[str, str], asked: int) -> None:
    """It is another program's, and netfilter would be asked for it without the zone."""
    host, vip = hosts
    listed = masqueraded_flows if asked == 8080 else translated_flows
    # One of the ten ports may be that of another test's connection, which is known for a while.
    before = Counter(flows_to(host, 8080, listed()))
    with accepted(host, (host if asked == 8080 else vip, asked)):
        assert not Counter(flows_to(host, 8080, listed())) - before


def test_a_connection_that_is_masqueraded_alone_is_listed_with_those(
    hosts: tuple[str, str],
) -> None:
    """As a CNI does it: to the backend's own address, from an address of the node."""
    host, _ = hosts
    with accepted(host, (host, 8080)) as (_, port):
        flows = flows_to(host, 8080, masqueraded_flows())
        assert port in [socket.ntohs(flow.source_port) for flow in flows]
        assert port not in [socket.ntohs(flow.source_port) for flow in flows_to(host, 8080)], (
            "its destination is as it was"
        )


def test_what_netfilter_has_forgotten_is_found_among_many(hosts: tuple[str, str]) -> None:
    host, _ = hosts
    flows = [
        TranslatedFlow(
            pack(host), pack(host), socket.htons(port), socket.htons(8082), socket.IPPROTO_UDP
        )
        for port in range(10000, 10200)
    ]
    known = reserve(flows[::2], 60)
    assert list(forgotten(flows)) == flows[1::2]
    release(known)
    assert list(forgotten(flows)) == flows


def test_netfilter_leaves_a_reserved_port_alone(hosts: tuple[str, str]) -> None:
    """Nine of the ten ports that it may choose are ours; then they are free again."""
    host, vip = hosts
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ours = [
        TranslatedFlow(
            pack(host), pack(host), socket.htons(port), socket.htons(8081), socket.IPPROTO_TCP
        )
        for port in range(10000, 10010)
        if port != 10003
    ]
    assert reserve(ours, 60) == ours
    with socket.create_server((host, 8081), family=family) as server:
        with socket.create_connection((vip, 81), timeout=5), server.accept()[0] as accepted:
            assert accepted.getpeername()[1] == 10003
        release(ours)
        assert reserve(ours, 60) == ours, "they had been removed"
        release(ours)


# -- announcements of new connections --


def announced(flows: NewFlows, address: str, port: int) -> NewFlow:
    """Wait for the announcement of a flow to an address and port."""
    while found := flows.read(5):
        for entry in found:
            target = (
                unpack(entry.original.destination),
                socket.ntohs(entry.original.destination_port),
            )
            if target == (address, port):
                return entry
    raise AssertionError(f"no connection to {address}:{port} is announced")


def test_a_new_connection_is_announced_as_it_was_opened_and_as_it_is_answered(
    hosts: tuple[str, str],
) -> None:
    """Translated and masqueraded: the announcement comes after both."""
    host, vip = hosts
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        closing(NewFlows()) as flows,
        socket.create_server((host, 8080), family=family),
        socket.create_connection((vip, 80), timeout=5) as client,
    ):
        ends = announced(flows, vip, 80)
        assert socket.ntohs(ends.original.source_port) == client.getsockname()[1]
        assert (unpack(ends.reply.source), socket.ntohs(ends.reply.source_port)) == (host, 8080)
        assert unpack(ends.reply.destination) == host
        assert 10000 <= socket.ntohs(ends.reply.destination_port) <= 10009
        assert flows.losses == 0


def test_a_connection_that_is_not_translated_is_announced_too(hosts: tuple[str, str]) -> None:
    host, _ = hosts
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(NewFlows()) as flows, socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        with socket.create_connection((host, port), timeout=5):
            ends = announced(flows, host, port)
            assert ends.reply == ends.original.reverse()


def test_a_refused_connection_is_not_announced(hosts: tuple[str, str]) -> None:
    """So nothing shows what kube-proxy refuses."""
    host, vip = hosts
    family = "ip6" if ":" in host else "ip"
    rules = f"add chain {family} migration refuse {{ type filter hook output priority 0 ; }}\n"
    rules += f"add rule {family} migration refuse {family} daddr {vip} tcp dport 82 reject"
    subprocess.run(["nft", "-f", "-"], input=rules, text=True, check=True)
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(NewFlows()) as flows, socket.create_server((host, 0), family=kind) as server:
        with pytest.raises(OSError, match=r"refused|unreachable"):
            socket.create_connection((vip, 82), timeout=5)
        with socket.create_connection((host, server.getsockname()[1]), timeout=5):
            found = flows.read(5)
        ports = {socket.ntohs(entry.original.destination_port) for entry in found}
        assert server.getsockname()[1] in ports
        assert 82 not in ports


def test_losses_are_counted_and_reading_goes_on(hosts: tuple[str, str]) -> None:
    """More datagrams than may wait: each is a connection of its own, by its source port."""
    host, _ = hosts
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with closing(NewFlows(waiting_bytes=4096)) as flows:
        for port in range(40000, 40200):
            with socket.socket(family, socket.SOCK_DGRAM) as client:
                client.bind((host, port))
                client.sendto(b"x", (host, 9))
        while flows.read(0):
            pass
        assert flows.losses
        with socket.socket(family, socket.SOCK_DGRAM) as client:
            client.sendto(b"x", (host, 10))
        announced(flows, host, 10)


def test_a_kernel_that_announces_nothing_is_an_error(tmp_path: Path) -> None:
    switch = tmp_path / "proc/sys/net/netfilter/nf_conntrack_events"
    switch.parent.mkdir(parents=True)
    switch.write_text("0\n")
    with pytest.raises(SystemUnfit, match="nf_conntrack_events is 0"):
        NewFlows(tmp_path)
