"""Configuration files: as kubeadm writes them, defaults, effects, and what is ignored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from bpfsvc.base.address import pack
from bpfsvc.base.errors import UsageError
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.base.ports import PortRange
from bpfsvc.cli.main import main
from bpfsvc.cli.run import run
from bpfsvc.config.config import Lifetimes
from bpfsvc.config.local_detector import LocalDetector
from tests.config.settings import (
    DEFAULTS,
    HEAD,
    KUBEADM,
    OWN_HEAD,
    config,
    conntrack,
    of_fields,
    of_flags,
    of_text,
)


def test_the_file_of_kubeadm_gives_an_agent_with_the_defaults_of_kube_proxy() -> None:
    documents = of_text(KUBEADM)
    assert documents.warnings == ()
    assert [note.partition(":")[0] for note in documents.notes] == [
        'mode is "", which is iptables to kube-proxy before 1.40; the release of the API server'
        " is not known",
        "nodePortAddresses is not set",
    ]
    assert replace(config(documents), document={}) == replace(
        DEFAULTS,
        mode="iptables",
        nodeport_addresses=(),
        kubeconfig=Path("/var/lib/kube-proxy/kubeconfig.conf"),
        detection=LocalDetector(cluster_cidrs=("10.244.0.0/16",)),
    )


def test_the_effective_document_has_kube_proxys_defaults_under_its_names() -> None:
    document: Any = config(of_text(KUBEADM)).document
    assert set(document) == {"kubeproxy.config.k8s.io", "bpfsvc.io"}
    block = document["kubeproxy.config.k8s.io"]
    assert block["apiVersion"] == "kubeproxy.config.k8s.io/v1alpha1"
    assert block["kind"] == "KubeProxyConfiguration"
    assert block["bindAddress"] == "0.0.0.0"
    assert block["clientConnection"] == {
        "kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf",
        "acceptContentTypes": "",
        "contentType": "application/vnd.kubernetes.protobuf",
        "qps": 5.0,
        "burst": 10,
    }
    assert block["configSyncPeriod"] == "15m0s"
    assert block["conntrack"] == {
        "maxPerCore": 32768,
        "min": 131072,
        "tcpEstablishedTimeout": "24h0m0s",
        "tcpCloseWaitTimeout": "1h0m0s",
        "tcpBeLiberal": False,
        "udpTimeout": "0s",
        "udpStreamTimeout": "0s",
    }
    assert block["iptables"] == {
        "localhostNodePorts": True,
        "masqueradeAll": False,
        "masqueradeBit": 14,
        "syncPeriod": "30s",
        "minSyncPeriod": "1s",
    }
    assert block["ipvs"]["syncPeriod"] == "30s"
    assert block["ipvs"]["minSyncPeriod"] == "0s"
    assert block["ipvs"]["scheduler"] == "rr"
    assert block["detectLocalMode"] == "ClusterCIDR"
    assert block["oomScoreAdj"] == -999
    assert document["bpfsvc.io"]["kind"] == "BpfsvcConfiguration"
    assert document["bpfsvc.io"]["mapSizes"]["frontends"] == Sizes().max_frontends


EFFECTS = {
    "mode iptables answers NodePorts everywhere": (
        "mode: iptables",
        {"mode": "iptables", "nodeport_addresses": ()},
    ),
    "mode ipvs too": ("mode: ipvs", {"mode": "ipvs", "nodeport_addresses": ()}),
    "mode nftables does on the primary address": (
        "mode: nftables",
        {"mode": "nftables", "nodeport_addresses": ("primary",)},
    ),
    "without a mode it is nftables": ("mode:", {"mode": "nftables"}),
    "an empty mode is iptables as for kube-proxy": (
        "mode: ''",
        {"mode": "iptables", "nodeport_addresses": ()},
    ),
    "nodePortAddresses counts with an empty mode too": (
        "mode: ''\nnodePortAddresses: [primary]",
        {"mode": "iptables", "nodeport_addresses": ("primary",)},
    ),
    "a list of ranges holds in any mode": (
        "mode: nftables\nnodePortAddresses: [10.0.0.0/8, 'fd00::/8']",
        {"nodeport_addresses": ("10.0.0.0/8", "fd00::/8")},
    ),
    "keywords and CIDRs may be mixed": (
        "nodePortAddresses: [primary, localhost, 10.0.0.0/8, all]",
        {"nodeport_addresses": ("primary", "localhost", "10.0.0.0/8", "all")},
    ),
    "masqueradeAll of the block of another mode does not count": (
        "mode: nftables\niptables: {masqueradeAll: true}",
        {"masquerade_all": False},
    ),
    "mode ipvs takes masqueradeAll from iptables": (
        "mode: ipvs\niptables: {masqueradeAll: true}",
        {"masquerade_all": True},
    ),
    "without a mode the iptables block was meant": (
        "iptables: {masqueradeAll: true, syncPeriod: 10s}",
        {"masquerade_all": True, "sync_seconds": 10},
    ),
    "without a mode the nftables block comes first": (
        "iptables: {syncPeriod: 10s}\nnftables: {syncPeriod: 20s}",
        {"sync_seconds": 20},
    ),
    "the sync period is that of the mode": (
        "mode: ipvs\nipvs: {syncPeriod: 1m30s}\niptables: {syncPeriod: 10s}",
        {"sync_seconds": 90},
    ),
    "localhost NodePorts can be turned off": (
        "iptables: {localhostNodePorts: false}",
        {"localhost_nodeports": False},
    ),
    "the defaults of an IPv6 node are IPv6": (
        "bindAddress: '::'",
        {"healthz": ("::", 10256), "metrics": ("::1", 10249), "address_override": ()},
    ),
    "a bind address is the node's own": (
        "bindAddress: 192.0.2.7",
        {"address_override": (pack("192.0.2.7"),), "healthz": ("0.0.0.0", 10256)},
    ),
    "a port is appended": (
        "healthzBindAddress: 127.0.0.1\nmetricsBindAddress: '::1'",
        {"healthz": ("127.0.0.1", 10256), "metrics": ("::1", 10249)},
    ),
    "a port is kept": (
        "healthzBindAddress: 127.0.0.1:1\nmetricsBindAddress: '[::]:2'",
        {"healthz": ("127.0.0.1", 1), "metrics": ("::", 2)},
    ),
    "ranges of both families": (
        "clusterCIDR: 10.0.0.0/8, fd00::/8",
        {"detection": LocalDetector(cluster_cidrs=("10.0.0.0/8", "fd00::/8"))},
    ),
    "detection by a bridge": (
        "detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cbr0}",
        {"detection": LocalDetector(mode="BridgeInterface", bridge="cbr0")},
    ),
    "detection by the names of interfaces": (
        "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}",
        {"detection": LocalDetector(mode="InterfaceNamePrefix", prefix="veth")},
    ),
    "external IPs can be turned off": (
        "featureGates: {AllowServiceExternalIPs: false}",
        {"allow_external_ips": False},
    ),
    "times of conntrack are ours too": (
        "conntrack: {tcpEstablishedTimeout: 2h, tcpCloseWaitTimeout: 10m, udpTimeout: 30s}",
        {
            "conntrack": conntrack(tcp_established=7200, tcp_close_wait=600, udp=30),
            "lifetimes": Lifetimes(tcp_established=7200, tcp_half_closed=600, udp=30),
        },
    ),
    "udpStreamTimeout comes before udpTimeout": (
        "conntrack: {udpTimeout: 30s, udpStreamTimeout: 3m}",
        {"conntrack": conntrack(udp=30, udp_stream=180), "lifetimes": Lifetimes(udp=180)},
    ),
    "zero leaves netfilter's as it is, and ours at its default": (
        "conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}",
        {
            "conntrack": conntrack(max_per_core=0, min=0, tcp_established=0, tcp_close_wait=0),
            "lifetimes": Lifetimes(),
        },
    ),
    "an oomScoreAdj of zero is one": ("oomScoreAdj: 0", {"oom_score_adj": 0}),
    "profiling and failing hard": (
        "enableProfiling: true\nbindAddressHardFail: true",
        {"profiling": True, "bind_address_hard_fail": True},
    ),
    "JSON is YAML": ('conntrack: {"min": 5}', {"conntrack": conntrack(min=5)}),
}


@pytest.mark.parametrize(("fields", "expected"), EFFECTS.values(), ids=EFFECTS.keys())
def test_a_field_has_the_effect_it_has_in_kube_proxy(
    fields: str, expected: dict[str, object]
) -> None:
    settings = config(of_fields(fields))
    assert {name: getattr(settings, name) for name in expected} == expected


def test_settings_of_bpfsvc_are_in_a_second_document() -> None:
    documents = of_text(
        KUBEADM
        + OWN_HEAD
        + "devices: [eth*, '!eth9']\nattach: clsact\ntcPriority: 7\ncgroupRoot: none\n"
        "pinRoot: /sys/fs/bpf/other\nmasqueradePorts: 5000-5999\n"
        "serviceNodePortRange: 20000-22767\nsourceRangesForAll: true\n"
        "mapSizes: {frontends: 7, backendSlots: 8}\nlastGood: none\n"
    )
    agent = config(documents)
    assert agent.devices == ("eth*", "!eth9")
    assert agent.attach == "clsact"
    assert agent.tc_priority == 7
    assert documents.bpfsvc.cgroup_root == "none"
    assert agent.pin_root == Path("/sys/fs/bpf/other")
    assert agent.masquerade_ports == PortRange(5000, 5999)
    assert agent.node_ports == PortRange(20000, 22767)
    assert agent.source_ranges_for_all
    assert agent.sizes == Sizes(max_frontends=7, max_backend_slots=8)
    assert agent.last_good is None


def test_a_directory_of_manifests_needs_no_snapshot() -> None:
    agent = config(of_text(OWN_HEAD + "manifests: /etc/services\n"))
    assert agent.manifests == Path("/etc/services")
    assert agent.last_good is None


def test_unknown_and_repeated_fields_are_a_warning_each() -> None:
    documents = of_fields(
        "frob: 1\niptables:\n  syncPeriod: 5s\n  frib: {a: b}\n  syncPeriod: 7s\nmode: iptables\n"
    )
    assert documents.warnings == (
        "config.conf:3: frob: unknown field, ignored",
        "config.conf:6: iptables.frib: unknown field, ignored",
        "config.conf:7: iptables.syncPeriod: given twice, the last one counts",
    )
    assert config(documents).sync_seconds == 7


OTHER = {
    "YAML that is none": (HEAD + "mode: [\n", "config.conf:3: "),
    "a tab": (HEAD + "iptables:\n\tsyncPeriod: 1s\n", "config.conf:4: "),
    "another kind": (
        "apiVersion: v1\nkind: ConfigMap\n",
        "config.conf:2: apiVersion 'v1', kind 'ConfigMap' is not"
        " kubeproxy.config.k8s.io/v1alpha1 KubeProxyConfiguration",
    ),
    "another version": (
        HEAD.replace("v1alpha1", "v1"),
        "config.conf:2: apiVersion 'kubeproxy.config.k8s.io/v1', kind 'KubeProxyConfiguration'",
    ),
    "no kind": ("mode: ''\n", "config.conf:1: a document without apiVersion and kind is not"),
    "a list": ("- mode\n", "config.conf:1: not an object"),
    "nothing": ("# soon\n", "config.conf: no settings in it"),
    "two of a kind": (KUBEADM + "---\n" + HEAD, "a second KubeProxyConfiguration"),
    "not text": ("\x00", "config.conf:1: "),
    "an unknown field of our own": (HEAD + OWN_HEAD + "frob: 1\n", "config.conf:6: frob: unknown"),
    "an unknown map": (
        HEAD + OWN_HEAD + "mapSizes: {frob: 1}\n",
        "config.conf:6: mapSizes.frob: unknown field",
    ),
    "our own field twice": (
        HEAD + OWN_HEAD + "attach: tcx\nattach: tcx\n",
        "config.conf:7: attach: given twice",
    ),
}


@pytest.mark.parametrize(("text", "named"), OTHER.values(), ids=OTHER.keys())
def test_another_file_is_refused_with_its_line(text: str, named: str) -> None:
    with pytest.raises(UsageError) as error:
        of_text(text)
    assert error.value.message.startswith(named) or named in error.value.message
    assert error.value.hint


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="cannot read /no/such/file: No such file"):
        of_flags("--config", "/no/such/file")


NOTES = {
    "what needs a mark": ("iptables: {masqueradeBit: 15}", "iptables.masqueradeBit (packets"),
    "the scheduler of ipvs": ("ipvs: {scheduler: lc}", "ipvs.scheduler (it counts in mode"),
    "waiting between syncs": ("nftables: {minSyncPeriod: 2s}", "nftables.minSyncPeriod (changes"),
    "what is for Windows": ("winkernel: {enableDSR: true}", "winkernel (it is for Windows)"),
    "how to ask the API server": ("clientConnection: {qps: 50}", "clientConnection.qps (the agent"),
    "feature gates": ("featureGates: {Frob: true}", "featureGates.Frob (bpfsvc has no"),
    "the gate of NodePorts on loopback": (
        "featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}",
        "featureGates.KubeProxyNFTablesLocalhostNodePorts (NodePorts answer on loopback where",
    ),
    "options of logging": ("logging: {options: {text: {splitStream: true}}}", "logging.options ("),
    "ports": ("portRange: 1-2", "portRange (kube-proxy ignores it too)"),
}


@pytest.mark.parametrize(("fields", "named"), NOTES.values(), ids=NOTES.keys())
def test_a_field_without_effect_is_named_once_with_the_reason(fields: str, named: str) -> None:
    (note,) = of_fields(fields).notes
    assert note.startswith(f"without effect here: {named}")


def test_everything_without_effect_is_one_note() -> None:
    documents = of_fields("portRange: 1-2\nipvs: {scheduler: lc, strictARP: true}\n")
    (note,) = documents.notes
    assert "portRange" in note
    assert "ipvs.scheduler" in note
    assert "ipvs.strictARP" in note


def test_node_ports_that_answer_in_more_places_than_it_seems_are_noted() -> None:
    assert of_fields("mode: iptables").notes == (
        "nodePortAddresses is not set: NodePorts answer on all addresses of this node"
        " ('primary' limits them to its primary ones)",
    )
    assert of_fields("nodePortAddresses: [10.0.0.0/8]").notes == (
        "nodePortAddresses has IPv4 ranges only: NodePorts answer on all IPv6 addresses of this"
        " node",
    )


@pytest.mark.parametrize(
    "text",
    [
        KUBEADM,
        HEAD + "mode: ipvs\niptables: {masqueradeAll: true}\nipvs: {syncPeriod: 90s}\n",
        HEAD + "iptables: {masqueradeAll: true, syncPeriod: 10s}\nbindAddress: '::'\n",
        HEAD + "conntrack: {min: 0, udpTimeout: 1.5s}\nlogging: {verbosity: 4}\n"
        "featureGates: {AllowServiceExternalIPs: false}\nnodePortAddresses: [10.0.0.0/8]\n"
        + OWN_HEAD
        + "devices: [eth*]\nmapSizes: {services: 5}\n",
    ],
    ids=["of kubeadm", "ipvs", "no mode", "with our own"],
)
def test_a_written_configuration_means_the_same_when_it_is_read_again(
    text: str, tmp_path: Path
) -> None:
    before, written, again = tmp_path / "before", tmp_path / "written", tmp_path / "again"
    before.write_text(text)
    for source, target in ((before, written), (written, again)):
        arguments = ["run", "--config", str(source), "--write-config-to", str(target)]
        result = CliRunner().invoke(main, arguments)
        assert (result.exit_code, result.output) == (0, "")
    assert written.read_text() == again.read_text()
    first = next(iter(yaml.safe_load_all(written.read_text())))
    assert first["kind"] == "KubeProxyConfiguration"
    ours, theirs = (of_flags("--config", str(path)) for path in (before, written))
    assert ours.plain() == theirs.plain()


def test_every_field_and_every_flag_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    flags = {name for option in run.params for name in option.opts if option.name != "help"}
    prefixes = ("--conntrack-", "--ipvs-", "--log-text-", "--log-json-")
    missing = [flag for flag in flags if flag not in text and not flag.startswith(prefixes)]
    assert missing == []
    document = of_flags().plain()
    assert [name for name in _names(document["bpfsvc.io"]) if f"`{name}`" not in text] == []
    known = _names(document["kubeproxy.config.k8s.io"])
    assert [name for name in known if name not in text] == []


def test_the_example_of_the_documentation_is_valid() -> None:
    text = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    example = text.partition("```yaml\n")[2].partition("```")[0]
    documents = of_text(example)
    assert (documents.warnings, documents.notes) == ((), ())
    assert config(documents).sizes == Sizes(max_connections=2097152)


def _names(block: Any) -> set[str]:
    """Return the names of all fields, except those inside the block for Windows."""
    names = {name for name in block if name not in ("apiVersion", "kind", "mapSizes")}
    for name, value in block.items():
        if isinstance(value, dict) and name not in ("winkernel",):
            names |= {*value}
    return names
