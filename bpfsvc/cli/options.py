"""Options that several commands have, declared once. Flags with a field are in :mod:`.flags`."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from bpfsvc.base.address import address_and_port
from bpfsvc.base.errors import UsageError
from bpfsvc.cli import completion
from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_PIN_ROOT
from bpfsvc.config.kubeproxy_v1alpha1 import HEALTHZ_PORT

F = TypeVar("F", bound=Callable[..., Any])


class AddressAndPort(click.ParamType[Any]):
    """``ADDRESS:PORT``, ``[V6]:PORT``, or an empty text for None."""

    name = "address:port"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int] | None:
        """Check and split."""
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        endpoint = address_and_port(value)
        if value and not endpoint:
            self.fail(f"{value!r} is not ADDRESS:PORT, such as {DEFAULT_HEALTHZ}", param, ctx)
        return endpoint


DEFAULT_HEALTHZ = f"0.0.0.0:{HEALTHZ_PORT}"


def _usual_pin_root() -> Path:
    from bpfsvc.inspect.agent_configuration import usual_pin_root

    return usual_pin_root()


pin_root = click.option(
    "--pin-root",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=_usual_pin_root,
    show_default=f"that of the agent here, else {DEFAULT_PIN_ROOT}",
    is_eager=True,  # other defaults are those of the agent there
    help="The agent's directory in a bpf file system.",
)


def _agents_healthz(
    ctx: click.Context, option: click.Parameter, value: tuple[str, int] | str | None
) -> tuple[str, int] | None:
    """Return the given address; without one, the agent's own, or kube-proxy's."""
    source = ctx.get_parameter_source(option.name or "")
    if source is not ParameterSource.DEFAULT:
        return value  # type: ignore[return-value]
    from bpfsvc.inspect.agent_configuration import ask_configuration, healthz_of

    if agent := ask_configuration(ctx.params["pin_root"]):
        return healthz_of(agent)
    return address_and_port(DEFAULT_HEALTHZ)


namespace = click.option(
    "-n",
    "--namespace",
    metavar="NAMESPACE",
    default="",
    shell_complete=completion.namespaces,
    help="Only Services of this namespace.",
)

healthz = click.option(
    "--healthz-bind-address",
    "healthz",
    type=AddressAndPort(),
    callback=_agents_healthz,
    help="Where the agent serves /healthz; '' for nowhere."
    f"  [default: as the agent says, else {DEFAULT_HEALTHZ}]",
)

shadow_address = click.option(
    "--shadow-bind-address",
    "shadow_address",
    type=AddressAndPort(),
    default="127.0.0.1:10276",
    show_default=True,
    help="Where an agent in shadow mode serves health, metrics and its report; '' for nowhere.",
)

master = click.option(
    "--master",
    metavar="URL",
    default="",
    help="URL of the API server, instead of the kubeconfig's.",
)


def output(*formats: str) -> Callable[[F], F]:
    """Return ``-o``. The first format is the default and for people, the others for programs.

    ``wide`` is for people, too.
    """
    people = [name for name in formats if name in (formats[0], "wide")]
    programs = [name for name in formats if name not in people]
    readers = f"{' or '.join(people)} for people, {' or '.join(programs)} for programs"
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help=f"Output format: {readers}.",
    )


def node_name(override: str | None) -> str:
    """Return the name of this node, as kube-proxy does: trimmed and in lower case."""
    name = (socket.gethostname() if override is None else override).strip().lower()
    if not name:
        raise UsageError("--hostname-override is blank", "give the name of this Node object")
    return name
