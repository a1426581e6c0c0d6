"""The first lines of the log: version, node, settings; and the line that ends the start."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence

from bpfsvc import __version__
from bpfsvc.base.texts import count_text, list_text
from bpfsvc.config.config import Config
from bpfsvc.services.scheduling.schedulers import RANDOM

_log = logging.getLogger("bpfsvc")

_SHOWN = 16
"""Interfaces that a line names: a node may have hundreds, one for each pod."""

_SOCKET_LB = {
    "all": "socket LB for the node and its pods",
    "host": "socket LB for the node",
    "off": "no socket LB",
}


def log_start(config: Config) -> None:
    """Log version, node and settings, before any other line."""
    for line in start_lines(config):
        _log.info("%s", line)


def log_shadow_start(config: Config) -> None:
    """Log version and node; an agent in shadow mode does not use the settings."""
    _log.info("shadow mode: %s", next(start_lines(config)))


def start_lines(config: Config) -> Iterator[str]:
    """Yield the first lines."""
    yield (
        f"bpfsvc {__version__} on node {config.node_name}, kernel {os.uname().release}:"
        f" mode {config.mode}, objects from {_source_text(config)}"
    )
    ports = config.masquerade_ports
    on = [
        _SOCKET_LB[config.socket_lb if config.cgroup_root else "off"],
        f"fast path {config.fast_path}",
        f"XDP on {','.join(config.xdp)}" if config.xdp else "no XDP",
        f"masquerade ports {ports.first}-{ports.last}",
    ]
    if config.scheduler != RANDOM:
        on.append(f"scheduler {config.scheduler}")
    yield f"settings: {', '.join(on)}"


def log_ready(
    services: int, seconds: float, attached: Sequence[str], with_xdp: Sequence[str]
) -> None:
    """Log the line that ends the start."""
    _log.info("%s", ready_line(services, seconds, attached, with_xdp))


def ready_line(
    services: int, seconds: float, attached: Sequence[str], with_xdp: Sequence[str]
) -> str:
    """Return the line that ends the start; ``attached`` and ``with_xdp`` name interfaces."""
    programmed = count_text(services, "Service")
    devices = list_text(attached, _SHOWN) or "no interface"
    xdp = f"; XDP on {list_text(with_xdp, _SHOWN)}" if with_xdp else ""
    return f"ready: {programmed} in the kernel after {seconds:.2f} s; attached to {devices}{xdp}"


def _source_text(config: Config) -> str:
    if config.manifests:
        return f"the manifests in {config.manifests}"
    if config.master:
        return f"the API server {config.master}"
    if config.kubeconfig:
        return f"the API server of {config.kubeconfig}"
    return "the API server of this cluster"
