"""Facts about nodes that do not exist, and what the doctor makes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bpfsvc.address import pack
from bpfsvc.datapath.netlink.devices import Device, DeviceAddress, Network
from bpfsvc.datapath.netlink.hooks import PRIORITY
from bpfsvc.datapath.sysctls import PortRange
from bpfsvc.doctor.examination import judge
from bpfsvc.doctor.facts import (
    ApiServer,
    Facts,
    Forwarding,
    Interface,
    Places,
    Policy,
    Ports,
    Proxy,
    System,
)
from bpfsvc.doctor.finding import Finding, Level
from bpfsvc.doctor.looking.api import is_service
from bpfsvc.doctor.looking.forwarding import dropping_chains
from bpfsvc.doctor.looking.others import gateway_of
from bpfsvc.doctor.looking.ports import read_sockets
from bpfsvc.doctor.sightings import Attached, Others
from bpfsvc.takeover.leftovers import Leftovers
from bpfsvc.takeover.programs import Flavour
from bpfsvc.takeover.rules import read_tables
from bpfsvc.takeover.running import KubeProxy

FIT = Facts(
    system=System(release="6.1.0-50-amd64"),
    places=Places(pin_root="/sys/fs/bpf/bpfsvc", cgroup="/sys/fs/cgroup"),
    others=Others(),
    proxy=Proxy(),
    ports=Ports(masquerade=PortRange(10000, 29999), node_ports=PortRange(30000, 32767)),
    forwarding=Forwarding(
        interfaces=(Interface("eth0", 1500), Interface("veth1", 1450, pods=True))
    ),
    api=ApiServer(server="https://192.168.50.1:6443", unreachable=""),
    attach="auto",
    priority=PRIORITY,
)


def changed(value: Any, changes: dict[str, Any]) -> Any:
    if isinstance(value, Others):
        return value._replace(**changes)
    return replace(value, **changes)


def findings(**changes: Any) -> list[Finding]:
    """Give what is not ok on a node that is fit but for these facts: field -> its own changes."""
    facts = replace(
        FIT, **{name: changed(getattr(FIT, name), more) for name, more in changes.items()}
    )
    return [each for each in judge(facts) if each.level is not Level.OK]


def test_a_node_that_is_fit_gets_nothing_but_ok() -> None:
    assert findings() == []
    assert {each.level for each in judge(FIT)} == {Level.OK}


REFUSALS = {
    "a kernel without a feature": {"system": {"missing": ("socket programs at connect4: x",)}},
    "no rights": {"system": {"unprivileged": "this process lacks CAP_NET_ADMIN", "missing": ()}},
    "no compiler": {"system": {"compiler": False}},
    "no bpf file system": {"places": {"bpffs": False}},
    "a bpf file system that is read only": {"places": {"pin_writable": False}},
    "no cgroup2": {"places": {"cgroup": "", "no_cgroup": "no cgroup2 file system is mounted"}},
    "sysctls that cannot be written": {"places": {"sysctls_writable": False}},
    "ports that clash": {"ports": {"clash": "--masquerade-ports 1-2 overlaps"}},
    "no way to the API server": {"api": {"trouble": "no way to the API server: mend it"}},
    "Calico's devices": {"others": {"devices": frozenset({"bpfin.cali"})}},
    "Calico's programs": {
        "others": {"attached": (Attached("eth0", "ingress", "tcx", "cali_tc_preambl"),)}
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
        "others": {"attached": (Attached("eth0", "ingress", "tcx", "ingress", bpfsvc=True),)}
    },
}


@pytest.mark.parametrize("changes", REFUSALS.values(), ids=REFUSALS.keys())
def test_the_doctor_refuses(changes: dict[str, Any]) -> None:
    refused = [each for each in findings(**changes) if each.level is Level.REFUSE]
    assert len(refused) == 1
    assert "\n" not in refused[0].text + refused[0].hint


WARNINGS = {
    "an old kernel": ({"system": {"release": "5.15.0-91-generic"}}, "older than 6.1"),
    "an interpreter": ({"system": {"jit": 0}}, "interpreted"),
    "a nested cgroup": ({"places": {"nested": True}}, "is not the root of its cgroup tree"),
    "Cilium beside kube-proxy": ({"others": {"devices": frozenset({"cilium_host"})}}, "Cilium"),
    "Antrea beside kube-proxy": ({"others": {"devices": frozenset({"antrea-gw0"})}}, "Antrea"),
    "a running kube-proxy": (
        {"proxy": {"running": KubeProxy(processes=(42,))}},
        "kube-proxy runs (process 42)",
    ),
    "a kube-proxy inside k3s": (
        {"proxy": {"running": KubeProxy(mode="iptables")}},
        "its metrics server says: mode iptables",
    ),
    "somebody at our health port": (
        {"ports": {"listening": frozenset({10256})}},
        "10256",
    ),
    "no forwarding": ({"forwarding": {"forwarded": ()}}, "IPv4 is not forwarded"),
    "a policy that drops": (
        {"forwarding": {"dropping": (Policy("the policy of FORWARD", 4, "iptables-nft"),)}},
        "kube-proxy's rules accepted",
    ),
    "an API server that is a Service": ({"api": {"is_service": True}}, "address of a Service"),
    "an API server that is away": ({"api": {"unreachable": "No route to host"}}, "No route"),
}


@pytest.mark.parametrize(("changes", "words"), WARNINGS.values(), ids=WARNINGS.keys())
def test_the_doctor_warns(changes: dict[str, Any], words: str) -> None:
    """Each is told once, with the way out, and does not make the node unfit."""
    found = findings(**changes)
    warned = [each for each in found if each.level is Level.WARNING]
    assert [words in each.text for each in warned] == [True]
    assert warned[0].hint
    assert not [each for each in found if each.level is Level.REFUSE]


NOTES = {
    "sockets left alone": ({"places": {"cgroup": ""}}, "sockets are not translated"),
    "a Cilium of another node of this machine": (
        {"others": {"loaded": frozenset({"cil_sock4_connec"})}},
        "elsewhere on this machine",
    ),
    "a process namespace of its own": (
        {"proxy": {"running": KubeProxy(sees_node=False)}},
        "cannot be seen",
    ),
    "leftovers": ({"proxy": {"leftovers": ("a", "b", "c", "d", "e")}}, "a; b; c; d and 1 more"),
    "what could not be looked at": ({"proxy": {"unseen": ("nft is not installed",)}}, "nft"),
    "a server among the NodePorts": ({"ports": {"listening": frozenset({31000})}}, "tcp 31000"),
    "a client among the masquerade ports": (
        {"ports": {"calling": frozenset({("udp", 10053)})}},
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
    "no API server": ({"api": {"server": ""}}, "none is named"),
    "an API server from the environment": ({"api": {"from_environment": True}}, "unless it was"),
}


@pytest.mark.parametrize(("changes", "words"), NOTES.values(), ids=NOTES.keys())
def test_the_doctor_notes(changes: dict[str, Any], words: str) -> None:
    found = findings(**changes)
    assert [(each.level, words in each.text) for each in found] == [(Level.NOTE, True)]


def test_without_rights_the_kernel_is_not_judged() -> None:
    """What could not be tried is not called missing."""
    found = findings(system={"unprivileged": "this process lacks CAP_SYS_ADMIN", "tcx": False})
    assert [each.subject for each in found] == ["privileges"]


def test_sysctls_need_not_be_written_if_the_ports_are_reserved() -> None:
    assert findings(places={"sysctls_writable": False}, ports={"reserved": True}) == []


def test_the_ports_of_our_own_agent_are_no_clash() -> None:
    listening = frozenset({10256, 10249})
    assert findings(proxy={"agent_runs": True}, ports={"listening": listening}) == []


# -- programs of others ----------------------------------------------------------------------------

AWS = Attached("eth0", "ingress", "clsact", "handle_ingress", priority=1)


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
            Attached("eth0", "egress", "tcx", "cil_to_netdev"),
            True,
            Level.WARNING,
            "Cilium",
            id="tcx",
        ),
        pytest.param(
            Attached("eth0", "xdp", "xdp", "xdp_cali_v4"), True, Level.WARNING, "Calico", id="XDP"
        ),
        pytest.param(
            Attached("eth0", "ingress", "clsact", "", "flower", 1),
            False,
            Level.WARNING,
            "clsact a flower without a name at priority 1",
            id="nobody known",
        ),
    ],
)
def test_programs_are_told_by_owner_and_place(
    attached: Attached, tcx: bool, level: Level, words: str
) -> None:
    found = findings(others={"attached": (attached,)}, system={"tcx": tcx})
    assert [(each.level, words in each.text) for each in found] == [(level, True)]
    assert f"eth0 {attached.hook}" in found[0].text


def test_one_program_on_many_interfaces_is_one_line() -> None:
    many = tuple(AWS._replace(interface=f"veth{number}") for number in range(10))
    found = findings(others={"attached": many})
    assert len(found) == 1
    assert found[0].text.endswith("veth3 ingress and 6 more")


# -- what is read ----------------------------------------------------------------------------------


def test_routes_tell_where_antrea_sends_services() -> None:
    routes = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "eth0\t00000000\t0132A8C0\t0003\t0\t0\t0\t00000000\n"
        "antrea-gw0\tFD00FEA9\t00000000\t0005\t0\t0\t0\tFFFFFFFF\n"
    )
    assert gateway_of(routes, "169.254.0.253") == "antrea-gw0"
    assert gateway_of(routes, "169.254.0.252") == ""


def test_servers_among_the_masquerade_ports_are_no_clash() -> None:
    """The kubelet's port is always there."""
    assert findings(ports={"listening": frozenset({10250})}) == []


