"""Rivals really balance: each mode that this kernel has, by real sockets; and a kube-proxy runs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import NamedTuple

import pytest

from bpfsvc.bench import rivals
from bpfsvc.bench.rivals import Balanced, KubeProxy, Mode, RivalFailed, TooSlow, ipvs
from bpfsvc.bench.rivals.balanced import Site, Step
from bpfsvc.bench.rivals.running import Runner
from bpfsvc.bench.stands.agents import cores
from bpfsvc.bench.stands.scene import RivalScene
from bpfsvc.lab.capture import Capture
from bpfsvc.lab.dial import Protocol, ask, tally
from bpfsvc.lab.patience import stretched, wait
from bpfsvc.lab.topology import CLUSTER_CIDRS, Lab

_PODS = IPv4Network(CLUSTER_CIDRS[4])
_ALWAYS: tuple[Mode, ...] = ("iptables", "iptables-nft", "nftables")
"""What a kernel of the tests must have; ipvs it may lack."""

_WEB, _ECHO, _ALONE = "10.96.0.1", "10.96.0.2", "10.96.0.3"
_NOBODY = "10.96.0.4"


class Rival(NamedTuple):
    """A lab whose nodes have all Services below in rules of a mode."""

    mode: str
    lab: Lab
    web: Balanced
    echo: Balanced

    @property
    def names(self) -> list[str]:
        """The names of the pods: two on each node."""
        return [pod.name for pod in self.lab.pods]


@pytest.fixture(scope="module", params=_ALWAYS)
def rival(request: pytest.FixtureRequest) -> Iterator[Rival]:
    """A lab of every mode."""
    with Lab("routed", families=(4,)) as lab:
        lab.serve()
        addresses = [(pod.address(), 8080) for pod in lab.pods]
        both = (addresses[1], addresses[2])  # one on each node
        web = Balanced("default/web:http", _WEB, 80, "tcp", 30080, both)
        echo = Balanced("default/echo", _ECHO, 7, "udp", 30007, both)
        alone = Balanced("default/alone", _ALONE, 80, "tcp", 0, (addresses[0],))
        for node in lab.nodes:
            seconds = rivals.program(node, request.param, [web, echo, alone], _PODS)
            assert 0 < seconds < 60
        yield Rival(request.param, lab, web, echo)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_pod_reaches_the_backends_on_both_nodes_as_itself(
    rival: Rival, protocol: Protocol
) -> None:
    """By cluster IP; the source is the pod's own."""
    pod = rival.lab.pods[0]
    where = (_WEB, 80) if protocol == "tcp" else (_ECHO, 7)
    counts = tally(pod, *where, protocol, count=60)
    assert set(counts) == set(rival.names[1:3])
    assert min(counts.values()) > 10
    assert ask(pod, *where, protocol).peer.startswith(f"{pod.address()}:")


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_node_port_answers_outside_with_the_source_masqueraded(
    rival: Rival, protocol: Protocol
) -> None:
    """On either node, whichever backend is taken."""
    port = 30080 if protocol == "tcp" else 30007
    for node in rival.lab.nodes:
        answers = [ask(rival.lab.client, node.address(), port, protocol) for _ in range(12)]
        assert {answer.pod for answer in answers} == set(rival.names[1:3])
        assert all(answer.peer.startswith(f"{node.address()}:") for answer in answers)


def test_what_is_no_pod_reaches_a_cluster_ip_masqueraded(rival: Rival) -> None:
    """From outside by way of a node, and from the node itself."""
    node = rival.lab.nodes[0]
    rival.lab.client.route(_ALONE, node)
    for place in (rival.lab.client, node):
        answer = ask(place, _ALONE, 80)
        assert answer.pod == rival.names[0]
        assert answer.peer.startswith(f"{node.address()}:")


def test_a_pod_reaches_itself(rival: Rival) -> None:
    """Its own address as source would never come back."""
    pod = rival.lab.pods[0]
    answer = ask(pod, _ALONE, 80)
    assert answer.pod == pod.name
    assert not answer.peer.startswith(f"{pod.address()}:")


def test_new_connections_follow_a_change_and_the_others_stay(rival: Rival) -> None:
    """There, back again and there once more, on one node; the other Services are untouched."""
    pod, node = rival.lab.pods[0], rival.lab.nodes[0]
    moved = replace(rival.web, backends=((rival.lab.pods[3].address(), 8080),))
    for _ in range(2):
        assert rivals.change(node, rival.mode, moved) > 0
        assert set(tally(pod, _WEB, 80, count=20)) == {rival.names[3]}
        assert ask(rival.lab.client, node.address(), 30080).pod == rival.names[3]
        rivals.change(node, rival.mode, rival.web)
        assert set(tally(pod, _WEB, 80, count=40)) == set(rival.names[1:3])
    assert set(tally(pod, _ECHO, 7, "udp", count=40)) == set(rival.names[1:3])


