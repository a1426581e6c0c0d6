"""Fields that cannot be used: each is named with its line and its path, all at once."""

from __future__ import annotations

import pytest

from bpfsvc.base.errors import UsageError
from tests.config.settings import HEAD, OWN_HEAD, config, of_fields, of_flags, of_text

BAD = {
    "mode: userspace": "mode: must be one of iptables, ipvs, nftables, not 'userspace'",
    "mode: 5": "mode: expected str, got int (5)",
    "nftables: {syncPeriod: -1s}": "nftables.syncPeriod: must be greater than 0",
    "nftables: {minSyncPeriod: -1s}": "nftables.minSyncPeriod: must be at least 0",
    "iptables: {minSyncPeriod: 31s}": (
        "iptables.minSyncPeriod: must not be longer than syncPeriod (30s)"
    ),
    "iptables: {masqueradeBit: 32}": "iptables.masqueradeBit: must be 0 to 31, not 32",
    "iptables: {masqueradeAll: 'yes'}": ("iptables.masqueradeAll: expected bool, got str ('yes')"),
    "iptables: []": "iptables: expected an object, got a list",
    "iptables: {syncPeriod: 30}": ("iptables.syncPeriod: expected a duration such as 30s, got 30"),
    "iptables: {syncPeriod: 1d}": (
        "iptables.syncPeriod: expected a duration such as 30s or 1h30m, got '1d'"
    ),
    "mode: ipvs\nipvs: {syncPeriod: -1s}": "ipvs.syncPeriod: must be greater than 0",
    "mode: ipvs\nipvs: {tcpFinTimeout: -1s}": "ipvs.tcpFinTimeout: must be at least 0",
    "mode: ipvs\nipvs: {excludeCIDRs: [10.0.0.0/8, ten]}": (
        "ipvs.excludeCIDRs[1]: must be a CIDR such as 10.0.0.0/8, not 'ten'"
    ),
    "configSyncPeriod: -1s": "configSyncPeriod: must be greater than 0",
    "bindAddress: eth0": "bindAddress: must be an IP address, not 'eth0'",
    "healthzBindAddress: localhost": (
        "healthzBindAddress: must be ADDRESS:PORT, such as 0.0.0.0:10256, not 'localhost'"
    ),
    "healthzBindAddress: 0.0.0.0:65536": (
        "healthzBindAddress: must be ADDRESS:PORT, such as 0.0.0.0:10256, not '0.0.0.0:65536'"
    ),
    "metricsBindAddress: ':10249'": (
        "metricsBindAddress: must be ADDRESS:PORT, such as 127.0.0.1:10249, not ':10249'"
    ),
    "nodePortAddresses: [primary, every]": (
        "nodePortAddresses[1]: must be a CIDR such as 10.0.0.0/8, or primary, localhost or all,"
        " not 'every'"
    ),
    "nodePortAddresses: [10.0.0.0/8, 10.0.0.1]": (
        "nodePortAddresses[1]: must be a CIDR such as 10.0.0.0/8, or primary, localhost or all,"
        " not '10.0.0.1'"
    ),
    "nodePortAddresses: [10.0.0.0/33]": (
        "nodePortAddresses[0]: must be a CIDR such as 10.0.0.0/8, or primary, localhost or all,"
        " not '10.0.0.0/33'"
    ),
    "nodePortAddresses: [10.0.0.0/8, 7]": "nodePortAddresses[1]: expected str, got int (7)",
    "conntrack: {maxPerCore: -1}": "conntrack.maxPerCore: must be at least 0",
    "conntrack: {min: -1}": "conntrack.min: must be at least 0",
    "conntrack: {min: many}": "conntrack.min: expected int, got str ('many')",
    "conntrack: {tcpEstablishedTimeout: -1s}": (
        "conntrack.tcpEstablishedTimeout: must be at least 0"
    ),
    "conntrack: {tcpCloseWaitTimeout: -1s}": "conntrack.tcpCloseWaitTimeout: must be at least 0",
    "conntrack: {udpTimeout: -1s}": "conntrack.udpTimeout: must be at least 0",
    "conntrack: {udpStreamTimeout: -1s}": "conntrack.udpStreamTimeout: must be at least 0",
    "oomScoreAdj: 1001": "oomScoreAdj: must be -1000 to 1000, not 1001",
    "clientConnection: {burst: -1}": "clientConnection.burst: must be at least 0",
    "detectLocalMode: Guess": (
        "detectLocalMode: must be one of ClusterCIDR, NodeCIDR, BridgeInterface,"
        " InterfaceNamePrefix, not 'Guess'"
    ),
    "detectLocalMode: BridgeInterface\ndetectLocal: {}": (
        "detectLocal.bridgeInterface: must be given for detectLocalMode BridgeInterface"
    ),
    "detectLocalMode: InterfaceNamePrefix\ndetectLocal: {}": (
        "detectLocal.interfaceNamePrefix: must be given for detectLocalMode InterfaceNamePrefix"
    ),
    "clusterCIDR: pods": "clusterCIDR: must be a CIDR such as 10.244.0.0/16, not 'pods'",
    "clusterCIDR: 10.0.0.0/9,10.128.0.0/9": (
        "clusterCIDR: must be at most one CIDR per family, not '10.0.0.0/9,10.128.0.0/9'"
    ),
    "logging: {format: xml}": "logging.format: must be one of text, json, not 'xml'",
    "hostnameOverride: ' '": "hostnameOverride: must not be blank",
}


