"""The flags of kube-proxy, each with the fields it sets.

All of them are taken, that the arguments of its DaemonSet work unchanged. Those that mean nothing
here are not shown, and are named once at the start if given.
"""

from __future__ import annotations

from typing import Any, get_args

import click

from bpfsvc.commands.gotypes import Bool, Gates, Int, Span, Text, Words
from bpfsvc.commands.options import Option, as_explained, option
from bpfsvc.commands.parameters import CidrList
from bpfsvc.config import DEFAULT_HEALTHZ, DEFAULT_METRICS, ProxyMode
from bpfsvc.detection import Mode
from bpfsvc.nodeports import PRIMARY
from bpfsvc.settings.defaults import OOM_SCORE


def _idle(name: str, fields: str = "", kind: Any = None) -> Option:
    """Describe an option without effect."""
    return option(name, fields, kind or Text(), "Taken; without effect here.", hidden=True)


_LOCALHOST = "--localhost-nodeports/--no-localhost-nodeports"

_API_SERVER = (
    option(
        "--kubeconfig",
        "clientConnection.kubeconfig",
        Text("file"),
        "How to reach the API server; as a pod does if not given.",
    ),
    _idle("--kube-api-content-type", "clientConnection.contentType"),
    _idle("--kube-api-qps", "clientConnection.qps", click.FLOAT),
    _idle("--kube-api-burst", "clientConnection.burst", Int()),
    _idle("--config-sync-period", "configSyncPeriod", Span()),
    option(
        "--feature-gates",
        "featureGates",
        Gates(),
        "AllowServiceExternalIPs=false: Services do not answer on spec.externalIPs.",
    ),
)

_IDENTITY = (
    option(
        "--hostname-override",
        "hostnameOverride",
        Text("name"),
        as_explained("--hostname-override"),
    ),
    option(
        "--bind-address",
        "bindAddress",
        Text("address"),
        "If specified: this node's own address, in place of that of its Node object.",
        "0.0.0.0",
    ),
    option(
        "--healthz-bind-address",
        "healthzBindAddress",
        Text("address[:port]"),
        "Where the agent serves /healthz and /livez; '' for nowhere.",
        DEFAULT_HEALTHZ,
    ),
    option(
        "--healthz-port", "", Int(), "Port where the address has none; 0: nowhere.", hidden=True
    ),
    option(
        "--metrics-bind-address",
        "metricsBindAddress",
        Text("address[:port]"),
        "Where the agent serves /metrics, /proxyMode and /configz.",
        DEFAULT_METRICS,
    ),
    option("--metrics-port", "", Int(), "Port if the address has none.", hidden=True),
    option(
        "--bind-address-hard-fail",
        "bindAddressHardFail",
        Bool(),
        "End when one of these addresses is taken, rather than try again.",
    ),
    option(
        "--profiling",
        "enableProfiling",
        Bool(),
        "Serve /debug/pprof/ beside the metrics, to find faults of the agent.",
    ),
    _idle("--show-hidden-metrics-for-version", "showHiddenMetricsForVersion"),
)

_MODE = (
    option(
        "--proxy-mode",
        "mode",
        Text(),
        "Whose defaults and whose block of settings count; Services work the same in all.",
        "nftables",
        metavar="|".join(get_args(ProxyMode)),
    ),
    option(
        "--masquerade-all",
        "iptables.masqueradeAll nftables.masqueradeAll",
        Bool(),
        as_explained("--masquerade-all"),
    ),
    option(
        "--nodeport-addresses",
        "nodePortAddresses",
        CidrList(alone=PRIMARY),
        as_explained("--nodeport-addresses"),
        PRIMARY,
        multiple=True,
        metavar=f"CIDR,...|{PRIMARY}",
    ),
    option(
        _LOCALHOST,
        "iptables.localhostNodePorts",
        None,
        as_explained(_LOCALHOST),
        "localhost-nodeports",
    ),
    option(
        "--iptables-localhost-nodeports",
        "iptables.localhostNodePorts",
        Bool(),
        "The same, by the name that kube-proxy has for it.",
    ),
    option(
        "--iptables-sync-period",
        "iptables.syncPeriod nftables.syncPeriod",
        Span(),
        "A change that is not in the kernel for twice as long makes the agent unhealthy.",
        "30s",
    ),
    option(
        "--ipvs-sync-period", "ipvs.syncPeriod", Span(), "The same with --proxy-mode ipvs.", "30s"
    ),
    _idle("--iptables-masquerade-bit", "iptables.masqueradeBit", Int()),
    _idle("--iptables-min-sync-period", "iptables.minSyncPeriod nftables.minSyncPeriod", Span()),
    _idle("--ipvs-min-sync-period", "ipvs.minSyncPeriod", Span()),
    _idle("--ipvs-scheduler", "ipvs.scheduler"),
    _idle("--ipvs-exclude-cidrs", "ipvs.excludeCIDRs", Words()),
    _idle("--ipvs-strict-arp", "ipvs.strictARP", Bool()),
    _idle("--ipvs-tcp-timeout", "ipvs.tcpTimeout", Span()),
    _idle("--ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", Span()),
    _idle("--ipvs-udp-timeout", "ipvs.udpTimeout", Span()),
)

