"""Which entries of netfilter's connection table let the middle of a connection be fast."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator

import pytest

from bpfsvc.base.address import pack
from bpfsvc.datapath.netlink.conntrack.entries import Entry, look_up, make_liberal
from bpfsvc.datapath.netlink.conntrack.messages import TranslatedFlow

ENDS = {"IPv4": ("10.9.0.1", "10.9.0.2"), "IPv6": ("fd09::1", "fd09::2")}
ESTABLISHED = ("--state", "ESTABLISHED", "-u", "SEEN_REPLY,ASSURED")

Insert = Callable[..., TranslatedFlow]


def run(*words: str) -> str:
    """Run ``conntrack``; return what it prints."""
    command = ["conntrack", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(params=ENDS)
def insert(request: pytest.FixtureRequest) -> Iterator[Insert]:
    """Make an entry with the given options of ``conntrack``; return its flow."""
    source, destination = ENDS[request.param]

    def inserted(*options: str, protocol: str = "tcp") -> TranslatedFlow:
        ends = ["-s", source, "-d", destination, "--sport", "40000", "--dport", "80"]
        run("-I", "-p", protocol, *ends, "-t", "100", *options)
        number = socket.IPPROTO_TCP if protocol == "tcp" else socket.IPPROTO_UDP
        ports = socket.htons(40000), socket.htons(80)
        return TranslatedFlow(pack(source), pack(destination), *ports, number)

    yield inserted
    for family in ("ipv4", "ipv6"):
        subprocess.run(["conntrack", "-F", "-f", family], check=False, capture_output=True)


def entry_of(flow: TranslatedFlow) -> Entry:
    ((asked, entry),) = look_up([flow])
    assert asked == flow
    assert entry is not None
    return entry


@pytest.mark.parametrize("reverse", [False, True], ids=["by its flow", "by its answers"])
def test_an_established_connection_is_found(insert: Insert, reverse: bool) -> None:
    flow = insert(*ESTABLISHED)
    entry = entry_of(flow.reverse() if reverse else flow)
    assert (entry.original, entry.reply) == (flow, flow.reverse())
    assert entry.is_established
    assert 0 < entry.seconds <= 100


def test_so_is_a_flow_of_datagrams_that_was_answered_for_a_while(insert: Insert) -> None:
    assert entry_of(insert("-u", "SEEN_REPLY,ASSURED", protocol="udp")).is_established


def test_a_flow_without_entry_has_none(insert: Insert) -> None:
    flow = insert(*ESTABLISHED)
    other = flow._replace(source_port=socket.htons(40001))
    assert dict(look_up([other, flow]))[other] is None
    assert list(make_liberal([other])) == []


NOT_ESTABLISHED = {
    "one that is closing": ("--state", "FIN_WAIT", "-u", "SEEN_REPLY,ASSURED"),
    "one that has just begun": ("--state", "SYN_RECV", "-u", "SEEN_REPLY"),
    "one that is not assured": ("--state", "ESTABLISHED", "-u", "SEEN_REPLY"),
    "one of another program": (*ESTABLISHED, "--zone", "7"),
}


@pytest.mark.parametrize("options", NOT_ESTABLISHED.values(), ids=NOT_ESTABLISHED)
def test_another_connection_is_not_established(insert: Insert, options: tuple[str, ...]) -> None:
    ((_, entry),) = look_up([insert(*options)])
    assert entry is None or not entry.is_established


def test_a_translated_connection_is_not_established(insert: Insert) -> None:
    """By source or destination, as netfilter shows it."""
    for changed in ({"reply": None}, {"status": 0xE | 1 << 4}, {"status": 0xE | 1 << 5}):
        entry = entry_of(insert(*ESTABLISHED))
        assert entry.is_established
        assert not entry._replace(**changed).is_established
        run("-F")


@pytest.fixture
def tracked() -> Iterator[None]:
    """Rules that need connections to be tracked."""
    rules = "table inet tracked { chain i { type filter hook input priority 0; ct state new; }; }"
    subprocess.run(["nft", rules], check=True)
    yield
    subprocess.run(["nft", "delete", "table", "inet", "tracked"], check=True)


@pytest.mark.usefixtures("tracked")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_conntrack_is_told_that_it_misses_packets(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        socket.create_server((host, 0), family=family) as server,
        socket.create_connection(server.getsockname()[:2], timeout=5) as client,
    ):
        made, peer = server.accept()
        with made:
            made.sendall(b"data")
            assert client.recv(4) == b"data"
            ports = socket.htons(peer[1]), socket.htons(server.getsockname()[1])
            flow = TranslatedFlow(pack(host), pack(host), *ports, socket.IPPROTO_TCP)
            entry = entry_of(flow)
            assert entry.is_established
            assert not entry.is_liberal
            assert list(make_liberal([flow])) == [flow]
            told = entry_of(flow)
            assert told == entry._replace(tcp_flags=told.tcp_flags, seconds=told.seconds)
            assert told.is_liberal
            assert list(make_liberal([flow], 5000)) == [flow]
            assert 4000 < entry_of(flow).seconds <= 5000


def test_many_are_asked_about_at_once(insert: Insert) -> None:
    flow = insert(*ESTABLISHED)
    flows = [flow._replace(source_port=socket.htons(40000 + index)) for index in range(200)]
    entries = dict(look_up(flows))
    assert [known for known in flows if entries[known]] == [flow]
    assert len(entries) == len(flows)