def test_a_change_that_is_ready_is_made_when_it_is_made(rival: Rival) -> None:
    """To start its tools with nothing to do changes nothing."""
    pod, node = rival.lab.pods[0], rival.lab.nodes[0]
    moved = replace(rival.web, backends=((rival.lab.pods[3].address(), 8080),))
    ready = rivals.prepare(node, rival.mode, moved)
    assert all(0 < ready.empty().seconds < 5 for _ in range(2))
    assert set(tally(pod, _WEB, 80, count=20)) == set(rival.names[1:3])
    before = time.monotonic()
    took = ready.make()
    assert before < took.began < took.ended < time.monotonic()
    assert set(tally(pod, _WEB, 80, count=20)) == {rival.names[3]}
    rivals.change(node, rival.mode, rival.web)


def test_localhost_has_node_ports_and_counts_them_in_iptables(rival: Rival) -> None:
    """By the rule that kube-proxy has for its metrics, and not by the one that follows."""
    node = rival.lab.nodes[0]
    if rival.mode == "nftables":
        assert set(tally(node, "127.0.0.1", 30080, count=1)) == {"refused"}
        return
    flavour = "legacy" if rival.mode == "iptables" else "nft"

    def counted() -> list[int]:
        rules = node.run([f"iptables-{flavour}-save", "-c", "-t", "nat"]).stdout.splitlines()
        found = [rule for rule in rules if "KUBE-NODEPORTS" in rule and "--dport 30080" in rule]
        assert ["nfacct" in rule for rule in found] == [True, False]
        return [int(rule[1:].partition(":")[0]) for rule in found]

    local, others = counted()
    assert ask(node, "127.0.0.1", 30080).pod in rival.names
    assert counted() == [local + 1, others]


def test_nftables_refuses_and_drops_what_no_service_has(rival: Rival) -> None:
    """A port that a cluster IP has not, and an address of the range that nobody has.

    With iptables both are sent to wherever the node's routes lead.
    """
    pod, node = rival.lab.pods[0], rival.lab.nodes[0]
    drops = rival.mode == "nftables"
    with Capture(node, "eth0") as capture:
        patience = 2.0 if drops else 0.2
        assert tally(pod, _WEB, 81, count=1, timeout=patience) == {
            "refused" if drops else "timeout": 1
        }
        assert tally(pod, _NOBODY, 80, count=1, timeout=0.2) == {"timeout": 1}
    sent = [frame.data for frame in capture.frames() if frame.outgoing]
    left = {to for to in (_WEB, _NOBODY) if any(socket.inet_aton(to) in data for data in sent)}
    assert left == (set() if drops else {_WEB, _NOBODY})


def test_a_node_is_programmed_once(rival: Rival) -> None:
    """And what it does not have cannot change."""
    node = rival.lab.nodes[0]
    with pytest.raises(RivalFailed, match=f"has rules of {rival.mode} already"):
        rivals.program(node, rival.mode, [rival.web], _PODS)
    with pytest.raises(RivalFailed, match="has no Service default/none"):
        rivals.change(node, rival.mode, replace(rival.web, name="default/none"))


