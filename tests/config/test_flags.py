"""The flags of ``bpfsvc run``: those of kube-proxy with its names, defaults and rules; our own."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bpfsvc.base.address import pack
from bpfsvc.base.errors import UsageError
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.base.ports import PortRange
from bpfsvc.cli import logs
from bpfsvc.cli.bpfsvc_flags import BPFSVC
from bpfsvc.cli.kubeproxy_flags import KUBE_PROXY
from bpfsvc.cli.main import main
from bpfsvc.cli.run import run
from bpfsvc.config.config import Lifetimes
from bpfsvc.config.local_detector import LocalDetector
from tests.config.settings import (
    DEFAULTS,
    KUBEADM,
    OWN_HEAD,
    config,
    conntrack,
    given,
    of_flags,
    of_text,
)

BOOL = ("", "=true", "=false")

FLAGS_OF_KUBE_PROXY = {
    "--bind-address": ("=192.0.2.1", " 2001:db8::1"),
    "--bind-address-hard-fail": BOOL,
    "--boot-id-file": ("=/proc/sys/kernel/random/boot_id",),
    "--cleanup": BOOL,
    "--cluster-cidr": ("=10.244.0.0/16", " 10.244.0.0/16,fd00::/48", "="),
    "--config": ("=/var/lib/kube-proxy/config.conf",),
    "--config-sync-period": ("=15m", " 1h0m0s"),
    "--conntrack-max-per-core": ("=0", " 32768"),
    "--conntrack-min": ("=0",),
    "--conntrack-tcp-be-liberal": BOOL,
    "--conntrack-tcp-timeout-close-wait": ("=1h", "=0"),
    "--conntrack-tcp-timeout-established": ("=24h0m0s",),
    "--conntrack-udp-timeout": ("=30s",),
    "--conntrack-udp-timeout-stream": ("=3m",),
    "--detect-local-mode": ("=NodeCIDR", "="),
    "--feature-gates": ("=A=true,B=false", " A=true"),
    "--healthz-bind-address": ("=0.0.0.0:10256", "=0.0.0.0", "="),
    "--healthz-port": ("=10256", "=0"),
    "--hostname-override": ("=node-1", "="),
    "--init-only": BOOL,
    "--iptables-localhost-nodeports": BOOL,
    "--iptables-masquerade-bit": ("=14",),
    "--iptables-min-sync-period": ("=1s", "=0"),
    "--iptables-sync-period": ("=30s",),
    "--ipvs-exclude-cidrs": ("=10.0.0.0/8,fd00::/8",),
    "--ipvs-min-sync-period": ("=0s",),
    "--ipvs-scheduler": ("=rr",),
    "--ipvs-strict-arp": BOOL,
    "--ipvs-sync-period": ("=30s",),
    "--ipvs-tcp-timeout": ("=0s",),
    "--ipvs-tcpfin-timeout": ("=0s",),
    "--ipvs-udp-timeout": ("=0s",),
    "--kube-api-burst": ("=10",),
    "--kube-api-content-type": ("=application/json",),
    "--kube-api-qps": ("=5", "=5.5"),
    "--kubeconfig": ("=/etc/kubernetes/kube-proxy.conf",),
    "--log-flush-frequency": ("=5s",),
    "--log-json-info-buffer-size": ("=0", " 64Ki"),
    "--log-json-split-stream": BOOL,
    "--log-text-info-buffer-size": ("=0",),
    "--log-text-split-stream": BOOL,
    "--logging-format": ("=json",),
    "--machine-id-file": ("=/etc/machine-id",),
    "--masquerade-all": BOOL,
    "--master": ("=https://192.0.2.1:6443",),
    "--metrics-bind-address": ("=0.0.0.0:10249", "=::", "="),
    "--metrics-port": ("=10249",),
    "--nodeport-addresses": ("=primary", "=10.0.0.0/8 --nodeport-addresses=192.168.0.0/16"),
    "--oom-score-adj": ("=-999", " -999"),
    "--pod-bridge-interface": ("=cbr0",),
    "--pod-interface-name-prefix": ("=veth",),
    "--profiling": BOOL,
    "--proxy-mode": ("=iptables", "=ipvs", "=nftables", "="),
    "--show-hidden-metrics-for-version": ("=1.35",),
    "--v": ("=2", " 2"),
    "-v": ("=2", " 2", "2"),
    "--vmodule": ("=proxier=4",),
    "--write-config-to": ("=/tmp/config.conf",),
}
"""Every flag that kube-proxy has on Linux, with values it may have; blanks separate arguments."""


@pytest.mark.parametrize(
    "words",
    [f"{flag}{tail}" for flag, tails in FLAGS_OF_KUBE_PROXY.items() for tail in tails],
)
def test_every_flag_of_kube_proxy_is_accepted_in_every_form(words: str) -> None:
    """The next flag is not read as its value."""
    made = run.make_context("run", [*words.split(" "), "--tc-priority=7"])
    assert made.params["tc_priority"] == 7


def test_kube_proxy_has_no_flag_that_is_not_listed_here() -> None:
    known = {option.flag for option in KUBE_PROXY} - {"--localhost-nodeports"}
    assert known <= set(FLAGS_OF_KUBE_PROXY)


@pytest.mark.parametrize("flag", ["--version", "--help", "-h"])
def test_flags_that_only_print_something_are_there_too(flag: str) -> None:
    result = CliRunner().invoke(main, ["run", flag])
    assert result.exit_code == 0
    assert result.output


def test_underscores_are_accepted_for_dashes() -> None:
    settings = config(of_flags("--cluster_cidr=10.0.0.0/8", "--masquerade_all"))
    assert settings.masquerade_all
    assert settings.detection.cluster_cidrs == ("10.0.0.0/8",)


def test_help_shows_every_flag_that_has_an_effect_and_no_other() -> None:
    shown = CliRunner().invoke(main, ["run", "--help"]).output
    for option in run.params:
        assert isinstance(option, click.Option)
        for name in (*option.opts, *option.secondary_opts):
            line = any(name in line.replace(",", " ").split() for line in shown.splitlines())
            assert line != option.hidden, name
        assert option.help


def test_without_flags_everything_has_the_defaults_of_kube_proxy() -> None:
    documents = of_flags()
    assert (documents.notes, documents.warnings) == ((), ())
    assert replace(config(documents), document={}) == DEFAULTS


def test_flags_and_the_fields_they_set_mean_the_same() -> None:
    flags = of_flags(
        "--proxy-mode=ipvs",
        "--kubeconfig=/etc/kubernetes/kube-proxy.conf",
        "--cluster-cidr=10.0.0.0/8,fd00::/8",
        "--nodeport-addresses=10.0.0.0/8",
        "--nodeport-addresses=fd00::/8,fd01::/16",
        "--masquerade-all",
        "--iptables-localhost-nodeports=false",
        "--iptables-sync-period=5s",
        "--ipvs-sync-period=7s",
        "--feature-gates=AllowServiceExternalIPs=false",
        "--conntrack-udp-timeout=30s",
        "--oom-score-adj=-5",
        "--bind-address=2001:db8::1",
        "--bind-address-hard-fail",
        "--profiling=true",
        "-v=5",
    )
    file = of_text(
        KUBEADM.replace("/var/lib/kube-proxy/kubeconfig.conf", "/etc/kubernetes/kube-proxy.conf")
        + "mode: ipvs\nclusterCIDR: 10.0.0.0/8,fd00::/8\n"
        "nodePortAddresses: [10.0.0.0/8, 'fd00::/8', 'fd01::/16']\n"
        "iptables: {masqueradeAll: true, localhostNodePorts: false, syncPeriod: 5s}\n"
        "nftables: {masqueradeAll: true, syncPeriod: 5s}\nipvs: {syncPeriod: 7s}\n"
        "featureGates: {AllowServiceExternalIPs: false}\nconntrack: {udpTimeout: 30s}\n"
        "oomScoreAdj: -5\nbindAddress: '2001:db8::1'\nbindAddressHardFail: true\n"
        "enableProfiling: true\nlogging: {verbosity: 5}\n"
    )
    assert flags.kubeproxy == file.kubeproxy
    settings = config(flags)
    assert settings.sync_seconds == 7
    assert settings.masquerade_all
    assert not settings.localhost_nodeports
    assert not settings.allow_external_ips
    assert settings.address_override == (pack("2001:db8::1"),)
    assert settings.healthz == ("::", 10256)
    assert settings.lifetimes == Lifetimes(udp=30)
    assert settings.conntrack == conntrack(udp=30)


def test_zero_is_a_value_in_a_flag() -> None:
    """In a file it is replaced by the default."""
    documents = of_flags("--iptables-min-sync-period=0")
    assert not documents.kubeproxy.nftables.min_sync_period
    assert str(of_text(KUBEADM).kubeproxy.nftables.min_sync_period) == "1s"


PLACES: dict[str, tuple[list[str], dict[str, tuple[str, int] | None]]] = {
    "an empty healthz address is nowhere": (["--healthz-bind-address="], {"healthz": None}),
    "an empty metrics address says nothing": (
        ["--metrics-bind-address="],
        {"metrics": ("127.0.0.1", 10249)},
    ),
    "port 0 of healthz is nowhere": (["--healthz-port=0"], {"healthz": None}),
    "a port counts where the address has none": (
        ["--healthz-bind-address=::1", "--healthz-port=5", "--metrics-port=6"],
        {"healthz": ("::1", 5), "metrics": ("127.0.0.1", 6)},
    ),
    "a port does not count where the address has one": (
        ["--metrics-bind-address=192.0.2.1:7", "--metrics-port=6"],
        {"metrics": ("192.0.2.1", 7)},
    ),
}


@pytest.mark.parametrize(("flags", "expected"), PLACES.values(), ids=PLACES.keys())
def test_where_to_serve(flags: list[str], expected: dict[str, tuple[str, int] | None]) -> None:
    settings = config(of_flags(*flags))
    assert {name: getattr(settings, name) for name in expected} == expected


def test_beside_a_file_kube_proxys_other_flags_are_ignored_and_named_once() -> None:
    documents = of_text(
        KUBEADM,
        "--cluster-cidr=192.168.0.0/16",
        "--masquerade-all",
        "--hostname-override=Node-7",
        "--master=https://192.0.2.1:6443",
        "-v=4",
        "--logging-format=json",
    )
    assert documents.notes[0] == "ignored beside --config: --cluster-cidr, --masquerade-all"
    assert "--" not in " ".join(documents.notes[1:])
    assert documents.master == "https://192.0.2.1:6443"
    assert documents.kubeproxy.hostname_override == "Node-7"
    assert (documents.kubeproxy.logging.verbosity, documents.kubeproxy.logging.format) == (
        4,
        "json",
    )
    agent = config(documents)
    assert agent.detection == LocalDetector(cluster_cidrs=("10.244.0.0/16",))
    assert not agent.masquerade_all


def test_the_flag_for_the_name_beats_the_file() -> None:
    text = KUBEADM.replace('hostnameOverride: ""', "hostnameOverride: theirs")
    assert of_text(text).kubeproxy.hostname_override == "theirs"
    assert of_text(text, "--hostname-override=mine").kubeproxy.hostname_override == "mine"
    assert of_text(text, "--hostname-override=").kubeproxy.hostname_override == "theirs"


def test_our_own_flags_beat_the_file() -> None:
    documents = of_text(
        KUBEADM + OWN_HEAD + "attach: tcx\ntcPriority: 9\nmapSizes: {services: 5, frontends: 6}\n",
        "--attach=clsact",
        "--max-services=7",
        "--devices=eth*,!eth9",
        "--masquerade-ports=5000-5999",
        "--source-ranges-for-all",
        "--manifests=/etc/services",
        "--last-good=none",
    )
    assert documents.notes == of_text(KUBEADM).notes
    agent = config(documents)
    assert (agent.attach, agent.tc_priority) == ("clsact", 9)
    assert agent.sizes == Sizes(max_services=7, max_frontends=6)
    assert agent.devices == ("eth*", "!eth9")
    assert agent.masquerade_ports == PortRange(5000, 5999)
    assert agent.source_ranges_for_all
    assert agent.manifests == Path("/etc/services")


def test_every_size_of_a_map_has_a_flag() -> None:
    assert {option.flag for option in BPFSVC} >= {
        f"--{name.replace('_', '-')}" for name in Sizes.__dataclass_fields__
    }


def test_flags_without_effect_are_named_once_as_they_were_given() -> None:
    (note,) = of_flags(
        "--ipvs-scheduler=lc",
        "--iptables-min-sync-period=2s",
        "--iptables-masquerade-bit=14",
        "--vmodule=proxier=4",
        "--boot-id-file=/x",
        "--kube-api-burst=50",
        "--config-sync-period=15m",
    ).notes
    about, _, listed = note.partition(": ")
    assert about == "without effect here"
    assert [item.partition(" (")[0] for item in listed.split(", ")] == [
        "--kube-api-burst",
        "--iptables-min-sync-period",
        "--ipvs-scheduler",
        "--vmodule",
        "--boot-id-file",
    ]


def test_unknown_words_are_refused_by_their_flag() -> None:
    for words, said in (
        (["--masquerade-all=perhaps"], "'perhaps' is not true or false"),
        (["--oom-score-adj=low"], "'low' is not a whole number"),
        (["--iptables-sync-period=5"], "expected a duration such as 30s"),
        (["--feature-gates=A"], "A= is not NAME=true or NAME=false"),
        (["--config", "/no/such", "surplus"], "unexpected extra argument"),
    ):
        result = CliRunner().invoke(main, ["run", *words])
        assert result.exit_code == 2
        error, hint = result.stderr.splitlines()
        assert said in error
        assert hint == "Hint: see bpfsvc run --help"


def test_the_flags_of_kubeadm_and_its_file_need_nothing_else() -> None:
    """The arguments of its DaemonSet, as they are."""
    given_flags = given("--config=/var/lib/kube-proxy/config.conf", "--hostname-override=node-1")
    assert given_flags.file == Path("/var/lib/kube-proxy/config.conf")
    assert not given_flags.ignored


def test_a_wrong_file_is_one_line_and_status_2(tmp_path: Path) -> None:
    path = tmp_path / "config.conf"
    path.write_text(KUBEADM.replace("10.244.0.0/16", "pods"))
    result = CliRunner().invoke(main, ["run", "--config", str(path)])
    assert result.exit_code == 2
    error, hint = result.stderr.splitlines()
    assert error.startswith(f"Error: {path}:10: clusterCIDR: must be a CIDR")
    assert hint.startswith("Hint: ")


def test_settings_of_flags_load_neither_the_agent_of_an_api_server_nor_its_library() -> None:
    """A node with manifests, or a help text, needs none of it."""
    script = (
        "import sys\nfrom bpfsvc.cli.run import run\n"
        "library = {'kubernetes', 'bpfsvc.kube.reflector', 'bpfsvc.migration.kube_proxy'}\n"
        "print(library & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_messages_can_be_json() -> None:
    record = logging.LogRecord("bpfsvc", logging.WARNING, "", 1, "%d rows", (7,), None)
    record.created = 1.5
    assert json.loads(logs.Json().format(record)) == {
        "ts": 1500.0,
        "level": "warning",
        "logger": "bpfsvc",
        "caller": ":1",
        "msg": "7 rows",
    }


@pytest.mark.parametrize("flag", ["--socket-lb=off", "--cgroup-root=none"])
def test_a_node_whose_own_processes_reach_no_service_is_warned_of(flag: str) -> None:
    (warning,) = of_flags(flag).warnings
    assert "processes of this node itself reach no Service" in warning
    assert of_flags("--socket-lb=host").warnings == ()


def test_the_fast_path_has_a_mode_and_without_one_chooses_itself() -> None:
    assert of_flags("--fast-path=off").bpfsvc.fast_path == "off"
    assert of_flags("--fast-path", "auto").bpfsvc.fast_path == "auto"
    assert of_flags("--fast-path").bpfsvc.fast_path == "auto"


def test_acceleration_is_turned_on_by_flags() -> None:
    flags = ("--fast-path", "--xdp=eth*,!eth9", "--mesh-ports=15001", "--socket-lb=host")
    wanted = of_flags(*flags).bpfsvc
    assert (wanted.fast_path, wanted.xdp) == ("auto", ["eth*", "!eth9"])
    assert (wanted.mesh_ports, wanted.socket_lb) == ([15001], "host")


@pytest.mark.parametrize("ports", ["1,2,3,4,5", "0", "70000", "istio"])
def test_mesh_ports_are_at_most_four_ports(ports: str) -> None:
    with pytest.raises((UsageError, click.UsageError)):
        of_flags(f"--mesh-ports={ports}")


def test_xdp_makes_netfilter_accept_packets_outside_the_window() -> None:
    """Else rules that drop invalid packets would end long transfers."""
    assert config(of_flags("--xdp=eth0")).conntrack.tcp_be_liberal
    assert not config(of_flags("--xdp=off")).conntrack.tcp_be_liberal
    assert config(of_flags("--conntrack-tcp-be-liberal")).conntrack.tcp_be_liberal
