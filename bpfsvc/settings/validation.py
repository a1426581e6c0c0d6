"""What kube-proxy would not start with, it is not started with here: every field that is wrong.

The rules are those of kube-proxy's own validation, and no stricter: what it never looks at, such as
the block of a mode that is not chosen, may say anything.
"""

from __future__ import annotations

from typing import get_args

from bpfsvc.config import ProxyMode
from bpfsvc.detection import Mode
from bpfsvc.settings import addresses
from bpfsvc.settings.durations import Duration
from bpfsvc.settings.fitting import Findings
from bpfsvc.settings.shape import IPVS, Conntrack, KubeProxy, NFTables

_PLACE = "must be ADDRESS:PORT, such as"


def check(given: KubeProxy, found: Findings) -> None:
    """Note every field of completed settings that cannot be used; the mode may still be empty."""
    _one_of(found, "mode", given.mode, ("", *get_args(ProxyMode)))
    if given.mode in ("", "iptables"):
        _block(given.iptables, "iptables", found)
    if given.mode in ("", "nftables"):
        _block(given.nftables, "nftables", found)
    if given.mode == "ipvs":
        _ipvs(given.ipvs, found)
    if not given.config_sync_period > Duration():
        found.refuse(("configSyncPeriod",), "must be greater than 0")
    _addresses(given, found)
    _detection(given, found)
    _conntrack(given.conntrack, found)
    if given.hostname_override and not given.hostname_override.strip():
        found.refuse(("hostnameOverride",), "must not be blank")
    if given.client_connection.burst < 0:
        found.refuse(("clientConnection", "burst"), "must be at least 0")
    if not -1000 <= (given.oom_score_adj or 0) <= 1000:
        found.refuse(("oomScoreAdj",), f"must be -1000 to 1000, not {given.oom_score_adj}")
    _one_of(found, "logging.format", given.logging.format, ("text", "json"))


def _addresses(given: KubeProxy, found: Findings) -> None:
    if addresses.packed(given.bind_address) is None:
        found.refuse(("bindAddress",), f"must be an IP address, not {given.bind_address!r}")
    healthz, metrics = given.healthz_bind_address, given.metrics_bind_address
    if healthz and not addresses.place(healthz):
        found.refuse(("healthzBindAddress",), f"{_PLACE} 0.0.0.0:10256, not {healthz!r}")
    if not addresses.place(metrics):
        found.refuse(("metricsBindAddress",), f"{_PLACE} 127.0.0.1:10249, not {metrics!r}")
    trouble = addresses.nodeport_trouble(given.node_port_addresses)
    if trouble:
        number, reason = trouble
        found.refuse(("nodePortAddresses", number), reason)


def _detection(given: KubeProxy, found: Findings) -> None:
    mode = given.detect_local_mode
    _one_of(found, "detectLocalMode", mode, get_args(Mode))
    needs = {
        "BridgeInterface": ("bridgeInterface", given.detect_local.bridge_interface),
        "InterfaceNamePrefix": ("interfaceNamePrefix", given.detect_local.interface_name_prefix),
    }
    field, value = needs.get(mode, ("", "none"))
    if not value.strip():
        found.refuse(("detectLocal", field), f"must be given, as {mode} says nothing by itself")
    ranges = addresses.cluster_ranges(given.cluster_cidr)
    families = [addresses.range_family(each) for each in ranges]
    if not all(families):
        wrong = ranges[families.index(0)]
        found.refuse(("clusterCIDR",), f"must be a CIDR such as 10.244.0.0/16, not {wrong!r}")
    elif len(set(families)) != len(families):
        found.refuse(
            ("clusterCIDR",), f"must be at most one CIDR per family, not {given.cluster_cidr!r}"
        )


def _block(block: NFTables, name: str, found: Findings) -> None:
    if not 0 <= (block.masquerade_bit or 0) <= 31:
        found.refuse((name, "masqueradeBit"), f"must be 0 to 31, not {block.masquerade_bit}")
    _periods(block, name, found)


def _periods(block: NFTables | IPVS, name: str, found: Findings) -> None:
    if not block.sync_period > Duration():
        found.refuse((name, "syncPeriod"), "must be greater than 0")
    if block.min_sync_period < Duration():
        found.refuse((name, "minSyncPeriod"), "must be at least 0")
    elif block.min_sync_period > block.sync_period > Duration():
        found.refuse(
            (name, "minSyncPeriod"), f"must not be longer than syncPeriod ({block.sync_period})"
        )


def _ipvs(block: IPVS, found: Findings) -> None:
    _periods(block, "ipvs", found)
    times = {
        "tcpTimeout": block.tcp_timeout,
        "tcpFinTimeout": block.tcp_fin_timeout,
        "udpTimeout": block.udp_timeout,
    }
    for field, value in times.items():
        if value < Duration():
            found.refuse(("ipvs", field), "must be at least 0")
    for number, text in enumerate(block.exclude_cidrs):
        if not addresses.range_family(text):
            found.refuse(
                ("ipvs", "excludeCIDRs", number),
                f"must be a CIDR such as 10.0.0.0/8, not {text!r}",
            )


def _conntrack(given: Conntrack, found: Findings) -> None:
    zero = Duration()
    below = {
        "maxPerCore": (given.max_per_core or 0) < 0,
        "min": (given.min or 0) < 0,
        "tcpEstablishedTimeout": (given.tcp_established_timeout or zero) < zero,
        "tcpCloseWaitTimeout": (given.tcp_close_wait_timeout or zero) < zero,
        "udpTimeout": given.udp_timeout < zero,
        "udpStreamTimeout": given.udp_stream_timeout < zero,
    }
    for field, is_below in below.items():
        if is_below:
            found.refuse(("conntrack", field), "must be at least 0")


def _one_of(found: Findings, field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        words = ", ".join(word for word in allowed if word)
        found.refuse(tuple(field.split(".")), f"must be one of {words}, not {value!r}")
