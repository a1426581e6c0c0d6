"""Documents read from a text and from arguments, and a file as kubeadm writes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.base.ports import PortRange
from bpfsvc.base.service_series import ServiceSeries
from bpfsvc.cli.run import command_line, run
from bpfsvc.config import documents
from bpfsvc.config.config import Config, Conntrack, HistorySettings, Lifetimes
from bpfsvc.config.loading import CommandLine, Documents, load, make_config
from bpfsvc.config.local_detector import LocalDetector
from bpfsvc.services.scheduling.schedulers import RANDOM

FILE = Path("config.conf")

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
OWN_HEAD = "---\napiVersion: bpfsvc.io/v1alpha1\nkind: BpfsvcConfiguration\n"

KUBEADM = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack:
  maxPerCore: null
  min: null
  tcpBeLiberal: false
  tcpCloseWaitTimeout: null
  tcpEstablishedTimeout: null
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables:
  localhostNodePorts: null
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 0s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
kind: KubeProxyConfiguration
logging:
  flushFrequency: 0
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: ""
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: null
  minSyncPeriod: 0s
  syncPeriod: 0s
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
"""


def given(*arguments: str) -> CommandLine:
    """Return what arguments of ``bpfsvc run`` set."""
    values: dict[str, Any] = run.make_context("run", list(arguments)).params
    for other in ("write_config_to", "init_only", "cleanup"):
        values.pop(other)
    return command_line(values, file=values.pop("file"), master=values.pop("master"))


def of_text(text: str, *arguments: str) -> Documents:
    """Load the text of a file, and arguments beside it."""
    return load(
        given("--config", str(FILE), *arguments),
        lambda path: documents.parse(text.encode(), path),
    )


def of_fields(fields: str, *arguments: str) -> Documents:
    """Load kube-proxy's fields alone."""
    return of_text(HEAD + fields, *arguments)


def of_flags(*arguments: str) -> Documents:
    """Load arguments alone."""
    return load(given(*arguments))


def config(given: Documents) -> Config:
    """Return the settings of an agent on node-1."""
    return make_config(given, "node-1", None)


DEFAULTS = Config(
    manifests=None,
    kubeconfig=None,
    master="",
    last_good=Path("/var/lib/bpfsvc/last-good"),
    patience_seconds=10.0,
    history=HistorySettings(Path("/var/lib/bpfsvc/history"), 16),
    node_name="node-1",
    mode="nftables",
    detection=LocalDetector(),
    masquerade_all=False,
    scheduler=RANDOM,
    source_ranges_for_all=False,
    allow_external_ips=True,
    vip_echo=False,
    nodeport_addresses=("primary",),
    localhost_nodeports=True,
    node_ports=PortRange(30000, 32767),
    address_override=(),
    pin_root=Path("/sys/fs/bpf/bpfsvc"),
    cache=Path("/var/lib/bpfsvc/cache"),
    programs=Path("/usr/share/bpfsvc/programs"),
    cgroup_root=None,
    socket_lb="all",
    mesh_ports=(15001, 4140),
    devices=(),
    fast_path="auto",
    xdp=(),
    attach="auto",
    tc_priority=181,
    masquerade_ports=PortRange(10000, 29999),
    sizes=Sizes(),
    lifetimes=Lifetimes(),
    conntrack=Conntrack(
        max_per_core=32768,
        min=131072,
        tcp_established=86400,
        tcp_close_wait=3600,
        tcp_be_liberal=False,
        udp=0,
        udp_stream=0,
    ),
    oom_score_adj=-999,
    healthz=("0.0.0.0", 10256),
    metrics=("127.0.0.1", 10249),
    ui=("127.0.0.1", 10286),
    metrics_services=ServiceSeries(most=200),
    count_drops_elsewhere=False,
    bind_address_hard_fail=False,
    sync_seconds=30.0,
    profiling=False,
    document={},
)
"""The settings of an agent for which nothing was given."""


def conntrack(**fields: Any) -> Conntrack:
    """Return what netfilter is set to by default, with other values in some fields."""
    return replace(DEFAULTS.conntrack, **fields)
