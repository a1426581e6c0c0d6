"""Options that several commands have, declared once."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import click

from bpfsvc.config import DEFAULT_HEALTHZ, DEFAULT_PIN_ROOT
from bpfsvc.datapath.sysctls import PortRange


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
