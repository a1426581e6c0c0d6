"""KubeProxyConfiguration v1alpha1: its fields, with kube-proxy's types and defaults; its rules.

The rules are kube-proxy's own validation, and no stricter: fields that kube-proxy never looks at,
such as the block of a mode that is not chosen, may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, TypeVar, get_args

from msgspec import Meta, field
from msgspec.structs import replace

from bpfsvc.base.address import address_and_port, cidr_family, is_address, with_port
from bpfsvc.base.yaml_documents import FieldPath
from bpfsvc.config.config import ProxyMode
from bpfsvc.config.durations import Duration
from bpfsvc.config.fields import ZERO_COUNTS, FieldError, Shape
from bpfsvc.config.local_detector import Mode
from bpfsvc.services.rules.nodeport_addresses import KEYWORDS, PRIMARY

API_VERSION = "kubeproxy.config.k8s.io/v1alpha1"
KIND = "KubeProxyConfiguration"

HEALTHZ_PORT = 10256
METRICS_PORT = 10249

EXTERNAL_IPS = "AllowServiceExternalIPs"
"""The only feature gate that has an effect here."""

ZERO = Duration()
SYNC_PERIOD = Duration.of(30)
MIN_SYNC_PERIOD = Duration.of(1)

T = TypeVar("T")

Number = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
"""Go's int32."""


class ClientConnection(Shape, frozen=True):
    """The connection to the API server."""

    kubeconfig: str = ""
    accept_content_types: str = ""
    content_type: str = "application/vnd.kubernetes.protobuf"
    qps: float = 5.0
    burst: Number = 10


class Conntrack(Shape, frozen=True):
    """The connection tracking of netfilter."""

    max_per_core: Annotated[Number, ZERO_COUNTS] = 32768
    min: Annotated[Number, ZERO_COUNTS] = 131072
    tcp_established_timeout: Annotated[Duration, ZERO_COUNTS] = Duration.of(24 * 3600)
    tcp_close_wait_timeout: Annotated[Duration, ZERO_COUNTS] = Duration.of(3600)
    tcp_be_liberal: bool = False
    udp_timeout: Duration = ZERO
    udp_stream_timeout: Duration = ZERO


class DetectLocal(Shape, frozen=True):
    """The names for the two modes that identify pods by interface."""

    bridge_interface: str = ""
    interface_name_prefix: str = ""


class NFTables(Shape, frozen=True):
    """The block of mode nftables."""

    masquerade_bit: Annotated[Number, ZERO_COUNTS] = 14
    masquerade_all: bool = False
    sync_period: Duration = SYNC_PERIOD
    min_sync_period: Duration = MIN_SYNC_PERIOD


class IPTables(NFTables, frozen=True):
    """The block of mode iptables; mode ipvs takes ``masqueradeAll`` from it."""

    localhost_node_ports: Annotated[bool, ZERO_COUNTS] = True


class IPVS(Shape, frozen=True):
    """The block of mode ipvs."""

    sync_period: Duration = SYNC_PERIOD
    min_sync_period: Duration = ZERO
    scheduler: str = "rr"
    exclude_cidrs: list[str] = field(default_factory=list, name="excludeCIDRs")
    strict_arp: bool = field(default=False, name="strictARP")
    tcp_timeout: Duration = ZERO
    tcp_fin_timeout: Duration = ZERO
    udp_timeout: Duration = ZERO


class Logging(Shape, frozen=True):
    """How messages are written. ``flushFrequency`` is a duration or a number of nanoseconds."""

    format: str = "text"
    flush_frequency: str | int = "5s"
    verbosity: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    vmodule: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


class Winkernel(Shape, frozen=True):
    """Settings for Windows."""

    network_name: str = ""
    source_vip: str = ""
    enable_dsr: bool = field(default=False, name="enableDSR")
    root_hns_endpoint_name: str = ""
    forward_health_check_vip: bool = False