def test_what_there_is_and_why_not_is_told() -> None:
    """Every kernel here has netfilter's; ipvs it has, or the sentence says what is missing."""
    found = rivals.modes()
    assert list(found) == list(rivals.MODES)
    assert [mode for mode in _ALWAYS if found[mode]] == []
    assert not found["ipvs"] or "IPVS" in found["ipvs"] or "apt install" in found["ipvs"]


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A lab of one node without pods."""
    with Lab("routed", families=(4,), nodes=1, pods_per_node=0) as made:
        yield made


def test_sets_and_rules_of_ipvs_are_taken_by_a_kernel_without_it(lab: Lab) -> None:
    """All but what makes ipvs itself, at first and at a change."""
    if shutil.which("ipset") is None:
        assert "apt install" in rivals.modes()["ipvs"]
        return
    node = lab.nodes[0]
    site = Site(node.address(4), IPv4Network(node.pod_cidrs[4]), _PODS)
    before = Balanced("default/web", _WEB, 80, "tcp", 30080, (("10.244.2.2", 80),))
    after = replace(before, backends=(("10.244.1.2", 80),))
    runner = Runner(node, "ipvs")
    for steps in (
        ipvs.first([before], site),
        ipvs.change([after], before, after, (), site),
    ):
        runner.take([step for step in steps if step.command[0] not in ("ipvsadm", "ip")])
        assert runner.run(stretched(5), 1).seconds > 0
    assert "KUBE-LOOP-BACK" in node.run(["iptables-legacy-save", "-t", "nat"]).stdout


def test_a_tool_that_fails_is_named_with_its_first_line(lab: Lab) -> None:
    """And none is run after it; neither is one that does not exist."""
    runner = Runner(lab.nodes[0], "nftables")
    failing = Step(("sh", "-s"), "echo one >&2; echo two >&2; exit 3")
    runner.take([Step(("true",), ""), failing, Step(("sleep", "60"), "")])
    with pytest.raises(RivalFailed, match=r"sh -s ended with 3: one$"):
        runner.run(stretched(5), 1)
    runner.take([Step(("no-such-tool",), "")])
    with pytest.raises(RivalFailed, match="no-such-tool ended with 127: not found"):
        runner.run(stretched(5), 1)


def test_only_the_client_and_the_backends_are_on_the_core_of_the_client() -> None:
    """As long as a scene is open; afterwards all is as it was."""
    allowed = os.sched_getaffinity(0)
    core, _ = cores()
    with RivalScene(1, "nftables", 60.0) as scene:
        scene.change()
        assert scene.empty > 0
        assert os.sched_getaffinity(0) == (allowed - {core} or allowed)
    assert os.sched_getaffinity(0) == allowed


def test_programming_ends_at_its_limit(lab: Lab) -> None:
    """A time no tool can keep."""
    service = Balanced("default/web", _WEB, 80, "tcp", 0, (("10.244.1.2", 80),))
    with pytest.raises(TooSlow, match="iptables-nft: 1 Service not programmed within"):
        rivals.program(lab.nodes[0], "iptables-nft", [service], _PODS, limit=1e-6)


_FAKE = """\
#!{python}
import http.server, json, pathlib, sys, threading
place = pathlib.Path(sys.argv[0]).parent
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        synced = (place / "synced").exists()
        body = b"kubeproxy_sync_proxy_rules_last_timestamp_seconds"
        body += b'{{ip_family="IPv4"}} 1.7e+09' if synced else b'{{ip_family="IPv6"}} 1.7e+09'
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body + bytes([10]))
    def log_message(self, *words):
        pass
health = http.server.HTTPServer(("0.0.0.0", 10256), Answers)
threading.Thread(target=health.serve_forever, daemon=True).start()
metrics = http.server.HTTPServer(("127.0.0.1", 10249), Answers)
(place / "words").write_text(json.dumps(sys.argv[1:]))
metrics.serve_forever()
"""


def _program(place: Path, text: str) -> Path:
    file = place / "kube-proxy"
    file.write_text(text)
    file.chmod(0o755)
    return file


def test_a_kube_proxy_is_started_awaited_and_ended(lab: Lab, tmp_path: Path) -> None:
    """Healthy is not enough: it is ready when it has written rules of IPv4."""
    binary = _program(tmp_path, _FAKE.format(python=sys.executable))
    node, log, url = lab.nodes[0], tmp_path / "log", "http://192.168.50.100:6443"
    with ExitStack() as stack:
        made = stack.enter_context(KubeProxy(node, binary, url, "nftables", _PODS, log))
        wait((tmp_path / "words").exists, "kube-proxy runs")
        with pytest.raises(TooSlow, match="not ready within"):
            made.ready(limit=0.2)
        (tmp_path / "synced").touch()
        assert made.ready() > 0
    words = json.loads((tmp_path / "words").read_text())
    assert {
        "--proxy-mode=nftables",
        f"--cluster-cidr={_PODS}",
        "--hostname-override=node-1",
        "--kube-api-content-type=application/json",
    } < set(words)
    (kubeconfig,) = (word.partition("=")[2] for word in words if word.startswith("--kubeconfig="))
    assert url in Path(kubeconfig).read_text()
    with pytest.raises(ConnectionRefusedError):
        ask(node, "127.0.0.1", 10256)


def test_a_kube_proxy_that_ends_says_why(lab: Lab, tmp_path: Path) -> None:
    """The last line of its log, in one error; and what is no program is not started."""
    binary = _program(tmp_path, "#!/bin/sh\necho no such mode >&2\nexit 1\n")
    given, log = tmp_path / "kubeconfig", tmp_path / "log"
    with (
        KubeProxy(lab.nodes[0], binary, given, "ipvs", _PODS, log) as made,
        pytest.raises(RivalFailed, match="ended: no such mode"),
    ):
        made.ready()
    with pytest.raises(RivalFailed, match="no program"):
        KubeProxy(lab.nodes[0], given, given, "ipvs", _PODS, log)
