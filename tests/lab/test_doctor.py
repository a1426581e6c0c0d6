"""The doctor on real nodes: what it finds, that it changes nothing, and when it refuses."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from bpfsvc.datapath import census, probe
from bpfsvc.doctor.beside import refuse_beside_others
from bpfsvc.errors import SystemUnfit
from bpfsvc.lab.node import Node
from tests.lab import kubeproxy
from tests.lab.scene import WEB, Scene, built, objects

RESERVED = "net.ipv4.ip_local_reserved_ports"


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """Two nodes without agents. Tests leave the first as it was."""
    with built(layout="routed") as made:
        made.cluster.put("services", *objects(WEB, made.lab.pods))
        yield made


def examine(scene: Scene, *options: str, fit: bool = True, **more: Any) -> dict[str, list[Any]]:
    """Ask the doctor about the first node; give what is not ok: subject -> findings."""
    node = scene.node
    words = ["doctor", "-o", "json", "--cgroup-root", str(node.cgroup), *options]
    done = scene.cluster.command(node, *words, **more)
    assert (done.returncode, done.stderr) == (0 if fit else 1, "")
    found: dict[str, list[Any]] = {}
    for each in json.loads(done.stdout)["findings"]:
        if each["level"] != "ok":
            found.setdefault(each["subject"], []).append(each)
    return found


def traces(node: Node) -> dict[str, object]:
    """Give what a command could have changed."""
    return {
        "rules": kubeproxy.rules(node),
        "qdiscs": node.run(["tc", "qdisc", "show"]).stdout,
        "pins": sorted(map(str, node.pin_root.rglob("*"))),
        "cgroup": node.run(["bpftool", "cgroup", "show", str(node.cgroup)]).stdout,
        "reserved": node.sysctl(RESERVED),
    }


def test_a_fit_node_is_told_so_and_nothing_is_changed(scene: Scene) -> None:
    """The lab's cgroups are below the machine's, and no API server is named: that is all."""
    before = traces(scene.node)
    found = examine(scene)
    assert {subject: [each["level"] for each in every] for subject, every in found.items()} == {
        "cgroup": ["warning"],
        "api server": ["note"],
    }
    assert traces(scene.node) == before


def test_a_line_for_each_finding(scene: Scene) -> None:
    """The table is for people; hints stand in it."""
    done = scene.cluster.command(scene.node, "doctor", "--cgroup-root", "none")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "note", "warning"}
    assert any(line.startswith("note    cgroup:") for line in lines)
    assert any(" -> " in line for line in lines)


def test_ports_that_clash_make_a_node_unfit(scene: Scene) -> None:
    """It says what the agent would say."""
    found = examine(scene, "--masquerade-ports", "40000-41000", fit=False)
    assert found["ports"][0]["level"] == "refuse"
    assert "40000-41000 overlaps" in found["ports"][0]["finding"]


def test_what_kube_proxy_left_is_told(scene: Scene) -> None:
    """And that its rules accepted what a policy drops."""
    node = scene.node
    kubeproxy.write(node, "iptables-nft", {WEB.vip(4): "10.244.1.11"})
    node.run(["iptables-nft", "-P", "FORWARD", "DROP"])
    try:
        found = examine(scene, "--master", f"http://{WEB.vip(4)}:80")
    finally:
        node.run(["iptables-nft", "-P", "FORWARD", "ACCEPT"])
        assert scene.cluster.command(node, "cleanup", "--kube-proxy", "--yes").returncode == 0
        assert scene.cluster.command(node, "cleanup", "--kube-proxy", "--release").returncode == 0
    assert "iptables (nft), IPv4, table nat: 7 chains" in str(found["kube-proxy"])
    assert any("KUBE-FORWARD" in each["finding"] for each in found["kube-proxy"])
    assert "iptables-nft -w -A FORWARD" in found["forwarding"][0]["hint"]
    assert "is the address of a Service" in found["api server"][0]["finding"]


def test_an_api_server_is_tried(scene: Scene) -> None:
    """A connection is enough; who answers does not matter."""
    node = scene.node
    with node.socket(socket.AF_INET) as server:
        server.bind((node.address(), 6443))
        server.listen()
        found = examine(scene, "--master", f"https://{node.address()}:6443")
    assert "api server" not in found
    found = examine(scene, "--master", f"https://{node.address()}:6443")
    assert "Connection refused" in found["api server"][0]["finding"]


def test_a_foreign_filter_is_told_of(scene: Scene) -> None:
    """Behind our tcx links it is a note, before our filters a warning."""
    node, device = scene.node, scene.pod.host_interface
    node.run(["tc", "qdisc", "add", "dev", device, "clsact"])
    try:
        match = ["ingress", "prio", "1", "protocol", "ip", "u32", "match", "u32", "0", "0"]
        node.run(["tc", "filter", "add", "dev", device, *match, "flowid", "1:1"])
        behind = examine(scene)["programs"]
        before = examine(scene, "--attach", "clsact")["programs"]
    finally:
        node.run(["tc", "qdisc", "del", "dev", device, "clsact"])
    assert [each["level"] for each in behind] == ["note"]
    assert [each["level"] for each in before] == ["warning"]
    assert f"{device} ingress" in before[0]["finding"]
    assert "u32" in before[0]["finding"]


@pytest.mark.parametrize("device", ["bpfin.cali", "ovn-k8s-mp0", "kube-dummy-if"])
def test_beside_another_that_does_services_nothing_starts(scene: Scene, device: str) -> None:
    """The doctor refuses, and so does what the agent asks at its start."""
    node = scene.node
    node.run(["ip", "link", "add", device, "type", "bridge"])
    try:
        found = examine(scene, fit=False)
        with node.entered(), pytest.raises(SystemUnfit, match="does Services on this node already"):
            refuse_beside_others(node.pin_root)
    finally:
        node.run(["ip", "link", "del", device])
    assert found["others"][0]["level"] == "refuse"
    with node.entered():
        refuse_beside_others(node.pin_root)


def test_another_agent_is_another(scene: Scene) -> None:
    """It is known by the maps of its programs; the own one is no reason to refuse a restart."""
    node, cluster = scene.node, scene.cluster
    cluster.start(node)
    try:
        assert "others" not in examine(scene)
        with node.entered():
            refuse_beside_others(node.pin_root)
            with pytest.raises(SystemUnfit, match="another bpfsvc"):
                refuse_beside_others(node.pin_root.parent / "elsewhere")
    finally:
        cluster.stop(node)
        assert cluster.command(node, "cleanup").returncode == 0
        node.pin_root.mkdir(exist_ok=True)


def test_without_rights_the_doctor_still_looks(scene: Scene) -> None:
    """A person who is not root is told what is missing, in the same form."""
    found = examine(scene, fit=False, before=["setpriv", "--bounding-set=-all", "--inh-caps=-all"])
    assert "this process lacks" in found["privileges"][0]["finding"]


def test_the_kernel_has_all_that_is_probed_for(scene: Scene) -> None:
    """The probes are made of the numbers of the kernel's interface: on a kernel that runs the agent
    none may fail.
    """
    del scene
    assert probe.missing() == ()


def test_loaded_programs_are_known_by_name(scene: Scene) -> None:
    """As long as an agent runs somewhere, its programs are."""
    node, cluster = scene.lab.nodes[1], scene.cluster
    cluster.start(node)
    names = census.program_names()
    maps = census.map_names()
    cluster.stop(node)
    assert names is not None
    assert maps is not None
    assert {"ingress", "egress", "connect4"} <= names
    assert "frontends" in maps
