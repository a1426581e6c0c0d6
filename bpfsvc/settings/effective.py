"""Settings as the agent works with them, and as people read them again."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import yaml

from bpfsvc.address import pack
from bpfsvc.config import Config, Lifetimes, ProxyMode
from bpfsvc.datapath.conntrack import Conntrack
from bpfsvc.detection import Detection, Mode
from bpfsvc.errors import UsageError
from bpfsvc.settings import addresses, defaults, own, shape
from bpfsvc.settings.durations import Duration
from bpfsvc.settings.loading import Settings
from bpfsvc.settings.notes import EXTERNAL_IPS


def config(settings: Settings, node_name: str, cgroup_root: Path | None) -> Config:
    """Make what an agent is told. ``cgroup_root`` is what was found on this machine."""
    proxy, mine = settings.proxy, settings.own
    manifests = Path(mine.manifests) if mine.manifests else None
    kubeconfig = proxy.client_connection.kubeconfig
    mode = cast(ProxyMode, proxy.mode)
    uplinks = tuple(each for each in mine.xdp if each != own.OFF)
    keep = _conntrack(proxy.conntrack, sees_all=not uplinks)
    return Config(
        manifests=manifests,
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
        master=settings.master,
        last_good=None if manifests else _path(mine.last_good),
        patience_seconds=mine.last_good_after.seconds,
        node_name=node_name,
        mode=mode,
        detection=Detection(
            mode=cast(Mode, proxy.detect_local_mode),
            cluster_cidrs=addresses.cluster_ranges(proxy.cluster_cidr),
            bridge=proxy.detect_local.bridge_interface,
            prefix=proxy.detect_local.interface_name_prefix,
        ),
        masquerade_all=defaults.masquerade_all(proxy),
        source_ranges_for_all=mine.source_ranges_for_all,
        allow_external_ips=proxy.feature_gates.get(EXTERNAL_IPS, True),
        nodeport_addresses=tuple(proxy.node_port_addresses),
        localhost_nodeports=proxy.iptables.localhost_node_ports is not False,
        node_ports=own.ports(mine.service_node_port_range),
        address_override=_override(proxy.bind_address),
        pin_root=Path(mine.pin_root),
        cache=_path(mine.cache),
        cgroup_root=cgroup_root,
        socket_lb=mine.socket_lb,
        mesh_ports=tuple(mine.mesh_ports),
        devices=tuple(mine.devices),
        fast_path=mine.fast_path,
        xdp=uplinks,
        attach=mine.attach,
        tc_priority=mine.tc_priority,
        masquerade_ports=own.ports(mine.masquerade_ports),
        sizes=mine.sizes(),
        lifetimes=_lifetimes(keep),
        conntrack=keep,
        oom_score_adj=proxy.oom_score_adj,
        healthz=addresses.place(proxy.healthz_bind_address),
        metrics=addresses.place(proxy.metrics_bind_address),
        bind_address_hard_fail=proxy.bind_address_hard_fail,
        sync_seconds=defaults.sync_period(proxy).seconds,
        profiling=proxy.enable_profiling,
        document=document(settings),
    )


def document(settings: Settings) -> dict[str, object]:
    """Give the effective configuration, each block under the group of its API."""
    blocks = zip((shape.API_VERSION, own.API_VERSION), settings.documents(), strict=True)
    return {version.partition("/")[0]: block for version, block in blocks}


def write(settings: Settings, path: Path) -> None:
    """Write the effective configuration as a file that ``--config`` takes."""
    try:
        path.write_text(yaml.safe_dump_all(settings.documents(), allow_unicode=True))
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", "name another file with --write-config-to"
        ) from error


def _path(text: str) -> Path | None:
    return Path(text) if text and text != own.NOWHERE else None


def _override(text: str) -> tuple[bytes, ...]:
    address = pack(text)
    return () if address in addresses.UNSPECIFIED else (address,)


def _conntrack(given: shape.Conntrack, *, sees_all: bool) -> Conntrack:
    """``sees_all``: else, what comes after packets that went past netfilter is outside its window.

    Rules that drop what is invalid would then end long transfers.
    """
    return Conntrack(
        max_per_core=given.max_per_core or 0,
        min=given.min or 0,
        tcp_established=_seconds(given.tcp_established_timeout),
        tcp_close_wait=_seconds(given.tcp_close_wait_timeout),
        tcp_be_liberal=given.tcp_be_liberal or not sees_all,
        udp=_seconds(given.udp_timeout),
        udp_stream=_seconds(given.udp_stream_timeout),
    )


def _seconds(given: Duration | None) -> int:
    return int(given.seconds) if given else 0


def _lifetimes(keep: Conntrack) -> Lifetimes:
    """Keep our own connections as long as netfilter its; what it is to leave as it is, we do."""
    usual = Lifetimes()
    return Lifetimes(
        tcp_established=keep.tcp_established or usual.tcp_established,
        tcp_half_closed=keep.tcp_close_wait or usual.tcp_half_closed,
        udp=keep.udp_stream or keep.udp or usual.udp,
    )