@pytest.mark.parametrize(("fields", "message"), BAD.items(), ids=BAD.keys())
def test_a_wrong_field_is_named_with_its_line(fields: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        of_fields(fields)
    line = HEAD.count("\n") + fields.count("\n") + 1
    assert error.value.message == f"config.conf:{line}: {message}"


OWN = {
    "masqueradePorts: 5": "masqueradePorts: expected str, got int (5)",
    "masqueradePorts: 1-x": "masqueradePorts: must be FIRST-LAST, not '1-x'",
    "serviceNodePortRange: ''": "serviceNodePortRange: must be FIRST-LAST, not ''",
    "mapSizes: {services: 0}": "mapSizes.services: must be 1 to 16777216, not 0",
    "mapSizes: {services: a}": "mapSizes: expected int, got str",
    "attach: nailed": "attach: invalid enum value 'nailed'",
    "tcPriority: 0": "tcPriority: expected int >= 1 (0)",
    "metricsServices: 200": "metricsServices: expected str, got int (200)",
    "devices: eth0": "devices: expected array, got str ('eth0')",
}


@pytest.mark.parametrize(("fields", "message"), OWN.items(), ids=OWN.keys())
def test_a_wrong_field_of_our_own_is_named_with_its_line(fields: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        of_text(HEAD + OWN_HEAD + fields)
    assert error.value.message.startswith(f"config.conf:6: {message}")


def test_a_field_that_is_missing_has_no_line() -> None:
    with pytest.raises(UsageError) as error:
        of_fields("detectLocalMode: BridgeInterface")
    assert error.value.message.startswith("config.conf: detectLocal.bridgeInterface: must be given")


def test_everything_that_is_wrong_is_reported_at_once_and_in_one_line() -> None:
    with pytest.raises(UsageError) as error:
        of_text(
            HEAD
            + "mode: nftables\nnftables: {syncPeriod: -1s}\nconntrack: {min: x}\n"
            + "oomScoreAdj: 2000\n"
            + OWN_HEAD
            + "frob: 1\n"
        )
    assert error.value.message == (
        "config.conf:5: conntrack.min: expected int, got str ('x'); "
        "config.conf:4: nftables.syncPeriod: must be greater than 0; "
        "config.conf:6: oomScoreAdj: must be -1000 to 1000, not 2000; "
        "config.conf:10: frob: unknown field"
    )
    assert error.value.exit_code == 2


def test_the_block_of_another_mode_may_hold_anything() -> None:
    settings = of_fields("mode: nftables\nipvs: {syncPeriod: -1s}\niptables: {masqueradeBit: 99}\n")
    assert config(settings).mode == "nftables"


FLAGS = {
    "--iptables-sync-period=-1s": "--iptables-sync-period: must be greater than 0",
    "--metrics-port=0": (
        "--metrics-bind-address: must be ADDRESS:PORT, such as 127.0.0.1:10249, not ''"
    ),
    "--proxy-mode=userspace": (
        "--proxy-mode: must be one of iptables, ipvs, nftables, not 'userspace'"
    ),
    "--nodeport-addresses=10.0.0.0": (
        "--nodeport-addresses: must be a CIDR such as 10.0.0.0/8, or primary, localhost or all,"
        " not '10.0.0.0'"
    ),
    "--detect-local-mode=BridgeInterface": (
        "--pod-bridge-interface: must be given for detectLocalMode BridgeInterface"
    ),
    "--cluster-cidr=10.0.0.0/9,10.128.0.0/9": (
        "--cluster-cidr: must be at most one CIDR per family, not '10.0.0.0/9,10.128.0.0/9'"
    ),
    "--healthz-bind-address=localhost": (
        "--healthz-bind-address: must be ADDRESS:PORT, such as 0.0.0.0:10256, not 'localhost'"
    ),
    "--masquerade-ports=10000": "--masquerade-ports: must be FIRST-LAST, not '10000'",
    "--nodeport-addresses=primary,Localhost": (
        "--nodeport-addresses: must be a CIDR such as 10.0.0.0/8, or primary, localhost or all,"
        " not 'Localhost'"
    ),
    "--oom-score-adj=5000": "--oom-score-adj: must be -1000 to 1000, not 5000",
    "--hostname-override= ": "--hostname-override: must not be blank",
    "--metrics-services=top:0": ("--metrics-services: must be top:1 to top:1000000, not 'top:0'"),
    "--metrics-services=web": (
        "--metrics-services: must be all, none, top:NUMBER, or patterns NAMESPACE/NAME,...,"
        " such as shop/*,kube-system/kube-dns, not 'web'"
    ),
}


@pytest.mark.parametrize(("flag", "message"), FLAGS.items(), ids=FLAGS.keys())
def test_a_wrong_flag_is_named_as_it_was_given(flag: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        of_flags(flag)
    assert error.value.message.split("; ")[0] == message
