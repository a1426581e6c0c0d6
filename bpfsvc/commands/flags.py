"""What flags say, as :mod:`bpfsvc.settings` takes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from bpfsvc.commands.kubeproxy import KUBE_PROXY
from bpfsvc.commands.options import OWN, Option
from bpfsvc.config import DEFAULT_HEALTHZ, DEFAULT_METRICS
from bpfsvc.datapath.sysctls import PortRange
from bpfsvc.settings import addresses
from bpfsvc.settings.loading import Flag, Given


def settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add every option that sets a field."""
    for option in reversed((*KUBE_PROXY, *OWN)):
        # kube-proxy's only short flag.
        names = ("-v", option.name) if option.name == "--v" else (option.name,)
        command = click.option(*names, **option.attributes)(command)
    return command


def given(values: Mapping[str, Any], *, file: Path | None, master: str) -> Given:
    """Take the values of these options as click hands them over."""
    # A DaemonSet may hand over a name that is empty: nothing said.
    name = values["hostname_override"] or None
    values = {**values, **_places(values), "hostname_override": name}
    return Given(
        file=file,
        master=master,
        proxy=tuple(_flags(KUBE_PROXY, values)),
        own=tuple(_flags(OWN, values)),
        idle=tuple(
            option.flag
            for option in KUBE_PROXY
            if not option.fields and option.flag not in _PORTS and _said(option, values) is not None
        ),
        names={_path(field): option.flag for option in KUBE_PROXY for field in option.fields},
    )


_PORTS = ("--healthz-port", "--metrics-port")


def _places(values: Mapping[str, Any]) -> dict[str, str | None]:
    """Give the two addresses as kube-proxy's rules have them, with the deprecated ports.

    A port counts where the address has none; 0 is nowhere. An empty address is nowhere for
    ``/healthz``, and nothing said for metrics.
    """
    places: dict[str, str | None] = {}
    for name, usual in (("healthz", DEFAULT_HEALTHZ), ("metrics", DEFAULT_METRICS)):
        address, port = values[f"{name}_bind_address"], values[f"{name}_port"]
        if name == "metrics":
            address = address or None
        host, _, usual_port = usual.rpartition(":")
        if port == 0:
            address = ""
        elif address or port is not None:
            address = addresses.with_port(address or host, port or int(usual_port))
        places[f"{name}_bind_address"] = address
    return places


def _flags(options: tuple[Option, ...], values: Mapping[str, Any]) -> Iterator[Flag]:
    for option in options:
        value = _said(option, values)
        if value is not None:
            for field in option.fields:
                yield Flag(option.flag, _path(field), value)


def _said(option: Option, values: Mapping[str, Any]) -> Any:
    """Give a flag's value as it would stand in a file, or None if it was not given."""
    value = values[option.parameter]
    if option.attributes.get("multiple"):
        return [one for each in value for one in each] if value else None
    if isinstance(value, PortRange):
        return str(value)
    if isinstance(value, tuple):
        return ",".join(value) if option.fields == ("clusterCIDR",) else [*value]
    return value


def _path(field: str) -> tuple[str, ...]:
    return tuple(field.split("."))
