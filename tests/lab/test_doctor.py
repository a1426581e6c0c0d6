"""The doctor on real nodes: its findings, that it changes nothing, and when it refuses."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Thread
from typing import Any

import pytest

from bpfsvc.base.errors import SystemUnfit
from bpfsvc.datapath import loaded
from bpfsvc.datapath.loader import probe
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.doctor.agent_checks import refuse_beside_others
from bpfsvc.http.service_health import response
from tests.lab import kubeproxy
from tests.lab.testbed import WEB, Testbed, built_testbed, objects

pytestmark = pytest.mark.slow

RESERVED = "net.ipv4.ip_local_reserved_ports"


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """Two nodes without agents. Tests must not change the first one."""
    with built_testbed(layout="routed") as made:
        made.cluster.put("services", *objects(WEB, made.lab.pods))
        yield made


def examine(testbed: Testbed, *options: str, fit: bool = True, **more: Any) -> dict[str, list[Any]]:
    """Run the doctor on the first node; return the findings that are not ok, by subject."""
    node = testbed.node
    words = ["doctor", "-o", "json", "--cgroup-root", str(node.cgroup), *options]
    done = testbed.cluster.command(node, *words, **more)
    assert (done.returncode, done.stderr) == (0 if fit else 1, "")
    findings: dict[str, list[Any]] = {}
    for finding in json.loads(done.stdout)["findings"]:
        if finding["level"] != "ok":
            findings.setdefault(finding["subject"], []).append(finding)
    return findings


def traces(node: LabNode) -> dict[str, object]:
    """Return all state that a command could change."""
    return {
        "rules": kubeproxy.rules(node),
        "qdiscs": node.run(["tc", "qdisc", "show"]).stdout,
        "pins": sorted(map(str, node.pin_root.rglob("*"))),
        "cgroup": node.run(["bpftool", "cgroup", "show", str(node.cgroup)]).stdout,
        "reserved": node.sysctl(RESERVED),
    }


def test_a_fit_node_is_reported_fit_and_nothing_is_changed(testbed: Testbed) -> None:
    """Only notes: the lab's cgroups are below the machine's, no API server is configured."""
    before = traces(testbed.node)
    findings = examine(testbed)
    assert {
        subject: [finding["level"] for finding in every] for subject, every in findings.items()
    } == {
        "cgroup": ["warning"],
        "api server": ["note"],
    }
    assert traces(testbed.node) == before


def test_the_table_has_the_findings_and_what_to_do(testbed: Testbed) -> None:
    """The table for users contains the hints."""
    done = testbed.cluster.command(testbed.node, "doctor", "--cgroup-root", "none")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    levels = [line.split()[0] for line in lines if not line.startswith(" ")]
    assert levels == sorted(levels, key=("warning", "note", "ok").index)
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("note    cgroup:") for line in lines)
    assert any(" -> " in line for line in lines)


def test_ports_that_clash_make_a_node_unfit(testbed: Testbed) -> None:
    """The finding has the agent's error message."""
    findings = examine(testbed, "--masquerade-ports", "40000-41000", fit=False)
    assert findings["ports"][0]["level"] == "refuse"
    assert "40000-41000 overlaps" in findings["ports"][0]["finding"]


def test_rules_left_by_kube_proxy_are_reported(testbed: Testbed) -> None:
    """It also reports that these rules accept packets that a FORWARD policy drops."""
    node = testbed.node
    kubeproxy.write(node, "iptables-nft", {WEB.vip(4): "10.244.1.11"})
    node.run(["iptables-nft", "-P", "FORWARD", "DROP"])
    try:
        findings = examine(testbed, "--master", f"http://{WEB.vip(4)}:80")
    finally:
        node.run(["iptables-nft", "-P", "FORWARD", "ACCEPT"])
        assert testbed.cluster.command(node, "cleanup", "--kube-proxy", "--yes").returncode == 0
        assert testbed.cluster.command(node, "cleanup", "--kube-proxy", "--release").returncode == 0
    assert "iptables (nft), IPv4, table nat: 7 chains" in str(findings["kube-proxy"])
    assert any("KUBE-FORWARD" in finding["finding"] for finding in findings["kube-proxy"])
    assert "iptables-nft -w -A FORWARD" in findings["forwarding"][0]["hint"]
    assert "is the address of a Service" in findings["api server"][0]["finding"]


def test_an_api_server_is_tried(testbed: Testbed) -> None:
    """The doctor only opens a connection; the answer does not matter."""
    node = testbed.node
    with node.socket(socket.AF_INET) as server:
        server.bind((node.address(), 6443))
        server.listen()
        findings = examine(testbed, "--master", f"https://{node.address()}:6443")
    assert "api server" not in findings
    findings = examine(testbed, "--master", f"https://{node.address()}:6443")
    assert "Connection refused" in findings["api server"][0]["finding"]


