"""Options that several commands have, declared once."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import click

from bpfsvc.config import DEFAULT_HEALTHZ, DEFAULT_PIN_ROOT


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
