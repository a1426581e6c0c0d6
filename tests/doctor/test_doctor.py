"""Facts about imaginary nodes, and the doctor's findings."""

from __future__ import annotations

from typing import Any

import pytest

from bpfsvc.base.attachment import PRIORITY
from bpfsvc.base.ports import PortRange
from bpfsvc.doctor.examination import check
from bpfsvc.doctor.facts import (
    ApiServerFacts,
    ChainPolicy,
    Facts,
    FileSystemFacts,
    ForeignProgram,
    ForwardingFacts,
    Interface,
    KubeProxyFacts,
    OthersFacts,
    PortFacts,
    SystemFacts,
)
from bpfsvc.doctor.finding import Finding, Level
from bpfsvc.migration.kube_proxy.running import KubeProxyProcess

FIT = Facts(
    system=SystemFacts(release="6.1.0-50-amd64"),
    file_systems=FileSystemFacts(pin_root="/sys/fs/bpf/bpfsvc", cgroup="/sys/fs/cgroup"),
    others=OthersFacts(),
    kube_proxy=KubeProxyFacts(),
    ports=PortFacts(masquerade=PortRange(10000, 29999), node_ports=PortRange(30000, 32767)),
    forwarding=ForwardingFacts(
        interfaces=(Interface("eth0", 1500), Interface("veth1", 1450, pods=True))
    ),
    api_server=ApiServerFacts(server="https://192.168.50.1:6443", unreachable=""),
    attach="auto",
    priority=PRIORITY,
)


def findings(**changes: Any) -> list[Finding]:
    """Return the findings that are not ok for a fit node with some changed facts, by field."""
    facts = FIT._replace(
        **{name: getattr(FIT, name)._replace(**more) for name, more in changes.items()}
    )
    return [finding for finding in check(facts) if finding.level is not Level.OK]


def test_a_fit_node_has_only_ok_findings() -> None:
    assert findings() == []
    assert {finding.level for finding in check(FIT)} == {Level.OK}


def test_no_compiler_is_needed_where_the_image_carries_the_programs() -> None:
    assert findings(system={"compiler": False, "shipped": True}) == []


REFUSALS = {
    "a kernel without a feature": {"system": {"missing": ("socket programs at connect4: x",)}},
    "no rights": {"system": {"unprivileged": "this process lacks CAP_NET_ADMIN", "missing": ()}},
    "no compiler": {"system": {"compiler": False}},
    "no compiler, and programs of another machine in the image": {
        "system": {"compiler": False, "unfit": "/programs/1.bytecode is of another machine"}
    },
    "no bpf file system": {"file_systems": {"bpffs": False}},
    "a bpf file system that is read only": {"file_systems": {"pin_writable": False}},
    "no cgroup2": {
        "file_systems": {"cgroup": "", "no_cgroup": "no cgroup2 file system is mounted"}
    },
    "sysctls that cannot be written": {"file_systems": {"sysctls_writable": False}},
    "ports that clash": {"ports": {"clash": "--masquerade-ports 1-2 overlaps"}},
    "no way to the API server": {"api_server": {"error": "no way to the API server: fix it"}},
    "Calico's devices": {"others": {"devices": frozenset({"bpfin.cali"})}},
    "Calico's programs": {
        "others": {"attached": (ForeignProgram("eth0", "ingress", "tcx", "cali_tc_preambl"),)}
    },
    "OVN-Kubernetes": {"others": {"devices": frozenset({"br-int", "ovn-k8s-mp0"})}},
    "kube-router's service proxy": {"others": {"devices": frozenset({"kube-dummy-if"})}},
    "Antrea with proxyAll": {
        "others": {"devices": frozenset({"antrea-gw0"}), "gateway": "antrea-gw0"}
    },
    "Cilium with socket programs": {
        "others": {"devices": frozenset({"cilium_host"}), "loaded": frozenset({"cil_sock4_connec"})}
    },
    "Cilium with NodePorts": {
        "others": {"devices": frozenset({"cilium_net"}), "loaded": frozenset({"cilium_nodeport"})}
    },
    "Cilium by its pins, where names cannot be seen": {
        "others": {
            "devices": frozenset({"cilium_net"}),
            "loaded": None,
            "pinned": frozenset({"tc/globals/cilium_nodeport_neigh4"}),
        }
    },
    "another bpfsvc": {
        "others": {"attached": (ForeignProgram("eth0", "ingress", "tcx", "ingress", bpfsvc=True),)}
    },
}


