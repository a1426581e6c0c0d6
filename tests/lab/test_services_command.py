"""``bpfsvc services`` and ``bpfsvc top`` against connections that are really open.

The clients are outside of the node, so every connection goes by packets; but for tests whose
clients are processes of the node.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from bpfsvc.devtools.lab.dial import OpenConnection, ask, connect
from bpfsvc.devtools.lab.patience import stretched, wait
from tests.lab.testbed import EMPTY, WEB, Testbed, built_testbed, host, objects

pytestmark = pytest.mark.slow

TCP, UDP = f"default/{WEB.name}:web", f"default/{WEB.name}:dns"
HELD = 7


@pytest.fixture(scope="module")
def node() -> Iterator[Testbed]:
    """A node with two pods, both backends of one Service, and a Service without any."""
    with built_testbed(layout="routed", nodes=1) as made:
        made.cluster.put("web", *objects(WEB, made.lab.pods))
        made.cluster.put("empty", *objects(EMPTY, []))
        made.cluster.start()
        yield made


def services(node: Testbed, *words: str) -> list[dict[str, Any]]:
    """Return the service ports for IPv4 that the command prints."""
    done = node.cluster.command(node.node, "services", *words, "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return [port for port in json.loads(done.stdout)["services"] if port["family"] == "IPv4"]


def backends(node: Testbed, name: str, *words: str) -> dict[str, dict[str, Any]]:
    """Return the backends of a service port by their addresses."""
    (port,) = services(node, name, *words)
    return {backend["address"]: backend for backend in port["backends"]}


def active(node: Testbed) -> dict[str, int]:
    """Return how many active connections each backend for TCP has."""
    return {
        at: backend["active"] for at, backend in backends(node, TCP).items() if backend["active"]
    }


def opened(node: Testbed, stack: ExitStack, number: int) -> list[tuple[OpenConnection, str]]:
    """Open connections to the node port; return each with the address of its backend."""
    made = []
    for _ in range(number):
        connection = stack.enter_context(connect(node.client, at_node(node), WEB.node_port))
        made.append((connection, host(connection.who().local)))
    return made


def at_node(node: Testbed) -> str:
    return str(node.node.addresses[4])


def test_held_connections_are_active_at_their_backends_and_closed_ones_are_not(
    node: Testbed,
) -> None:
    with ExitStack() as stack:
        held = opened(node, stack, HELD)
        assert active(node) == Counter(at for _, at in held)
        for connection, _ in held[:3]:
            connection.close()
        left = Counter(at for _, at in held[3:])
        wait(lambda: active(node) == left, "the closed ones are no longer active")
        assert sum(backend["inactive"] for backend in backends(node, TCP).values()) <= 3
    wait(lambda: not active(node), "none is active")


@pytest.mark.slow
def test_a_removed_backend_drains_until_its_connections_end(node: Testbed) -> None:
    with ExitStack() as stack:
        held = opened(node, stack, 1)
        while len({at for _, at in held}) < 2:
            held += opened(node, stack, 1)
        stays, goes = node.lab.pods
        node.cluster.apply("web", *objects(WEB, [stays]))
        states = backends(node, TCP, "--stats")
        of_former = Counter(at for _, at in held)[goes.address(4)]
        former, present = states[goes.address(4)], states[stays.address(4)]
        assert (former["state"], former["active"]) == ("draining", of_former)
        assert (former["weight"], former["counts"], former["clients"]) == (0, None, [])
        assert (present["state"], present["weight"]) == ("ready", 1)
        assert all(connection.echo(b"still here") for connection, _ in held)
        for connection, _ in held:
            connection.close()
        wait(lambda: goes.address(4) not in backends(node, TCP), "it is gone", 60)
    node.cluster.apply("web", *objects(WEB, node.lab.pods))


def test_counts_are_those_of_the_packets_that_were_sent(node: Testbed) -> None:
    """Datagrams of one flow, each with an answer."""
    before = counts(node, UDP)
    with node.client.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.settimeout(stretched(2))
        made.connect((at_node(node), WEB.node_port))
        for _ in range(20):
            made.send(b"who\n")
            answer = made.recv(1 << 16)
        after = counts(node, UDP)
        at = host(json.loads(answer)["local"])
        assert backends(node, UDP)[at]["active"] == 0
        assert backends(node, UDP)[at]["inactive"] >= 1
    added = {name: after[name] - before[name] for name in after}
    assert (added["connections"], added["packets"], added["reply_packets"]) == (1, 20, 20)
    assert added["bytes"] >= 20 * (20 + 8 + len(b"who\n"))
    assert added["bytes"] % 20 == 0
    assert added["reply_bytes"] >= 20 * (20 + 8 + len(answer))


def counts(node: Testbed, name: str) -> dict[str, int]:
    (port,) = services(node, name, "--stats")
    totals: dict[str, int] = port["counts"]
    return totals


def test_what_was_refused_is_counted_for_its_service(node: Testbed) -> None:
    name = f"default/{EMPTY.name}:web"
    before = counts(node, name)["rejected"]
    for _ in range(3):
        with pytest.raises(ConnectionRefusedError):
            ask(node.client, at_node(node), EMPTY.node_port)
    assert counts(node, name)["rejected"] - before == 3
    (port,) = services(node, name)
    assert port["backends"] == []
    actions = {
        treatment["action"]
        for frontend in port["frontends"]
        for treatment in frontend["clients"].values()
    }
    assert actions == {"reject"}


def test_connections_that_sockets_of_the_node_carry_are_active(node: Testbed) -> None:
    wait(lambda: not active(node), "those of earlier tests have ended")
    before = counts(node, TCP)["connections"]
    with ExitStack() as stack:
        held = [stack.enter_context(connect(node.node, WEB.vip(4), 80)) for _ in range(HELD)]
        assert active(node) == Counter(host(connection.who().local) for connection in held)
        assert counts(node, TCP)["connections"] - before == HELD
        held += [connection for connection, _ in opened(node, stack, 2)]
        assert sum(active(node).values()) == HELD + 2
        (port,) = services(node, TCP)
        assert (port["active"], port["at_least"]) == (HELD + 2, ["active"])
    wait(lambda: not active(node), "none is active")


def test_what_sockets_of_pods_may_add_is_said_and_is_no_0(node: Testbed) -> None:
    """The setting is ``all``: a pod's connection may be one that no list has."""
    wait(lambda: not active(node), "those of earlier tests have ended")
    lines = node.cluster.command(node.node, "services", TCP).stdout.splitlines()
    numbers = [line.split()[5] for line in lines if line.startswith("  -> 10.")]
    assert numbers == ["-"] * len(node.lab.pods)
    with connect(node.node, WEB.vip(4), 80) as connection:
        at = host(connection.who().local)
        lines = node.cluster.command(node.node, "services", TCP).stdout.splitlines()
    assert [line.split()[5] for line in lines if at in line] == ["1+"]
    assert lines[-1].startswith("Note: connections of sockets of pods and of UDP sockets")