def test_a_foreign_filter_is_reported(testbed: Testbed) -> None:
    """Behind our tcx links it is a note, in front of our filters a warning."""
    node, device = testbed.node, testbed.pod.host_interface
    node.run(["tc", "qdisc", "add", "dev", device, "clsact"])
    try:
        match = ["ingress", "prio", "1", "protocol", "ip", "u32", "match", "u32", "0", "0"]
        node.run(["tc", "filter", "add", "dev", device, *match, "flowid", "1:1"])
        behind = examine(testbed)["programs"]
        before = examine(testbed, "--attach", "clsact")["programs"]
    finally:
        node.run(["tc", "qdisc", "del", "dev", device, "clsact"])
    assert [finding["level"] for finding in behind] == ["note"]
    assert [finding["level"] for finding in before] == ["warning"]
    assert f"{device} ingress" in before[0]["finding"]
    assert "u32" in before[0]["finding"]


def test_beside_another_service_implementation_the_agent_does_not_start(testbed: Testbed) -> None:
    """The doctor reports an error, and so does the agent's own check at its start."""
    node, device = testbed.node, "bpfin.cali"
    node.run(["ip", "link", "add", device, "type", "bridge"])
    try:
        findings = examine(testbed, fit=False)
        with (
            node.entered(),
            pytest.raises(SystemUnfit, match="implements Services on this node already"),
        ):
            refuse_beside_others(node.pin_root)
    finally:
        node.run(["ip", "link", "del", device])
    assert findings["others"][0]["level"] == "refuse"
    with node.entered():
        refuse_beside_others(node.pin_root)


def test_an_agent_with_other_pins_is_another_agent(testbed: Testbed) -> None:
    """It is recognised by the maps of its programs; an agent's own programs allow a restart."""
    node, cluster = testbed.node, testbed.cluster
    cluster.start(node)
    try:
        assert "others" not in examine(testbed)
        with node.entered():
            refuse_beside_others(node.pin_root)
            with pytest.raises(SystemUnfit, match="another bpfsvc"):
                refuse_beside_others(node.pin_root.parent / "elsewhere")
    finally:
        cluster.stop(node)
        assert cluster.command(node, "cleanup").returncode == 0
        node.pin_root.mkdir(exist_ok=True)


def test_only_ports_that_programs_use_are_named(testbed: Testbed) -> None:
    """Not ports of closed connections, nor ports where a Service's health is asked for."""
    node = testbed.node
    with ExitStack() as stack:
        used, health = (stack.enter_context(_server(node, port)) for port in (31901, 31902))
        host = used.getsockname()[0]
        for port in (11901, 31903):
            with node.socket(socket.AF_INET) as client:
                client.bind((host, port))
                client.connect((host, 31901))  # and closed at once: it waits, and nobody has it
            used.accept()[0].close()
        answering = Thread(target=_answer_once, args=(health,))
        answering.start()
        findings = [finding["finding"] for finding in examine(testbed)["ports"]]
        answering.join()
    assert not any("masquerade" in finding for finding in findings)
    (nodeports,) = (finding for finding in findings if "NodePort range" in finding)
    assert nodeports.startswith("programs of this node use ports of the NodePort range: tcp 31901;")


@contextmanager
def _server(node: LabNode, port: int) -> Iterator[socket.socket]:
    with node.socket(socket.AF_INET) as opened:
        opened.bind((str(node.addresses[4]), port))
        opened.listen()
        yield opened


def _answer_once(server: socket.socket) -> None:
    """Answer as kube-proxy does at a healthCheckNodePort."""
    client, _ = server.accept()
    with client:
        client.recv(4096)
        client.sendall(response(("prod", "web"), 1, healthy=True))


def test_without_rights_the_doctor_still_checks(testbed: Testbed) -> None:
    """Without root, the missing rights are a finding like any other."""
    findings = examine(
        testbed, fit=False, before=["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    )
    assert "this process lacks" in findings["privileges"][0]["finding"]


def test_the_kernel_has_all_features_that_are_probed(testbed: Testbed) -> None:
    """The probes use the numbers of the kernel's interface: none may fail on a kernel that runs the
    agent.
    """
    del testbed
    assert probe.missing() == ()


def test_loaded_programs_are_found_by_name(testbed: Testbed) -> None:
    """Programs are found as long as an agent runs somewhere on the kernel."""
    node, cluster = testbed.lab.nodes[1], testbed.cluster
    cluster.start(node)
    names = loaded.program_names()
    maps = loaded.map_names()
    cluster.stop(node)
    assert names is not None
    assert maps is not None
    assert {"bpfsvc_ingress", "bpfsvc_egress", "bpfsvc_connect4"} <= names
    assert "bpfsvc_frontend" in maps
