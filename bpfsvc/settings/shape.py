"""The fields of KubeProxyConfiguration v1alpha1, with the names and the types they have there.

Where a type allows None, zero is a value of its own ("leave it") and only what is absent has a
default; elsewhere zero and absent are the same, as in the API these shapes repeat.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from bpfsvc.settings.durations import Duration

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"

NONE = Duration()

Number = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
"""Go's int32."""


class Shape(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Common settings of the shapes below."""


class ClientConnection(Shape, frozen=True):
    """How to talk with the API server."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = ""
    qps: float = 0
    burst: Number = 0


class Conntrack(Shape, frozen=True):
    """The connection tracking of netfilter."""

    max_per_core: Number | None = None
    min: Number | None = None
    tcp_established_timeout: Duration | None = None
    tcp_close_wait_timeout: Duration | None = None
    tcp_be_liberal: bool = False
    udp_timeout: Duration = NONE
    udp_stream_timeout: Duration = NONE


class DetectLocal(Shape, frozen=True):
    """What the two modes need that tell pods by interfaces."""

    bridge_interface: str = ""
    interface_name_prefix: str = ""


class NFTables(Shape, frozen=True):
    """The block of mode nftables."""

    masquerade_bit: Number | None = None
    masquerade_all: bool = False
    sync_period: Duration = NONE
    min_sync_period: Duration = NONE


class IPTables(NFTables, frozen=True):
    """The block of mode iptables; mode ipvs takes ``masqueradeAll`` from it."""

    localhost_node_ports: bool | None = None


class IPVS(Shape, frozen=True):
    """The block of mode ipvs."""

    sync_period: Duration = NONE
    min_sync_period: Duration = NONE
    scheduler: str = ""
    exclude_cidrs: list[str] = field(default_factory=list, name="excludeCIDRs")
    strict_arp: bool = field(default=False, name="strictARP")
    tcp_timeout: Duration = NONE
    tcp_fin_timeout: Duration = NONE
    udp_timeout: Duration = NONE


class Logging(Shape, frozen=True):
    """How messages are written. ``flushFrequency`` is a duration or a number of nanoseconds."""

    format: str = ""
    flush_frequency: str | int = 0
    verbosity: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    vmodule: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


class Winkernel(Shape, frozen=True):
    """What matters on Windows."""

    network_name: str = ""
    source_vip: str = ""
    enable_dsr: bool = field(default=False, name="enableDSR")
    root_hns_endpoint_name: str = ""
    forward_health_check_vip: bool = False


class KubeProxy(Shape, frozen=True):
    """KubeProxyConfiguration, but for ``apiVersion`` and ``kind``."""

    bind_address: str = ""
    bind_address_hard_fail: bool = False
    client_connection: ClientConnection = ClientConnection()
    cluster_cidr: str = field(default="", name="clusterCIDR")
    config_sync_period: Duration = NONE
    conntrack: Conntrack = Conntrack()
    detect_local: DetectLocal = DetectLocal()
    detect_local_mode: str = ""
    enable_profiling: bool = False
    feature_gates: dict[str, bool] = field(default_factory=dict)
    healthz_bind_address: str = ""
    hostname_override: str = ""
    iptables: IPTables = IPTables()
    ipvs: IPVS = IPVS()
    logging: Logging = Logging()
    metrics_bind_address: str = ""
    mode: str = ""
    nftables: NFTables = NFTables()
    node_port_addresses: list[str] = field(default_factory=list)
    oom_score_adj: Number | None = None
    port_range: str = ""
    show_hidden_metrics_for_version: str = ""
    windows_run_as_service: bool = False
    winkernel: Winkernel = Winkernel()
