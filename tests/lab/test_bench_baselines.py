"""Baselines really balance, by real sockets, in each mode of this kernel; and a kube-proxy runs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Network
from pathlib import Path
from typing import NamedTuple

import pytest

from bpfsvc.devtools.bench import baselines
from bpfsvc.devtools.bench.baselines import (
    BaselineFailed,
    BaselineService,
    Mode,
    NodeFacts,
    Step,
    TooSlow,
    all_rules,
    run_tools,
    write_rules,
)
from bpfsvc.devtools.bench.kube_proxy import RealKubeProxy
from bpfsvc.devtools.bench.testbeds.agents import cores
from bpfsvc.devtools.bench.testbeds.change import ChangeTestbed
from bpfsvc.devtools.lab.capture import Capture
from bpfsvc.devtools.lab.dial import Protocol, ask, tally
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.devtools.lab.topology import CLUSTER_CIDRS, Lab

pytestmark = pytest.mark.slow

_PODS = IPv4Network(CLUSTER_CIDRS[4])
_ALWAYS: tuple[Mode, ...] = ("iptables", "iptables-nft", "nftables")
"""What a kernel of the tests must have; ipvs it may lack."""

_WEB, _ECHO, _ALONE = "10.96.0.1", "10.96.0.2", "10.96.0.3"
_UNUSED = "10.96.0.4"


class Programmed(NamedTuple):
    """A lab whose nodes have all Services below in rules of a mode."""

    mode: str
    lab: Lab

    @property
    def names(self) -> list[str]:
        """The names of the pods: two on each node."""
        return [pod.name for pod in self.lab.pods]


@pytest.fixture(scope="module", params=_ALWAYS)
def programmed(request: pytest.FixtureRequest) -> Iterator[Programmed]:
    """A lab of every mode."""
    with Lab("routed", families=(4,)) as lab:
        lab.serve()
        addresses = [(pod.address(), 8080) for pod in lab.pods]
        both = (addresses[1], addresses[2])  # one on each node
        web = BaselineService("default/web:http", _WEB, 80, "tcp", 30080, both)
        echo = BaselineService("default/echo", _ECHO, 7, "udp", 30007, both)
        alone = BaselineService("default/alone", _ALONE, 80, "tcp", 0, (addresses[0],))
        services = [web, echo, alone]
        took = [write_rules(node, request.param, services, _PODS) for node in lab.nodes]
        assert all(0 < seconds < 60 for seconds in took)
        yield Programmed(request.param, lab)


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_pod_reaches_the_backends_on_both_nodes_as_itself(
    programmed: Programmed, protocol: Protocol
) -> None:
    """By cluster IP; the source is the pod's own."""
    pod = programmed.lab.pods[0]
    where = (_WEB, 80) if protocol == "tcp" else (_ECHO, 7)
    counts = tally(pod, *where, protocol, count=60)
    assert set(counts) == set(programmed.names[1:3])
    assert min(counts.values()) > 10
    assert ask(pod, *where, protocol).peer.startswith(f"{pod.address()}:")


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_node_port_answers_outside_with_the_source_masqueraded(
    programmed: Programmed, protocol: Protocol
) -> None:
    """On either node, whichever backend is taken."""
    port = 30080 if protocol == "tcp" else 30007
    for node in programmed.lab.nodes:
        answers = [ask(programmed.lab.client, node.address(), port, protocol) for _ in range(24)]
        assert {answer.pod for answer in answers} == set(programmed.names[1:3])
        assert all(answer.peer.startswith(f"{node.address()}:") for answer in answers)


def test_nftables_refuses_undefined_ports_and_drops_unassigned_addresses(
    programmed: Programmed,
) -> None:
    """A port that a cluster IP has not, and an address of the range that no Service has.

    With iptables both are sent to wherever the node's routes lead.
    """
    pod, node = programmed.lab.pods[0], programmed.lab.nodes[0]
    drops = programmed.mode == "nftables"
    with Capture(node, "eth0") as capture:
        patience = 2.0 if drops else 0.2
        assert tally(pod, _WEB, 81, count=1, timeout=patience) == {
            "refused" if drops else "timeout": 1
        }
        assert tally(pod, _UNUSED, 80, count=1, timeout=0.2) == {"timeout": 1}
    sent = [frame.data for frame in capture.frames() if frame.outgoing]
    left = {to for to in (_WEB, _UNUSED) if any(socket.inet_aton(to) in data for data in sent)}
    assert left == (set() if drops else {_WEB, _UNUSED})