@pytest.mark.parametrize("changes", REFUSALS.values(), ids=REFUSALS.keys())
def test_the_doctor_refuses(changes: dict[str, Any]) -> None:
    refused = [finding for finding in findings(**changes) if finding.level is Level.REFUSE]
    assert len(refused) == 1
    assert "\n" not in refused[0].text + refused[0].hint


def test_the_doctor_tells_what_an_older_kernel_lacks_and_does_not_refuse_it() -> None:
    system = FIT.system._replace(
        release="5.10.0-46-amd64", without=("no tcx links (Linux 6.6): slower",)
    )
    told = list(check(FIT._replace(system=system)))
    assert {finding.level for finding in told} == {Level.OK}
    texts = [finding.text for finding in told]
    assert "no tcx links (Linux 6.6): slower" in texts
    assert any("5.10.0-46-amd64 lacks some features" in text for text in texts)


WARNINGS = {
    "a bpf file system that the DaemonSet mounts": (
        {"file_systems": {"bpffs": False, "mountable": True}},
        "is not in a bpf file system",
    ),
    "an old kernel": ({"system": {"release": "5.4.0-91-generic"}}, "older than 5.10"),
    "an interpreter": ({"system": {"jit": 0}}, "interpreted"),
    "a nested cgroup": ({"file_systems": {"nested": True}}, "is not the root of its cgroup tree"),
    "Cilium beside kube-proxy": ({"others": {"devices": frozenset({"cilium_host"})}}, "Cilium"),
    "Antrea beside kube-proxy": ({"others": {"devices": frozenset({"antrea-gw0"})}}, "Antrea"),
    "a running kube-proxy": (
        {"kube_proxy": {"running": KubeProxyProcess(processes=(42,))}},
        "kube-proxy runs (process 42)",
    ),
    "a kube-proxy inside k3s": (
        {"kube_proxy": {"running": KubeProxyProcess(mode="iptables")}},
        "its metrics server reports mode iptables",
    ),
    "another program at our health port": (
        {"ports": {"listening": frozenset({10256})}},
        "10256",
    ),
    "no forwarding": ({"forwarding": {"forwarded": ()}}, "IPv4 is not forwarded"),
    "a policy that drops": (
        {"forwarding": {"dropping": (ChainPolicy("the policy of FORWARD", 4, "iptables-nft"),)}},
        "kube-proxy's rules accepted",
    ),
    "an API server that is a Service": (
        {"api_server": {"is_service": True}},
        "address of a Service",
    ),
    "an API server that is away": ({"api_server": {"unreachable": "No route to host"}}, "No route"),
}


@pytest.mark.parametrize(("changes", "words"), WARNINGS.values(), ids=WARNINGS.keys())
def test_the_doctor_warns(changes: dict[str, Any], words: str) -> None:
    """Each is reported once, with the next step, and does not make the node unfit."""
    reported = findings(**changes)
    warned = [finding for finding in reported if finding.level is Level.WARNING]
    assert [words in finding.text for finding in warned] == [True]
    assert warned[0].hint
    assert not [finding for finding in reported if finding.level is Level.REFUSE]


NOTES = {
    "sockets left alone": ({"file_systems": {"cgroup": ""}}, "sockets are not translated"),
    "a Cilium of another node of this machine": (
        {"others": {"loaded": frozenset({"cil_sock4_connec"})}},
        "elsewhere on this machine",
    ),
    "a process namespace of its own": (
        {"kube_proxy": {"running": KubeProxyProcess(sees_node=False)}},
        "cannot be seen",
    ),
    "leftovers": (
        {"kube_proxy": {"leftovers": ("a", "b", "c", "d", "e")}},
        "a; b; c; d and 1 more",
    ),
    "what could not be looked at": ({"kube_proxy": {"unseen": ("nft is not installed",)}}, "nft"),
    "a server among the NodePorts": ({"ports": {"listening": frozenset({31000})}}, "tcp 31000"),
    "a listener at a cluster IP": (
        {"ports": {"at_cluster_ips": ("udp 10.96.0.10 port 53",)}},
        "udp 10.96.0.10 port 53",
    ),
    "a client among the masquerade ports": (
        {"ports": {"in_use": frozenset({("udp", 10053)})}},
        "udp 10053",
    ),
    "pods wider than the tunnel": (
        {
            "forwarding": {
                "interfaces": (
                    Interface("eth0", 1500),
                    Interface("flannel.1", 1450, tunnel=True),
                    Interface("veth1", 1500, pods=True),
                )
            }
        },
        "veth1: 1500",
    ),
    "a strict filter on a tunnel": (
        {"forwarding": {"interfaces": (Interface("flannel.1", 1450, rp_filter=1, tunnel=True),)}},
        "strict on the tunnel flannel.1",
    ),
    "no API server": ({"api_server": {"server": ""}}, "none is configured"),
    "an API server from the environment": (
        {"api_server": {"from_environment": True}},
        "unless it was",
    ),
}


