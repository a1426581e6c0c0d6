"""``bpfsvc explain --live``: after the answer, what becomes of real packets."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bpfsvc.devtools.lab.cluster import COMMAND
from bpfsvc.devtools.lab.dial import ask
from bpfsvc.devtools.lab.patience import stretched, wait
from tests.lab.known_pods import make_known
from tests.lab.test_drops_elsewhere import dropping, fails
from tests.lab.test_observe import asked_for
from tests.lab.testbed import ONE, Named, Testbed, built_testbed, put_one_each

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """A lab whose packets take the stack, where rules see them."""
    with built_testbed(layout="routed", holds_pods=True) as made:
        put_one_each(made)
        made.cluster.options = ("--fast-path", "off")
        made.cluster.start()
        make_known(made)
        yield made


class Watcher:
    """``bpfsvc explain --live`` for the external client and a NodePort, until it is told to end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.began = time.time()

    def finish(self) -> tuple[str, str]:
        """End it as Ctrl-C does; return its output and errors."""
        self._process.send_signal(2)
        output, errors = self._process.communicate(timeout=stretched(20))
        assert self._process.returncode == 0, errors.decode()
        return output.decode(), errors.decode()


@contextmanager
def explaining(
    testbed: Testbed, of: Named, *words: str, question: tuple[str, ...] = ()
) -> Iterator[Watcher]:
    """Watch until the end of the block; the programs are asked for all kinds by then."""
    node = testbed.node
    wait(lambda: not asked_for(node) & 2, "nobody else observes")
    source = str(testbed.lab.client.addresses[4])
    question = question or (
        *("--from", "external", source, "TCP"),
        f"{node.address(4)}:{of.node_port}",
    )
    live = ("--live", "--for", "600", "--pin-root", str(node.pin_root))
    process = node.popen(
        [*COMMAND, "explain", *question, *live, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        wait(lambda: asked_for(node) & 2 > 0, "the agent asks for events", 40)
        yield Watcher(process)
    finally:
        node.end(process)
        for pipe in (process.stdout, process.stderr):
            if pipe:
                pipe.close()


def seen(watcher: Watcher, testbed: Testbed, of: Named, kind: str, count: int) -> None:
    """Wait until the agent has told of so many events of a Service since the watch began."""

    def told() -> bool:
        done = testbed.cluster.command(
            testbed.node, *("observe", "--last", "64", "-o", "json", "--service", of.name)
        )
        events = [json.loads(line) for line in done.stdout.splitlines()]
        kinds = [event["kind"] for event in events if event["time"] >= watcher.began]
        return kinds.count(kind) >= count

    wait(told, f"{count} events {kind}", 30)


def test_a_healthy_service_shows_what_each_backend_got_and_answered(testbed: Testbed) -> None:
    of, backend = ONE[1], testbed.lab.pods[1]
    with explaining(testbed, of, "-o", "json") as watcher:
        for _ in range(3):
            ask(testbed.client, testbed.node.address(4), of.node_port)
        ask(testbed.pod, testbed.node.address(4), of.node_port)
        seen(watcher, testbed, of, "answered", 3)
        output, errors = watcher.finish()
    answer: dict[str, Any] = json.loads(output)
    assert (errors, answer["verdict"]) == ("", "dnat")
    (told,) = answer["live"]["backends"]
    assert told["backend"].startswith(f"{backend.address(4)}:8080 (default/{backend.name}")
    assert (told["made"], told["answered"], told["failed"]) == (3, 3, 0)
    assert told["dropped_elsewhere"] == []
    assert answer["live"]["made_by_other_clients"] == 1


def test_a_socket_of_the_node_is_seen_whichever_address_it_has(testbed: Testbed) -> None:
    of, node = ONE[1], testbed.node
    question = ("--from", "node", "127.0.0.2", "TCP", f"{of.vip(4)}:80")
    with explaining(testbed, of, question=question) as watcher:
        ask(node, of.vip(4), 80)
        seen(watcher, testbed, of, "made", 1)
        output, _ = watcher.finish()
    assert f": 1 connection of 127.0.0.2 to default/{of.name}\n" in output
    assert "1 made by sockets: answers are seen for TCP only" in output


@pytest.mark.parametrize("tool", ["nft", "iptables"])
def test_a_drop_rule_in_forward_is_named_with_both_ends(testbed: Testbed, tool: str) -> None:
    of, node, backend = ONE[2], testbed.node, testbed.lab.pods[2]
    rule = ("FORWARD", "-p", "tcp", "--dport", "8080", "-j", "DROP")
    with explaining(testbed, of) as watcher:
        if tool == "nft":
            with dropping(node, "forward", "tcp dport 8080"):
                fails(testbed.client, node.address(4), of.node_port)
        else:
            node.run(["iptables-nft", "-A", *rule])
            try:
                fails(testbed.client, node.address(4), of.node_port)
            finally:
                node.run(["iptables-nft", "-D", *rule])
        seen(watcher, testbed, of, "dropped_elsewhere", 1)
        output, errors = watcher.finish()
    answer, _, live = output.partition("\nlive for ")
    assert answer.startswith(f"dnat  nodeport:{of.node_port}/TCP of default/{of.name}")
    assert errors == ""
    client = testbed.lab.client.addresses[4]
    assert f": 1 connection of {client} to default/{of.name}\n" in live
    assert (
        "DROPPED ELSEWHERE: a rule of netfilter drops it (SKB_DROP_REASON_NETFILTER_DROP)" in live
    )
    assert f"{client} -> default/{backend.name}: " in live
    (row,) = [line for line in live.splitlines() if f"{backend.address(4)}:8080" in line]
    made, answered = row.partition("node-")[2].split()[1:3]
    assert (made, answered) == ("1", "0")


def live(testbed: Testbed) -> tuple[int, str, str]:
    """Ask about the external client and the first NodePort, with ``--live`` for a short time."""
    node = testbed.node
    source = str(testbed.lab.client.addresses[4])
    question = ("--from", "external", source, "TCP", f"{node.address(4)}:{ONE[1].node_port}")
    done = testbed.cluster.command(node, "explain", *question, "--live", "--for", "0.2")
    return done.returncode, done.stdout, done.stderr


def test_if_nothing_comes_one_line_says_so(testbed: Testbed) -> None:
    status, output, errors = live(testbed)
    assert (status, errors) == (0, "")
    (line,) = [line for line in output.splitlines() if line.startswith("live")]
    assert line.endswith(
        f"nothing was seen of {testbed.lab.client.addresses[4]} to default/{ONE[1].name}"
    )
    assert output.endswith(line + "\n")


def test_without_an_agent_the_answer_and_one_line_of_error_are_left(testbed: Testbed) -> None:
    """The last test of this module, as it ends the agent."""
    testbed.agent.end()
    status, output, errors = live(testbed)
    assert (status, output.partition("\n")[0].split()[0]) == (1, "dnat")
    assert errors.splitlines() == [
        "Error: no agent answers on this node: Connection refused",
        "Hint: start it with: bpfsvc run, or name its place with --pin-root",
    ]
