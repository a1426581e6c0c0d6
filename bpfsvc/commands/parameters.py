"""Options that several commands have, declared once."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import click

from bpfsvc.config import DEFAULT_HEALTHZ, DEFAULT_PIN_ROOT
from bpfsvc.datapath.sysctls import PortRange
from bpfsvc.detection import Mode
from bpfsvc.errors import UsageError
from bpfsvc.nodeports import PRIMARY


class AddressAndPort(click.ParamType[Any]):
    """``ADDRESS:PORT``, ``[V6]:PORT``, or an empty text for "do not"."""

    name = "address:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int] | None:
        """Check and split."""
        if value is None or isinstance(value, tuple):
            return value
        if not value:
            return None
        host, colon, port = str(value).rpartition(":")
        try:
            if not colon or not 1 <= int(port) <= 65535:
                raise ValueError
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            self.fail(f"{value!r} is not ADDRESS:PORT, such as {DEFAULT_HEALTHZ}", param, ctx)
        return str(address), int(port)


class CidrList(click.ParamType[Any]):
    """CIDRs with commas between them; ``one_per_family``: at most one of IPv4 and one of IPv6.

    The word ``alone`` may stand in place of them.
    """

    name = "cidr[,cidr]"

    def __init__(self, *, one_per_family: bool = False, alone: str = "") -> None:
        self._one_per_family = one_per_family
        self._alone = alone

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Check and split."""
        if isinstance(value, tuple):
            return value
        found = tuple(part.strip() for part in str(value).split(",") if part.strip())
        if self._alone and found == (self._alone,):
            return found
        try:
            versions = [ipaddress.ip_network(one, strict=False).version for one in found]
        except ValueError as error:
            self.fail(f"{error}; give CIDRs such as 10.244.0.0/16,fd44::/48", param, ctx)
        if self._one_per_family and len(set(versions)) != len(versions):
            self.fail(f"{value}: give at most one CIDR per family", param, ctx)
        return found


class Ports(click.ParamType[Any]):
    """``FIRST-LAST``."""

    name = "first-last"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> PortRange:
        """Check and split."""
        if isinstance(value, PortRange):
            return value
        first, dash, last = str(value).partition("-")
        if not (dash and first.isdigit() and last.isdigit()):
            self.fail(f"{value!r} is not FIRST-LAST, such as 10000-29999", param, ctx)
        return PortRange(int(first), int(last))


pin_root = click.option(
    "--pin-root",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=DEFAULT_PIN_ROOT,
    show_default=True,
    help="Directory in a bpf file system that belongs to the agent.",
)

healthz = click.option(
    "--healthz-bind-address",
    "healthz",
    type=AddressAndPort(),
    default=DEFAULT_HEALTHZ,
    show_default=True,
    help="Where the agent serves /healthz; '' for nowhere.",
)


NODE_SETUP: Mapping[str, Mapping[str, Any]] = {
    "--hostname-override": {
        "metavar": "NAME",
        "default": None,
        "help": "Name of this node; the host's name if not given.",
    },
    "--detect-local-mode": {
        "type": click.Choice(get_args(Mode)),
        "default": "ClusterCIDR",
        "show_default": True,
        "help": "How pods are told from others: range of the cluster or of the Node object, "
        "interfaces.",
    },
    "--cluster-cidr": {
        "type": CidrList(one_per_family=True),
        "default": (),
        "help": "Range of the pods, one per family; other clients of a cluster IP are masqueraded.",
    },
    "--pod-bridge-interface": {
        "metavar": "NAME",
        "default": "",
        "help": "With --detect-local-mode BridgeInterface: the bridge that pods are on.",
    },
    "--pod-interface-name-prefix": {
        "metavar": "PREFIX",
        "default": "",
        "help": "With --detect-local-mode InterfaceNamePrefix: what names of pods' interfaces "
        "begin with.",
    },
    "--masquerade-all": {
        "is_flag": True,
        "help": "Masquerade all that goes to a cluster IP.",
    },
    "--source-ranges-for-all": {
        "is_flag": True,
        "help": "Hold loadBalancerSourceRanges against clients of NodePorts and externalIPs too.",
    },
    "--nodeport-addresses": {
        "metavar": f"CIDR,...|{PRIMARY}",
        "type": CidrList(alone=PRIMARY),
        "default": (PRIMARY,),
        "show_default": PRIMARY,
        "help": "Where NodePorts answer. A family without a CIDR does on all addresses.",
    },
    "--localhost-nodeports/--no-localhost-nodeports": {
        "default": True,
        "show_default": True,
        "help": "Let NodePorts answer on IPv4 loopback too, unless --nodeport-addresses exclude "
        "it.",
    },
}
"""Options that say which node it is and how Services are meant to work there."""


def node_setup(command: Any) -> Any:
    """Add all of ``NODE_SETUP``."""
    for name, attributes in reversed([*NODE_SETUP.items()]):
        command = click.option(name, **attributes)(command)
    return command


def node_name(override: str | None) -> str:
    """Give the name of this node, as kube-proxy does: trimmed and in lower case."""
    name = (socket.gethostname() if override is None else override).strip().lower()
    if not name:
        raise UsageError("--hostname-override is blank", "give the name of this Node object")
    return name