def test_listening_sockets_are_told_from_connections() -> None:
    text = (
        "  sl  local_address rem_address   st tx_queue\n"
        "   0: 0100007F:2810 00000000:0000 0A 00000000:00000000\n"
        "   1: 0100007F:2710 0100007F:1F90 01 00000000:00000000\n"
    )
    assert list(read_sockets(text)) == [(10256, True), (10000, False)]


def test_chains_of_nftables_that_drop_are_found_but_iptables_own() -> None:
    """iptables' chains are looked at through iptables, which knows the way to add a rule."""
    listed = """{"nftables": [{"metainfo": {}},
        {"chain": {"family": "inet", "table": "fw", "name": "f", "hook": "forward",
            "policy": "drop"}},
        {"chain": {"family": "inet", "table": "fw", "name": "i", "hook": "input",
            "policy": "drop"}},
        {"chain": {"family": "ip6", "table": "fw", "name": "o", "hook": "forward",
            "policy": "accept"}},
        {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "hook": "forward",
            "policy": "drop"}},
        {"chain": {"family": "ip", "table": "fw", "name": "jump"}}]}"""
    assert list(dropping_chains(listed)) == [Policy("the policy of chain inet fw f", 0)]


NAT = """*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -m tcp --dport 443 -j KUBE-SVC-A
COMMIT
"""


def test_addresses_of_services_are_known_by_what_kube_proxy_left() -> None:
    """By its rules, its nftables tables, or its device."""
    address = DeviceAddress(pack("10.96.0.30"), 32, 0, True)
    network = Network((Device(9, "kube-ipvs0", "dummy", 0, True, 1, (address,)),), 0, 0)
    found = Leftovers(
        saved={Flavour("nft", 4, "", ""): read_tables(NAT)},
        nft_services="elements = { 10.96.0.20 . tcp . 443 : goto service-X }",
        hold=None,
        parts=(),
        unseen=(),
        remarks=(),
    )
    known = [one for one in range(40) if is_service(f"10.96.0.{one}", network, found)]
    assert known == [1, 20, 30]
    assert not is_service("api.example.org", network, found)