class KubeProxyConfiguration(Shape, frozen=True):
    """KubeProxyConfiguration without ``apiVersion`` and ``kind``.

    Four defaults depend on other fields: :func:`complete` fills in the two addresses that are None,
    :func:`settle_mode` the mode and ``nodePortAddresses``.
    """

    bind_address: str = "0.0.0.0"
    bind_address_hard_fail: bool = False
    client_connection: ClientConnection = ClientConnection()
    cluster_cidr: str = field(default="", name="clusterCIDR")
    config_sync_period: Duration = Duration.of(15 * 60)
    conntrack: Conntrack = Conntrack()
    detect_local: DetectLocal = DetectLocal()
    detect_local_mode: str = "ClusterCIDR"
    enable_profiling: bool = False
    feature_gates: dict[str, bool] = field(default_factory=dict)
    healthz_bind_address: str | None = None
    hostname_override: str = ""
    iptables: IPTables = IPTables()
    ipvs: IPVS = IPVS()
    logging: Logging = Logging()
    metrics_bind_address: str | None = None
    mode: str = ""
    nftables: NFTables = NFTables()
    node_port_addresses: list[str] = field(default_factory=list)
    oom_score_adj: Annotated[Number, ZERO_COUNTS] = -999
    port_range: str = ""
    show_hidden_metrics_for_version: str = ""
    windows_run_as_service: bool = False
    winkernel: Winkernel = Winkernel()


def complete(given: KubeProxyConfiguration) -> KubeProxyConfiguration:
    """Return it with the two addresses to serve on, which follow the family of ``bindAddress``."""
    healthz, metrics = given.healthz_bind_address, given.metrics_bind_address
    usual = ("::", "::1") if ":" in given.bind_address else ("0.0.0.0", "127.0.0.1")
    return replace(
        given,
        healthz_bind_address=with_port(usual[0] if healthz is None else healthz, HEALTHZ_PORT),
        metrics_bind_address=with_port(usual[1] if metrics is None else metrics, METRICS_PORT),
    )


def settle_mode(
    given: KubeProxyConfiguration, empty: ProxyMode | None = None
) -> KubeProxyConfiguration:
    """Return it with a mode, and with the fields that depend on the mode.

    ``empty``: what the mode of a file means that says that there is none, as those that kubeadm
    wrote for kube-proxy did until 1.36; None for a file that says nothing.

    Without a mode, values in the iptables block were meant, since iptables is kube-proxy's default.
    bpfsvc behaves as mode nftables, so it uses these values where the nftables block has its
    default.
    """
    if not given.mode and empty:
        given = replace(given, mode=empty)
    if not given.mode:
        new, old = given.nftables, given.iptables
        given = replace(
            given,
            mode="nftables",
            nftables=NFTables(
                masquerade_bit=_unless(
                    NFTables().masquerade_bit, new.masquerade_bit, old.masquerade_bit
                ),
                masquerade_all=new.masquerade_all or old.masquerade_all,
                sync_period=_unless(SYNC_PERIOD, new.sync_period, old.sync_period),
                min_sync_period=_unless(MIN_SYNC_PERIOD, new.min_sync_period, old.min_sync_period),
            ),
        )
    if given.mode == "nftables" and not given.node_port_addresses:
        given = replace(given, node_port_addresses=[PRIMARY])
    return given


def _unless(default: T, first: T, second: T) -> T:
    """Return ``first`` unless it is the default."""
    return first if first != default else second


def cluster_cidrs(given: KubeProxyConfiguration) -> tuple[str, ...]:
    """Return the CIDRs of ``clusterCIDR``."""
    text = given.cluster_cidr
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def sync_period(given: KubeProxyConfiguration) -> Duration:
    """Return ``syncPeriod`` of the chosen mode."""
    periods = {"iptables": given.iptables.sync_period, "ipvs": given.ipvs.sync_period}
    return periods.get(given.mode, given.nftables.sync_period)


def masquerade_all(given: KubeProxyConfiguration) -> bool:
    """Return ``masqueradeAll`` of the chosen mode; ipvs uses the iptables block."""
    block = given.nftables if given.mode == "nftables" else given.iptables
    return block.masquerade_all


def check(given: KubeProxyConfiguration) -> Iterator[FieldError]:
    """Yield every field of a completed document that cannot be used. The mode may be empty."""
    yield from _one_of(("mode",), given.mode, ("", *get_args(ProxyMode)))
    if given.mode in ("", "iptables"):
        yield from _check_block(given.iptables, "iptables")
    if given.mode in ("", "nftables"):
        yield from _check_block(given.nftables, "nftables")
    if given.mode == "ipvs":
        yield from _check_ipvs(given.ipvs)
    if not given.config_sync_period > ZERO:
        yield FieldError(("configSyncPeriod",), "must be greater than 0")
    yield from _check_addresses(given)
    yield from _check_detection(given)
    yield from _check_conntrack(given.conntrack)
    if given.hostname_override and not given.hostname_override.strip():
        yield FieldError(("hostnameOverride",), "must not be blank")
    if given.client_connection.burst < 0:
        yield FieldError(("clientConnection", "burst"), "must be at least 0")
    if not -1000 <= given.oom_score_adj <= 1000:
        yield FieldError(("oomScoreAdj",), f"must be -1000 to 1000, not {given.oom_score_adj}")
    yield from _one_of(("logging", "format"), given.logging.format, ("text", "json"))