def test_each_mode_is_reported_with_what_it_lacks_here() -> None:
    """Every kernel here has netfilter's; ipvs it has, or the sentence says what is missing."""
    obstacles = baselines.obstacles()
    assert list(obstacles) == list(baselines.MODES)
    assert [mode for mode in _ALWAYS if obstacles[mode]] == []
    assert (
        not obstacles["ipvs"] or "IPVS" in obstacles["ipvs"] or "apt install" in obstacles["ipvs"]
    )


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A lab of one node without pods."""
    with Lab("routed", families=(4,), nodes=1, pods_per_node=0) as made:
        yield made


def test_a_tool_that_fails_is_named_with_its_first_line(lab: Lab) -> None:
    """And none is run after it; neither is one that does not exist."""
    node = lab.nodes[0]
    failing = Step(("sh", "-s"), "echo one >&2; echo two >&2; exit 3")
    steps = [Step(("true",), ""), failing, Step(("sleep", "60"), "")]
    with pytest.raises(BaselineFailed, match=r"sh -s ended with 3: one$"):
        run_tools(node, "nftables", steps, stretched(5), 1)
    with pytest.raises(BaselineFailed, match=r"no-such-tool ended with 127: .*not found"):
        run_tools(node, "nftables", [Step(("no-such-tool",), "")], stretched(5), 1)


def test_only_the_client_and_the_backends_are_on_the_core_of_the_client() -> None:
    """As long as a testbed is open; afterwards all is as it was."""
    allowed = os.sched_getaffinity(0)
    core, _ = cores()
    with ChangeTestbed(1, "json"):
        assert os.sched_getaffinity(0) == (allowed - {core} or allowed)
    assert os.sched_getaffinity(0) == allowed


def test_programming_ends_at_its_limit(lab: Lab) -> None:
    """A time no tool can keep."""
    service = BaselineService("default/web", _WEB, 80, "tcp", 0, (("10.244.1.2", 80),))
    with pytest.raises(TooSlow, match="iptables-nft: 1 Service not programmed within"):
        write_rules(lab.nodes[0], "iptables-nft", [service], _PODS, limit=1e-6)


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


def _program(directory: Path, text: str) -> Path:
    file = directory / "kube-proxy"
    file.write_text(text)
    file.chmod(0o755)
    return file


def test_a_kube_proxy_is_started_awaited_and_ended(lab: Lab, tmp_path: Path) -> None:
    """Healthy is not enough: it is ready when it has written rules of IPv4."""
    binary = _program(tmp_path, _FAKE.format(python=sys.executable))
    node, log, url = lab.nodes[0], tmp_path / "log", "http://192.168.50.100:6443"
    with ExitStack() as stack:
        made = stack.enter_context(RealKubeProxy(node, binary, url, "nftables", _PODS, log))
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


def test_a_kube_proxy_that_ends_is_an_error_with_its_last_line(lab: Lab, tmp_path: Path) -> None:
    """The last line of its log, in one error; and what is no program is not started."""
    binary = _program(tmp_path, "#!/bin/sh\necho no such mode >&2\nexit 1\n")
    given, log = tmp_path / "kubeconfig", tmp_path / "log"
    with (
        RealKubeProxy(lab.nodes[0], binary, given, "ipvs", _PODS, log) as made,
        pytest.raises(BaselineFailed, match="ended: no such mode"),
    ):
        made.ready()
    with pytest.raises(BaselineFailed, match="no program"):
        RealKubeProxy(lab.nodes[0], given, given, "ipvs", _PODS, log)


def test_sets_and_rules_of_ipvs_are_taken_by_a_kernel_without_it(lab: Lab) -> None:
    """All but what makes ipvs itself."""
    if shutil.which("ipset") is None:
        assert "apt install" in baselines.obstacles()["ipvs"]
        return
    node = lab.nodes[0]
    facts = NodeFacts(node.address(4), IPv4Network(node.pod_cidrs[4]), _PODS)
    web = BaselineService("default/web", _WEB, 80, "tcp", 30080, (("10.244.2.2", 80),))
    steps = all_rules("ipvs", [web], facts)
    taken = [step for step in steps if step.command[0] not in ("ipvsadm", "ip")]
    assert run_tools(node, "ipvs", taken, stretched(5), 1) > 0
    assert "KUBE-LOOP-BACK" in node.run(["iptables-legacy-save", "-t", "nat"]).stdout
