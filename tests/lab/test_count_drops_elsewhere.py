"""``--count-drops-elsewhere``: a metric of what other parts of the node drop, on real packets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import wait
from tests.lab.known_pods import make_known, opened
from tests.lab.test_drops_elsewhere import attached, dropping, fails, reader
from tests.lab.test_observe import asked_for
from tests.lab.testbed import ONE, Testbed, built_testbed, put_one_each

pytestmark = pytest.mark.slow

FLAG = "--count-drops-elsewhere"
METRIC = "bpfsvc_service_dropped_elsewhere"


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """A lab whose packets take the stack, and whose first node counts."""
    with built_testbed(layout="routed", holds_pods=True) as made:
        lab, cluster = made
        put_one_each(made)
        cluster.options = ("--fast-path", "off")
        cluster.start(lab.nodes[0], options=(FLAG,))
        cluster.start(*lab.nodes[1:])
        make_known(made)
        yield made


def counted(node: LabNode) -> dict[tuple[str, str], float] | None:
    """Return the metric of a node by Service and reason; None if there is none."""
    _, text = http_request(node, "127.0.0.1", 10249, "/metrics")
    for family in parse(text.decode()):
        if family.name == METRIC:
            labels = [sample.labels for sample in family.samples]
            values = [sample.value for sample in family.samples]
            assert all(label["namespace"] == "default" for label in labels)
            names = [(label["name"], label["reason"]) for label in labels]
            return dict(zip(names, values, strict=True))
    return None


def dropped_by_rule(node: LabNode) -> int:
    """Return how many packets the rule of ``dropping`` has dropped, by netfilter's own count."""
    rules = json.loads(node.run(["nft", "-j", "list table inet site"]).stdout)["nftables"]
    (rule,) = [item["rule"] for item in rules if "rule" in item]
    (count,) = [part["counter"] for part in rule["expr"] if "counter" in part]
    return int(count["packets"])


def test_what_netfilter_drops_is_counted_packet_by_packet_without_a_reader(
    testbed: Testbed,
) -> None:
    node, of = testbed.node, ONE[1]
    key = (of.name, "SKB_DROP_REASON_NETFILTER_DROP")

    def by_netfilter() -> dict[tuple[str, str], float]:
        """Without what the kernel drops of connections before: late answers, for example."""
        return {at: count for at, count in (counted(node) or {}).items() if at[1] == key[1]}

    wait(lambda: attached(testbed) == 1, "the program is attached")
    assert counted(node) is not None
    assert by_netfilter() == {}
    with dropping(node, "forward", "tcp dport 8080 counter"):
        for _ in range(3):
            fails(testbed.client, node.address(4), of.node_port)
        number = dropped_by_rule(node)
        assert number >= 3

        wait(lambda: by_netfilter().get(key) == number, f"{number} packets are counted")
    assert by_netfilter() == {key: number}


def test_it_is_in_the_history_of_failures(testbed: Testbed) -> None:
    node, of, backend = testbed.node, ONE[2], testbed.lab.pods[2]

    def told() -> str:
        return testbed.cluster.command(node, "history", f"default/{of.name}").stdout

    with dropping(node, "forward", "tcp dport 8080"):
        fails(testbed.client, node.address(4), of.node_port)
        wait(lambda: "dropped elsewhere" in told(), "it is in the history")
    text = " ".join(told().split())
    assert f"default/{of.name}:web: dropped elsewhere to or from {backend.address(4)}:8080" in text
    assert "a rule of netfilter drops it (SKB_DROP_REASON_NETFILTER_DROP)" in text


def test_the_program_stays_attached_when_readers_leave(testbed: Testbed) -> None:
    with reader(testbed, "?drops=1&follow=0&last=1") as short:
        while short.recv(1 << 16):
            pass
    with reader(testbed, "?drops=1"):
        assert attached(testbed) == 1
    key = (ONE[1].name, "SKB_DROP_REASON_NETFILTER_DROP")
    before = (counted(testbed.node) or {})[key]
    with dropping(testbed.node, "forward", "tcp dport 8080"):
        fails(testbed.client, testbed.node.address(4), ONE[1].node_port)
        wait(lambda: (counted(testbed.node) or {})[key] > before, "it is counted")
    assert attached(testbed) == 1


def test_an_event_of_a_sample_counts_for_all_that_it_stands_for(testbed: Testbed) -> None:
    node, of = testbed.node, ONE[3]
    key = (of.name, "SKB_DROP_REASON_NETFILTER_DROP")
    wait(lambda: not asked_for(node) & 2, "earlier readers have left")
    with opened(node) as pinned, dropping(node, "forward", "tcp dport 8080"), ExitStack() as stack:
        record, asked = pinned.layout.maps["observed"].value, pinned.map("observed")
        fields = record.unpack(asked.lookup(bytes(4)) or b"")
        asked.update(bytes(4), record.pack({**fields, "failures": 3}))
        for _ in range(64):  # one of four is told
            made = stack.enter_context(testbed.client.socket(socket.AF_INET, socket.SOCK_STREAM))
            made.setblocking(False)
            made.connect_ex((node.address(4), of.node_port))
        wait(lambda: key in (counted(node) or {}), "some are counted")
        assert (counted(node) or {})[key] % 4 == 0
        asked.update(bytes(4), record.pack(fields))


def test_without_the_flag_there_is_no_such_metric_and_nothing_is_attached(
    testbed: Testbed,
) -> None:
    node = testbed.lab.nodes[1]
    assert counted(node) is None
    with opened(node) as pinned:
        elsewhere = 1 << pinned.layout.constant("EVENT_DROPPED_ELSEWHERE")
    assert not asked_for(node) & elsewhere
    assert asked_for(testbed.node) & elsewhere


def test_where_the_kernel_cannot_the_agent_serves_and_says_so(
    testbed: Testbed, tmp_path: Path
) -> None:
    """A kernel that describes no types of its own. The last test of this module."""
    node, cluster = testbed.node, testbed.cluster
    empty = tmp_path / "types"
    empty.write_bytes(b"")
    cluster.stop(node)
    hide = f"mount --bind {empty} /sys/kernel/btf/vmlinux"
    cluster.start(
        node, options=(FLAG,), before=("unshare", "-m", "sh", "-c", f'{hide} && exec "$0" "$@"')
    )
    agent = cluster.agents[node.name]
    text = f"{FLAG} counts nothing: drops elsewhere cannot be told: this node lacks"
    agent.expect(text)
    assert agent.log.count(text) == 1
    assert counted(node) is None
    assert text in cluster.command(node, "status").stdout
    assert agent.health().status == 200