def test_a_service_is_found_by_what_clients_use(node: Testbed) -> None:
    for text in (f"{WEB.vip(4)}:80/TCP", f"{at_node(node)}:{WEB.node_port}/TCP", TCP):
        assert [(port["name"], port["port_name"]) for port in services(node, text)] == [
            (WEB.name, "web")
        ]
    wrong = node.cluster.command(node.node, "services", "10.96.0.99:80")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("Error: the kernel holds no frontend 10.96.0.99:80\n")


@contextmanager
def asking(node: Testbed) -> Iterator[None]:
    """Send datagrams to the Service, one after the other, meanwhile."""
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set():
            ask(node.client, at_node(node), WEB.node_port, "udp")

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_rates_and_top_show_what_happens_now(node: Testbed) -> None:
    with asking(node):
        (port,) = services(node, UDP, "--rate", "--interval", "1")
        assert port["rates"]["connections"] > 0
        assert port["rates"]["reply_packets"] > 0
        done = node.cluster.command(node.node, "top", "--once", "--sort", "packets")
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.split("\n\n")[1].splitlines()]
    (first, numbers), *rest = zip(lines[2::2], lines[3::2], strict=True)
    assert first == [UDP, "UDP", "IPv4"]
    assert float(numbers[1]) > 0
    assert all(float(line[1]) == 0 for name, line in rest if name[2] == "IPv6")
