"""Settings read from a text and from arguments, and a file as kubeadm writes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bpfsvc.commands import flags
from bpfsvc.commands.run import run
from bpfsvc.config import Config
from bpfsvc.settings import effective, reading
from bpfsvc.settings.loading import Given, Settings, load

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


def given(*arguments: str) -> Given:
    """Take arguments as ``bpfsvc run`` does."""
    values: dict[str, Any] = run.make_context("run", list(arguments)).params
    for other in ("write_config_to", "init_only", "cleanup"):
        values.pop(other)
    return flags.given(values, file=values.pop("file"), master=values.pop("master"))


def of_text(text: str, *arguments: str) -> Settings:
    """Load settings from the text of a file, and arguments beside it."""
    return load(
        given("--config", str(FILE), *arguments),
        lambda path: reading.parse(text.encode(), path),
    )


def of_fields(fields: str, *arguments: str) -> Settings:
    """Load settings from kube-proxy's fields alone."""
    return of_text(HEAD + fields, *arguments)


def of_flags(*arguments: str) -> Settings:
    """Load settings from arguments alone."""
    return load(given(*arguments))


def config(settings: Settings) -> Config:
    """Make of settings what an agent is told."""
    return effective.config(settings, "node-1", None)