_DETECTION = (
    option(
        "--detect-local-mode",
        "detectLocalMode",
        Text("mode"),
        f"{as_explained('--detect-local-mode')} One of {', '.join(get_args(Mode))}.",
        "ClusterCIDR",
    ),
    option(
        "--cluster-cidr",
        "clusterCIDR",
        CidrList(one_per_family=True),
        as_explained("--cluster-cidr"),
    ),
    option(
        "--pod-bridge-interface",
        "detectLocal.bridgeInterface",
        Text("name"),
        as_explained("--pod-bridge-interface"),
    ),
    option(
        "--pod-interface-name-prefix",
        "detectLocal.interfaceNamePrefix",
        Text("prefix"),
        as_explained("--pod-interface-name-prefix"),
    ),
)

_KERNEL = (
    option(
        "--oom-score-adj",
        "oomScoreAdj",
        Int(),
        "How unwilling the kernel is to kill the agent, -1000 to 1000.",
        OOM_SCORE,
    ),
    option(
        "--conntrack-max-per-core",
        "conntrack.maxPerCore",
        Int(),
        "netfilter's limit of connections for each processor; 0 leaves it.",
        32768,
    ),
    option("--conntrack-min", "conntrack.min", Int(), "The least such limit in all.", 131072),
    option(
        "--conntrack-tcp-timeout-established",
        "conntrack.tcpEstablishedTimeout",
        Span(),
        "How long a silent TCP connection is kept, by netfilter and here.",
        "24h0m0s",
    ),
    option(
        "--conntrack-tcp-timeout-close-wait",
        "conntrack.tcpCloseWaitTimeout",
        Span(),
        "The same for one that one side has closed.",
        "1h0m0s",
    ),
    option(
        "--conntrack-tcp-be-liberal",
        "conntrack.tcpBeLiberal",
        Bool(),
        "netfilter takes packets outside the TCP window for valid.",
    ),
    option(
        "--conntrack-udp-timeout",
        "conntrack.udpTimeout",
        Span(),
        "How long a silent UDP client is remembered, by netfilter and here; 0s leaves it.",
        "0s",
    ),
    option(
        "--conntrack-udp-timeout-stream",
        "conntrack.udpStreamTimeout",
        Span(),
        "The same for one that was answered; here it comes before the other.",
        "0s",
    ),
)

_LOGGING = (
    option(
        "--v",
        "logging.verbosity",
        Int(),
        "How much is logged: from 4 on, what helps to find faults.",
        0,
    ),
    option(
        "--logging-format",
        "logging.format",
        Text(),
        "A line for people, or a JSON object, for each message.",
        "text",
        metavar="text|json",
    ),
    _idle("--log-flush-frequency", "logging.flushFrequency", Span()),
    _idle("--vmodule"),
    _idle("--log-text-split-stream", kind=Bool()),
    _idle("--log-json-split-stream", kind=Bool()),
    _idle("--log-text-info-buffer-size"),
    _idle("--log-json-info-buffer-size"),
    _idle("--boot-id-file"),
    _idle("--machine-id-file"),
)

KUBE_PROXY = (*_API_SERVER, *_IDENTITY, *_MODE, *_DETECTION, *_KERNEL, *_LOGGING)
