"""The flags of kube-proxy, each with the fields it sets.

All of them are accepted, so that the arguments of its DaemonSet work unchanged. Those without
effect are hidden from the help, and listed once in the log if given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import click

from bpfsvc.base.address import with_port
from bpfsvc.cli.flags import BOOL, DURATION, GATES, INT, Table, text, words
from bpfsvc.config.config import ProxyMode
from bpfsvc.config.fields import plain_values
from bpfsvc.config.kubeproxy_v1alpha1 import KubeProxyConfiguration, complete, settle_mode
from bpfsvc.config.local_detector import Mode
from bpfsvc.services.rules.nodeport_addresses import KEYWORDS

_TABLE = Table(plain_values(settle_mode(complete(KubeProxyConfiguration()))), of_kubeproxy=True)
_option, _ignored = _TABLE.option, _TABLE.ignored

_LOCALHOST = "--localhost-nodeports/--no-localhost-nodeports"

_API_SERVER = (
    _option(
        "--kubeconfig",
        "clientConnection.kubeconfig",
        text("FILE"),
        "File that says how to reach the API server. Without it: the pod's ServiceAccount.",
    ),
    _ignored("--kube-api-content-type", "clientConnection.contentType"),
    _ignored("--kube-api-qps", "clientConnection.qps", click.FLOAT),
    _ignored("--kube-api-burst", "clientConnection.burst", INT),
    _ignored("--config-sync-period", "configSyncPeriod", DURATION),
    _option(
        "--feature-gates",
        "featureGates",
        GATES,
        "AllowServiceExternalIPs=false: Services do not answer on spec.externalIPs. Other gates"
        " are ignored.",
    ),
)

_IDENTITY = (
    _option(
        "--hostname-override",
        "hostnameOverride",
        text("NAME"),
        "Name of this node's Node object. Without it: the host name.",
    ),
    _option(
        "--bind-address",
        "bindAddress",
        text("ADDRESS"),
        "This node's own address, in place of the one in its Node object. 0.0.0.0 and :: set none.",
    ),
    _option(
        "--healthz-bind-address",
        "healthzBindAddress",
        text("ADDRESS[:PORT]"),
        "Address and port of /healthz and /livez; '' serves them nowhere.",
    ),
    _option(
        "--healthz-port",
        "",
        INT,
        "Deprecated: port if the address has none; 0: nowhere.",
        hidden=True,
    ),
    _option(
        "--metrics-bind-address",
        "metricsBindAddress",
        text("ADDRESS[:PORT]"),
        "Address and port of /metrics, /proxyMode and /configz.",
    ),
    _option("--metrics-port", "", INT, "Deprecated: port if the address has none.", hidden=True),
    _option(
        "--bind-address-hard-fail",
        "bindAddressHardFail",
        BOOL,
        "Exit if one of these addresses is already in use, instead of trying again.",
    ),
    _option(
        "--profiling",
        "enableProfiling",
        BOOL,
        "Serve /debug/pprof/ on the metrics address, for finding faults in the agent.",
    ),
    _ignored("--show-hidden-metrics-for-version", "showHiddenMetricsForVersion"),
)

_MODE = (
    _option(
        "--proxy-mode",
        "mode",
        text("|".join(get_args(ProxyMode))),
        "kube-proxy's mode: bpfsvc uses its defaults and settings. Services work the same in all,"
        " but for --ipvs-scheduler.",
    ),
    _option(
        "--masquerade-all",
        "iptables.masqueradeAll nftables.masqueradeAll",
        BOOL,
        "Masquerade all connections to cluster IPs.",
    ),
    _option(
        "--nodeport-addresses",
        "nodePortAddresses",
        words("|".join((*KEYWORDS, "CIDR,..."))),
        "Addresses on which NodePorts answer: the Node object's, loopback, all, or ranges; any of"
        " them together. A family without any answers on all addresses.",
        multiple=True,
    ),
    _option(
        _LOCALHOST,
        "iptables.localhostNodePorts",
        None,
        "NodePorts answer on loopback too, if --nodeport-addresses has it.",
        "localhost-nodeports",
    ),
    _option(
        "--iptables-localhost-nodeports",
        "iptables.localhostNodePorts",
        BOOL,
        "kube-proxy's name for --localhost-nodeports.",
    ),
    _option(
        "--iptables-sync-period",
        "iptables.syncPeriod nftables.syncPeriod",
        DURATION,
        "The agent is unhealthy if a change is not in the kernel after twice this time.",
    ),
    _option(
        "--ipvs-sync-period",
        "ipvs.syncPeriod",
        DURATION,
        "As --iptables-sync-period, for --proxy-mode ipvs.",
    ),
    _option(
        "--ipvs-scheduler",
        "ipvs.scheduler",
        text("NAME"),
        "kube-proxy's name for --scheduler; it counts if --proxy-mode is ipvs.",
    ),
    _ignored("--iptables-masquerade-bit", "iptables.masqueradeBit", INT),
    _ignored(
        "--iptables-min-sync-period", "iptables.minSyncPeriod nftables.minSyncPeriod", DURATION
    ),
    _ignored("--ipvs-min-sync-period", "ipvs.minSyncPeriod", DURATION),
    _ignored("--ipvs-exclude-cidrs", "ipvs.excludeCIDRs", words()),
    _ignored("--ipvs-strict-arp", "ipvs.strictARP", BOOL),
    _ignored("--ipvs-tcp-timeout", "ipvs.tcpTimeout", DURATION),
    _ignored("--ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", DURATION),
    _ignored("--ipvs-udp-timeout", "ipvs.udpTimeout", DURATION),
)

_DETECTION = (
    _option(
        "--detect-local-mode",
        "detectLocalMode",
        text("MODE"),
        "How pods of this node are identified: by the cluster's ranges, the node's ranges, or"
        f" their interface. One of {', '.join(get_args(Mode))}.",
    ),
    _option(
        "--cluster-cidr",
        "clusterCIDR",
        text("CIDR[,CIDR]"),
        "Pod range, at most one per family. Other clients of a cluster IP are masqueraded.",
    ),
    _option(
        "--pod-bridge-interface",
        "detectLocal.bridgeInterface",
        text("NAME"),
        "For --detect-local-mode BridgeInterface: the bridge of the pods.",
    ),
    _option(
        "--pod-interface-name-prefix",
        "detectLocal.interfaceNamePrefix",
        text("PREFIX"),
        "For --detect-local-mode InterfaceNamePrefix: how names of pod interfaces begin.",
    ),
)

_KERNEL = (
    _option(
        "--oom-score-adj",
        "oomScoreAdj",
        INT,
        "The agent's oom_score_adj, -1000 (never killed) to 1000 (killed first).",
    ),
    _option(
        "--conntrack-max-per-core",
        "conntrack.maxPerCore",
        INT,
        "netfilter's limit of connections for each processor; 0 leaves it unchanged.",
    ),
    _option(
        "--conntrack-min",
        "conntrack.min",
        INT,
        "netfilter's limit of connections is at least this; 0 sets no minimum.",
    ),
    _option(
        "--conntrack-tcp-timeout-established",
        "conntrack.tcpEstablishedTimeout",
        DURATION,
        "How long netfilter and bpfsvc keep an idle TCP connection; 0: netfilter's is unchanged.",
    ),
    _option(
        "--conntrack-tcp-timeout-close-wait",
        "conntrack.tcpCloseWaitTimeout",
        DURATION,
        "The same for a TCP connection that one side has closed.",
    ),
    _option(
        "--conntrack-tcp-be-liberal",
        "conntrack.tcpBeLiberal",
        BOOL,
        "netfilter treats packets outside the TCP window as valid.",
    ),
    _option(
        "--conntrack-udp-timeout",
        "conntrack.udpTimeout",
        DURATION,
        "How long netfilter and bpfsvc keep an idle UDP client; 0: netfilter's is unchanged.",
    ),
    _option(
        "--conntrack-udp-timeout-stream",
        "conntrack.udpStreamTimeout",
        DURATION,
        "The same for a UDP client that got an answer. bpfsvc uses this one if both are given.",
    ),
)

_LOGGING = (
    _option(
        "--v",
        "logging.verbosity",
        INT,
        "Verbosity of the log: 2 adds a line per changed Service, 4 what helps to find faults, 6"
        " requests to the API server.",
    ),
    _option(
        "--logging-format",
        "logging.format",
        text("text|json"),
        "Format of the log: lines for people, or one JSON object per message.",
    ),
    _ignored("--log-flush-frequency", "logging.flushFrequency", DURATION),
    _ignored("--vmodule"),
    _ignored("--log-text-split-stream", kind=BOOL),
    _ignored("--log-json-split-stream", kind=BOOL),
    _ignored("--log-text-info-buffer-size"),
    _ignored("--log-json-info-buffer-size"),
    _ignored("--boot-id-file"),
    _ignored("--machine-id-file"),
)

KUBE_PROXY = (*_API_SERVER, *_IDENTITY, *_MODE, *_DETECTION, *_KERNEL, *_LOGGING)


def normalized(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of these flags by the rules of kube-proxy that concern two of them.

    * The deprecated ports count where the address has none, and 0 is nowhere.
    * An empty address is nowhere for ``/healthz``, and not given for metrics.
    * An empty name, as a DaemonSet may pass it, is not given.
    """
    healthz = _with_port(values["healthz_bind_address"], values["healthz_port"], "0.0.0.0")
    metrics = values["metrics_bind_address"] or None
    return {
        **values,
        "healthz_bind_address": healthz,
        "healthz_port": None,
        "metrics_bind_address": _with_port(metrics, values["metrics_port"], "127.0.0.1"),
        "metrics_port": None,
        "hostname_override": values["hostname_override"] or None,
    }


def _with_port(address: str | None, port: int | None, default: str) -> str | None:
    if port is None:
        return address
    return with_port(address or default, port) if port else ""