def _check_addresses(given: KubeProxyConfiguration) -> Iterator[FieldError]:
    if not is_address(given.bind_address):
        yield FieldError(("bindAddress",), f"must be an IP address, not {given.bind_address!r}")
    healthz, metrics = given.healthz_bind_address, given.metrics_bind_address or ""
    form = "must be ADDRESS:PORT, such as"
    if healthz and not address_and_port(healthz):
        yield FieldError(("healthzBindAddress",), f"{form} 0.0.0.0:10256, not {healthz!r}")
    if not address_and_port(metrics):
        yield FieldError(("metricsBindAddress",), f"{form} 127.0.0.1:10249, not {metrics!r}")
    for number, text in enumerate(given.node_port_addresses):
        if text not in KEYWORDS and not cidr_family(text):
            *others, last = KEYWORDS
            form = f"must be a CIDR such as 10.0.0.0/8, or {', '.join(others)} or {last}"
            yield FieldError(("nodePortAddresses", number), f"{form}, not {text!r}")
            return


def _check_detection(given: KubeProxyConfiguration) -> Iterator[FieldError]:
    mode = given.detect_local_mode
    yield from _one_of(("detectLocalMode",), mode, get_args(Mode))
    needs = {
        "BridgeInterface": ("bridgeInterface", given.detect_local.bridge_interface),
        "InterfaceNamePrefix": ("interfaceNamePrefix", given.detect_local.interface_name_prefix),
    }
    name, value = needs.get(mode, ("", "none"))
    if not value.strip():
        yield FieldError(("detectLocal", name), f"must be given for detectLocalMode {mode}")
    cidrs = cluster_cidrs(given)
    families = [cidr_family(cidr) for cidr in cidrs]
    path = ("clusterCIDR",)
    if not all(families):
        wrong = cidrs[families.index(0)]
        yield FieldError(path, f"must be a CIDR such as 10.244.0.0/16, not {wrong!r}")
    elif len(set(families)) != len(families):
        yield FieldError(path, f"must be at most one CIDR per family, not {given.cluster_cidr!r}")


def _check_block(block: NFTables, name: str) -> Iterator[FieldError]:
    if not 0 <= block.masquerade_bit <= 31:
        yield FieldError((name, "masqueradeBit"), f"must be 0 to 31, not {block.masquerade_bit}")
    yield from _check_periods(block, name)


def _check_periods(block: NFTables | IPVS, name: str) -> Iterator[FieldError]:
    if not block.sync_period > ZERO:
        yield FieldError((name, "syncPeriod"), "must be greater than 0")
    path = (name, "minSyncPeriod")
    if block.min_sync_period < ZERO:
        yield FieldError(path, "must be at least 0")
    elif block.min_sync_period > block.sync_period > ZERO:
        yield FieldError(path, f"must not be longer than syncPeriod ({block.sync_period})")


def _check_ipvs(block: IPVS) -> Iterator[FieldError]:
    yield from _check_periods(block, "ipvs")
    yield from _at_least_zero(
        "ipvs",
        tcpTimeout=block.tcp_timeout >= ZERO,
        tcpFinTimeout=block.tcp_fin_timeout >= ZERO,
        udpTimeout=block.udp_timeout >= ZERO,
    )
    for number, text in enumerate(block.exclude_cidrs):
        if not cidr_family(text):
            path = ("ipvs", "excludeCIDRs", number)
            yield FieldError(path, f"must be a CIDR such as 10.0.0.0/8, not {text!r}")


def _check_conntrack(given: Conntrack) -> Iterator[FieldError]:
    return _at_least_zero(
        "conntrack",
        maxPerCore=given.max_per_core >= 0,
        min=given.min >= 0,
        tcpEstablishedTimeout=given.tcp_established_timeout >= ZERO,
        tcpCloseWaitTimeout=given.tcp_close_wait_timeout >= ZERO,
        udpTimeout=given.udp_timeout >= ZERO,
        udpStreamTimeout=given.udp_stream_timeout >= ZERO,
    )


def _at_least_zero(block: str, **is_so: bool) -> Iterator[FieldError]:
    for name, right in is_so.items():
        if not right:
            yield FieldError((block, name), "must be at least 0")


def _one_of(path: FieldPath, value: str, allowed: tuple[str, ...]) -> Iterator[FieldError]:
    if value not in allowed:
        words = ", ".join(word for word in allowed if word)
        yield FieldError(path, f"must be one of {words}, not {value!r}")
