"""The load tool does what it is ordered to, and counts what the server at the other end saw."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bpfsvc.base.errors import SystemUnfit
from bpfsvc.devtools.bench.load.ports import PORTS
from bpfsvc.devtools.bench.load.tool import KINDS, Client, LoadFailed, Outcome, Seen, Server, build
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.pod import LabPod
from bpfsvc.devtools.lab.topology import Lab

_PORT, _NO_PORT = 9000, 9001
_CLIENTS = 3
_SECONDS = 0.05
_BLOCK = 64 * 1024
_UNUSED = "10.244.2.99"


@dataclass
class Ends:
    """A client in a pod and a server in a pod of another node."""

    program: Path
    near: LabPod
    far: LabPod
    client: Client
    server: Server

    def run(self, kind: str, family: int = 4, port: int = _PORT) -> tuple[Outcome, Seen]:
        """Do so; return what the client reports, and what the server saw of it."""
        before = self.server.seen()
        outcome = self.client.run(kind, self.far.address(family), port, _CLIENTS, _SECONDS)
        pairs = zip(self.server.seen(), before, strict=True)
        return outcome, Seen(*(now - then for now, then in pairs))


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ends]:
    """One of each, for all tests."""
    program = build(tmp_path_factory.mktemp("load"))
    first, *_, last = sorted(os.sched_getaffinity(0))
    with Lab("routed", pods_per_node=1) as lab:
        near, far = lab.pods
        # Every datagram to a closed port is refused, not only the first few of a second.
        for key in ("net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"):
            far.sysctl(key, 0)
        server = Server(program, far, last, _PORT)
        yield Ends(program, near, far, Client(program, near, first), server)


@pytest.mark.parametrize("kind", KINDS)
def test_client_and_server_count_the_same(ends: Ends, kind: str, family: int) -> None:
    """Every kind, in both families; what is sent before the clock starts is not counted."""
    busy = ends.server.cpu()
    outcome, seen = ends.run(kind, family)
    assert outcome.operations > 0
    assert outcome.seconds >= _SECONDS
    # What it does when its last operation has ended costs some microseconds.
    assert 0 < outcome.cpu_seconds <= outcome.seconds * 1.05
    assert ends.server.cpu() > busy
    done, unsure = outcome.operations, outcome.errors
    if kind == "connect":
        assert seen == Seen(connections=done, messages=done, datagrams=0, bytes=0)
    elif kind == "request":
        assert seen == Seen(_CLIENTS, messages=done + _CLIENTS, datagrams=0, bytes=0)
    elif kind == "bulk":
        assert seen == Seen(_CLIENTS, messages=0, datagrams=0, bytes=outcome.bytes)
        assert done == outcome.bytes // _BLOCK
    else:
        first = _CLIENTS if kind == "datagrams" else 0
        assert seen == Seen(0, 0, datagrams=seen.datagrams, bytes=0)
        assert done <= seen.datagrams <= done + first + unsure
    if kind != "bulk":
        assert outcome.bytes == done * 64
        assert sum(count for _, count in outcome.histogram) == done
    if kind in ("connect", "request", "bulk"):
        assert outcome.errors == 0


def test_the_latencies_of_a_client_add_up_to_its_time(ends: Ends) -> None:
    """Each operation begins when the last has ended; buckets are a few percent too high at most."""
    outcome, _ = ends.run("request")
    total = sum(edge * count for edge, count in outcome.histogram) / 1e6
    assert 0.7 < total / (_CLIENTS * outcome.seconds) < 1.04
    edges = [edge for edge, _ in outcome.histogram]
    assert edges == sorted(set(edges))
    percentiles = outcome.percentiles()
    assert list(percentiles) == ["50", "90", "99", "99.9"]
    assert (
        edges[0]
        <= percentiles["50"]
        <= percentiles["90"]
        <= percentiles["99"]
        <= percentiles["99.9"]
        <= edges[-1]
    )


def test_requests_keep_their_connections_for_the_next_order(ends: Ends) -> None:
    """For one to the same place; for another place, new ones are made."""
    ends.run("datagrams")
    assert ends.run("request")[1].connections == _CLIENTS
    outcome, seen = ends.run("request")
    assert seen == Seen(connections=0, messages=outcome.operations, datagrams=0, bytes=0)
    assert ends.run("request", family=6)[1].connections == _CLIENTS


def test_connections_are_closed_by_the_client(ends: Ends) -> None:
    """Both ends send their FIN, the client first: it keeps every TIME_WAIT, the server none."""
    before = _time_wait(ends.near)
    outcome, _ = ends.run("connect")
    assert _time_wait(ends.near) >= before + outcome.operations
    assert _time_wait(ends.far) == 0


def _time_wait(namespace: Namespace) -> int:
    with namespace.entered():
        rows = Path("/proc/thread-self/net/sockstat").read_text().splitlines()
    words = next(row for row in rows if row.startswith("TCP:")).split()
    return int(words[words.index("tw") + 1])


@pytest.mark.parametrize("kind", ["connect", "request", "bulk", "questions"])
def test_a_refusal_is_one_clear_error(ends: Ends, kind: str, family: int) -> None:
    """The error names kind and address; the client keeps working."""
    address = ends.far.address(family)
    with pytest.raises(LoadFailed) as caught:
        ends.run(kind, family, _NO_PORT)
    assert "Connection refused" in caught.value.message
    assert f"{kind} to {address} port {_NO_PORT}" in caught.value.message
    assert ends.run(kind, family)[0].operations > 0


def test_a_connection_in_bulk_that_does_not_end_is_an_error(ends: Ends) -> None:
    """One of two, whose packets are lost from the middle on."""
    node = ends.far.node
    # Source ports are taken in turn: one of the two is odd.
    lost = f"tcp dport {_PORT} tcp sport & 1 == 1 quota over {100 * _BLOCK} bytes counter drop"
    chain = f"chain forward {{ type filter hook forward priority 0; {lost}; }}"
    node.run(["nft", "-f", "-"], input=f"table inet stall {{\n{chain}\n}}")
    try:
        with pytest.raises(LoadFailed, match="1 of 2 connections had not come to their end"):
            ends.client.run("bulk", ends.far.address(), _PORT, 2, 1.0)
    finally:
        node.run(["nft", "delete", "table", "inet", "stall"])
    assert ends.run("bulk")[0].operations > 0


def test_requests_use_source_ports_in_turn(ends: Ends) -> None:
    """None is used twice before all have had their turn."""
    node, client = ends.far.node, Client(ends.program, ends.near, min(os.sched_getaffinity(0)))
    elements = "typeof udp sport; size 65536; flags dynamic"
    rules = f"udp dport {_PORT} add @seen {{ udp sport }}"
    chain = f"chain forward {{ type filter hook forward priority 0; {rules}; }}"
    node.run(
        ["nft", "-f", "-"], input=f"table inet seen {{\nset seen {{ {elements}; }}\n{chain}\n}}"
    )
    try:
        runs = asked = 0
        while runs < 2 or asked <= 500:
            outcome = client.run("questions", ends.far.address(), _PORT, 16, 0.2)
            asked += outcome.operations + outcome.errors
            runs += 1
        listed = node.run(["nft", "-j", "list", "table", "inet", "seen"]).stdout
    finally:
        node.run(["nft", "delete", "table", "inet", "seen"])
    entries = {
        name: value for entry in json.loads(listed)["nftables"] for name, value in entry.items()
    }
    assert asked < PORTS
    ports = set(entries["set"]["elem"])
    assert len(ports) == asked
    # Neither NodePorts nor what the kernel would have chosen.
    assert min(ports) < 30_000
    assert not ports & {*range(30_000, 32_768)}


@pytest.mark.slow
def test_connections_wait_for_source_ports_instead_of_failing(ends: Ends) -> None:
    """However fast they are: between runs, until ports in TIME_WAIT can be used again."""
    key = "net.ipv4.ip_local_port_range"
    before = ends.near.sysctl(key)
    ends.near.sysctl(key, "40000 40999")
    try:
        client = Client(ends.program, ends.near, min(os.sched_getaffinity(0)))
        made = 0
        while made < 2500:
            outcome = client.run("connect", ends.far.address(), _PORT, _CLIENTS, 0.02)
            made += outcome.operations
    finally:
        ends.near.sysctl(key, before)


def test_percentiles_are_the_first_edges_that_so_many_reach() -> None:
    """The edge of the bucket in which the operation of that rank is."""
    even = Outcome(histogram=tuple((float(edge), 10) for edge in range(1, 101)))
    assert even.percentiles() == {"50": 50.0, "90": 90.0, "99": 99.0, "99.9": 100.0}
    assert even.percentiles((1, 100)) == {"1": 1.0, "100": 100.0}
    assert Outcome(histogram=((7.0, 1),)).percentiles((50, 99.9)) == {"50": 7.0, "99.9": 7.0}


def test_what_is_missing_to_build_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler, or the headers: either way what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemUnfit, match=r"no C compiler .*apt-get install gcc libc6-dev"):
        build(tmp_path)
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'x.c:1: fatal error: stdio.h: no such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(SystemUnfit, match=r"stdio\.h.*apt-get install gcc libc6-dev"):
        build(tmp_path)
