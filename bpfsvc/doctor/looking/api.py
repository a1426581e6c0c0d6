"""The API server: where it is, whether that is a Service's address, and whether it answers."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from pathlib import Path
from urllib.parse import urlsplit

from bpfsvc.address import unpack
from bpfsvc.datapath.netlink.devices import Network
from bpfsvc.doctor.facts import ApiServer
from bpfsvc.errors import BpfsvcError
from bpfsvc.takeover import names
from bpfsvc.takeover.leftovers import Leftovers

_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_SECONDS = 3.0


def look(kubeconfig: Path | None, master: str, network: Network, found: Leftovers) -> ApiServer:
    """Look, and connect if somebody says where. ``found`` knows addresses of Services."""
    from_environment = kubeconfig is None and not master
    if from_environment and _HOST not in os.environ:
        return ApiServer()
    try:
        server = _in_environment() if from_environment else _server(kubeconfig, master)
    except BpfsvcError as error:
        return ApiServer(trouble=error.message)
    host, port = _place(server)
    return ApiServer(
        server=server,
        from_environment=from_environment,
        is_service=is_service(host, network, found),
        unreachable=_connect(host, port),
    )


def is_service(host: str, network: Network, found: Leftovers) -> bool:
    """Whether kube-proxy knew an address as a Service's: by its rules or its device."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    held = {
        unpack(one.address)
        for device in network.devices
        if device.name == names.DUMMY_DEVICE
        for one in device.addresses
    }
    whole = f" -d {address}/{address.max_prefixlen} "
    rules = (
        rule
        for tables in found.saved.values()
        for table in tables
        for rule in table.rules
        if rule.startswith("-A KUBE-SERVICES ")
    )
    return (
        str(address) in held
        or any(whole in rule for rule in rules)
        or re.search(rf"(?<![\w.:]){re.escape(str(address))}(?![\w.:])", found.nft_services)
        is not None
    )


def _in_environment() -> str:
    host = os.environ[_HOST]
    return f"https://{f'[{host}]' if ':' in host else host}:{os.environ.get(_PORT, '443')}"


def _server(kubeconfig: Path | None, master: str) -> str:
    # Only here: the library takes half a second, and is not needed to look at a node.
    from bpfsvc.apiserver.connection import connect

    return connect(kubeconfig, master, user_agent="bpfsvc-doctor").server


def _place(server: str) -> tuple[str, int]:
    parts = urlsplit(server if "//" in server else f"//{server}")
    return parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443)


def _connect(host: str, port: int) -> str:
    """Try; give the reason if it fails. What answers does not matter."""
    try:
        socket.create_connection((host, port), timeout=_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