@pytest.mark.parametrize(("changes", "words"), NOTES.values(), ids=NOTES.keys())
def test_the_doctor_notes(changes: dict[str, Any], words: str) -> None:
    reported = findings(**changes)
    assert [(finding.level, words in finding.text) for finding in reported] == [(Level.NOTE, True)]


def test_without_rights_the_kernel_is_not_checked() -> None:
    """Features that could not be tried are not reported as missing."""
    reported = findings(system={"unprivileged": "this process lacks CAP_SYS_ADMIN", "tcx": False})
    assert [finding.subject for finding in reported] == ["privileges"]


def test_sysctls_need_not_be_written_if_the_ports_are_reserved() -> None:
    assert findings(file_systems={"sysctls_writable": False}, ports={"reserved": True}) == []


def test_the_ports_of_our_own_agent_are_no_clash() -> None:
    listening = frozenset({10256, 10249})
    assert findings(kube_proxy={"agent_runs": True}, ports={"listening": listening}) == []


def test_servers_among_the_masquerade_ports_are_no_clash() -> None:
    """The kubelet's port is always there."""
    assert findings(ports={"listening": frozenset({10250})}) == []


def test_health_checks_of_services_are_no_programs_among_the_nodeports() -> None:
    listening = frozenset({31000, 31001})
    ours = {"listening": listening, "health_checks": listening}
    assert findings(ports=ours) == []
    (finding,) = findings(ports={**ours, "health_checks": frozenset({31001})})
    assert "tcp 31000;" in finding.text


def test_the_ports_of_a_kube_proxy_that_runs_are_no_finding_of_their_own() -> None:
    """Both programs answer there while both run."""
    reported = findings(
        kube_proxy={"running": KubeProxyProcess(processes=(7,))},
        ports={"listening": frozenset({10256, 10249})},
    )
    texts = [finding.text for finding in reported if finding.level is Level.WARNING]
    assert len(texts) == 1
    assert texts[0].startswith("kube-proxy runs (process 7)")


# -- other programs --------------------------------------------------------------------------------

AWS = ForeignProgram("eth0", "ingress", "clsact", "handle_ingress", priority=1)


@pytest.mark.parametrize(
    ("attached", "tcx", "level", "words"),
    [
        pytest.param(
            AWS, False, Level.WARNING, "AWS network policy agent", id="a filter before ours"
        ),
        pytest.param(AWS, True, Level.NOTE, "comes after bpfsvc", id="tcx comes before filters"),
        pytest.param(
            AWS._replace(priority=60000), False, Level.NOTE, "comes after", id="a filter behind"
        ),
        pytest.param(
            ForeignProgram("eth0", "egress", "tcx", "cil_to_netdev"),
            True,
            Level.WARNING,
            "Cilium",
            id="tcx",
        ),
        pytest.param(
            ForeignProgram("eth0", "xdp", "xdp", "xdp_cali_v4"),
            True,
            Level.WARNING,
            "Calico",
            id="XDP",
        ),
        pytest.param(
            ForeignProgram("eth0", "ingress", "clsact", "", "flower", 1),
            False,
            Level.WARNING,
            "clsact a flower without a name at priority 1",
            id="an unknown owner",
        ),
        pytest.param(
            ForeignProgram("lxc1", "ingress", "netkit", "cil_from_contai"),
            True,
            Level.WARNING,
            "Cilium: netkit bpf 'cil_from_contai' sees packets before bpfsvc",
            id="netkit's own hook for packets of a pod comes before ours",
        ),
        pytest.param(
            ForeignProgram("lxc1", "egress", "netkit", "cil_to_containe"),
            True,
            Level.NOTE,
            "Cilium: netkit bpf 'cil_to_containe' comes after bpfsvc",
            id="netkit's own hook for packets to a pod comes after ours",
        ),
    ],
)
def test_programs_are_reported_by_owner_and_place(
    attached: ForeignProgram, tcx: bool, level: Level, words: str
) -> None:
    reported = findings(others={"attached": (attached,)}, system={"tcx": tcx})
    assert [(finding.level, words in finding.text) for finding in reported] == [(level, True)]
    assert f"{attached.interface} {attached.hook}" in reported[0].text


def test_one_program_on_many_interfaces_is_one_line() -> None:
    many = tuple(AWS._replace(interface=f"veth{number}") for number in range(10))
    reported = findings(others={"attached": many})
    assert len(reported) == 1
    assert reported[0].text.endswith("veth3 ingress and 6 more")
