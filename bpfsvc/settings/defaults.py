"""What holds for fields that say nothing: kube-proxy's own defaults, and which mode's block counts.

A zero in a file is nothing said, except where the shape allows None; a zero from a flag is meant,
so flags are laid over the result once more.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from bpfsvc.nodeports import PRIMARY
from bpfsvc.settings import addresses
from bpfsvc.settings.durations import Duration
from bpfsvc.settings.shape import Conntrack, KubeProxy, NFTables

HEALTHZ_PORT = 10256
METRICS_PORT = 10249
MASQUERADE_BIT = 14
OOM_SCORE = -999
PROTOBUF = "application/vnd.kubernetes.protobuf"

_SYNC = Duration.of(30)
_MIN_SYNC = Duration.of(1)

T = TypeVar("T")
Block = TypeVar("Block", bound=NFTables)


def complete(given: KubeProxy) -> KubeProxy:
    """Fill in everything but the mode, and what depends on it."""
    six = ":" in given.bind_address
    client, logging = given.client_connection, given.logging
    return replace(
        given,
        bind_address=given.bind_address or "0.0.0.0",
        healthz_bind_address=addresses.with_port(
            given.healthz_bind_address or ("::" if six else "0.0.0.0"), HEALTHZ_PORT
        ),
        metrics_bind_address=addresses.with_port(
            given.metrics_bind_address or ("::1" if six else "127.0.0.1"), METRICS_PORT
        ),
        client_connection=replace(
            client,
            content_type=client.content_type or PROTOBUF,
            qps=client.qps or 5.0,
            burst=client.burst or 10,
        ),
        config_sync_period=given.config_sync_period or Duration.of(15 * 60),
        conntrack=_conntrack(given.conntrack),
        detect_local_mode=given.detect_local_mode or "ClusterCIDR",
        iptables=replace(
            _block(given.iptables),
            localhost_node_ports=_or(given.iptables.localhost_node_ports, True),
        ),
        nftables=_block(given.nftables),
        ipvs=replace(
            given.ipvs,
            sync_period=given.ipvs.sync_period or _SYNC,
            scheduler=given.ipvs.scheduler or "rr",
        ),
        logging=replace(
            logging,
            format=logging.format or "text",
            flush_frequency=logging.flush_frequency or "5s",
        ),
        oom_score_adj=_or(given.oom_score_adj, OOM_SCORE),
    )


def settle_mode(given: KubeProxy) -> KubeProxy:
    """Choose the mode where none is named, and what depends on the mode.

    kube-proxy's is iptables then, so what somebody wrote into that block was meant; the behaviour
    is that of nftables mode, which bpfsvc has in any case.
    """
    if not given.mode:
        old, new, unsaid = given.iptables, given.nftables, complete(KubeProxy()).nftables
        given = replace(
            given,
            mode="nftables",
            nftables=NFTables(
                masquerade_bit=_said(new.masquerade_bit, old.masquerade_bit, MASQUERADE_BIT),
                masquerade_all=new.masquerade_all or old.masquerade_all,
                sync_period=_said(new.sync_period, old.sync_period, unsaid.sync_period),
                min_sync_period=_said(
                    new.min_sync_period, old.min_sync_period, unsaid.min_sync_period
                ),
            ),
        )
    if given.mode == "nftables" and not given.node_port_addresses:
        given = replace(given, node_port_addresses=[PRIMARY])
    return given


def sync_period(given: KubeProxy) -> Duration:
    """Give ``syncPeriod`` of the mode chosen."""
    blocks = {"iptables": given.iptables.sync_period, "ipvs": given.ipvs.sync_period}
    return blocks.get(given.mode, given.nftables.sync_period)


def masquerade_all(given: KubeProxy) -> bool:
    """Give ``masqueradeAll`` of the mode chosen; ipvs has that of iptables."""
    block = given.nftables if given.mode == "nftables" else given.iptables
    return block.masquerade_all


def _conntrack(given: Conntrack) -> Conntrack:
    return replace(
        given,
        max_per_core=_or(given.max_per_core, 32768),
        min=_or(given.min, 131072),
        tcp_established_timeout=_or(given.tcp_established_timeout, Duration.of(24 * 3600)),
        tcp_close_wait_timeout=_or(given.tcp_close_wait_timeout, Duration.of(3600)),
    )


def _block(given: Block) -> Block:
    return replace(
        given,
        masquerade_bit=_or(given.masquerade_bit, MASQUERADE_BIT),
        sync_period=given.sync_period or _SYNC,
        min_sync_period=given.min_sync_period or _MIN_SYNC,
    )


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


def _said(first: T, second: T, default: T) -> T:
    """Give the first that says something else than the default does."""
    return first if first != default else second
