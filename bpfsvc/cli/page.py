"""``bpfsvc page``: the page of this node, for a browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click

from bpfsvc import __version__
from bpfsvc.base.address import with_port
from bpfsvc.base.privileges import require_privileges
from bpfsvc.cli import options
from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_UI
from bpfsvc.page.answers import NodeAnswers
from bpfsvc.page.questions import Answers
from bpfsvc.page.server import ASSETS, FLEET_ASSETS, HandedPort, PageServer

_IDLE_SECONDS = 300.0
_NICE = 10
_OOM_SCORE = "1000"
_KUBECONFIG = "~/.kube/config"


@click.command()
@click.option(
    "--ui-bind-address",
    "address",
    type=options.AddressAndPort(),
    default=DEFAULT_UI,
    show_default=True,
    help="Where the page is served.",
)
@click.option(
    "--listener",
    type=click.IntRange(min=0),
    hidden=True,
    help="File descriptor of the agent's listening socket; the page ends with standard input.",
)
@click.option(
    "--idle-seconds",
    type=click.FloatRange(min=0.1),
    default=_IDLE_SECONDS,
    hidden=True,
    help="With --listener: without a request for so long, the page ends.",
)
@click.option("--fleet", is_flag=True, help="The page of all nodes; this may run anywhere.")
@click.option(
    "--kubeconfig",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --fleet: whose rights the page has. Default: $KUBECONFIG, or ~/.kube/config.",
)
@click.option(
    "--agents-namespace",
    metavar="NAMESPACE",
    default="kube-system",
    show_default=True,
    help="With --fleet: where the Pods of the agents are.",
)
@click.option(
    "--agents-port",
    type=click.IntRange(1, 65535),
    default=int(DEFAULT_UI.rpartition(":")[2]),
    show_default=True,
    help="With --fleet: the port of the agents' --ui-bind-address.",
)
@options.healthz
@options.pin_root
def page(
    address: tuple[str, int] | None,
    listener: int | None,
    idle_seconds: float,
    fleet: bool,
    kubeconfig: Path | None,
    agents_namespace: str,
    agents_port: int,
    healthz: tuple[str, int] | None,
    pin_root: Path,
) -> None:
    """Serve the page of this node until Ctrl-C, for a browser: Services, events and history.

    An agent with --ui-bind-address serves the same page by itself, so this is for a node whose
    agent does not, or for another port.

    With --fleet it serves the page of all nodes, on any machine that reaches the API server: each
    agent's page is asked through the API server, as kubectl port-forward does, with the rights of a
    kubeconfig. The page says which nodes do not answer, and why.
    """
    if fleet:
        _serve_fleet(address, kubeconfig, agents_namespace, agents_port)
        return
    require_privileges()
    answers = NodeAnswers(pin_root, healthz).by_path()
    if listener is not None:
        _give_way()
        handed = HandedPort(listener)
        server = PageServer(handed.address, answers, _log, handed)
        server.serve(sys.stdin.fileno(), idle_seconds)
        return
    _serve(address, answers, ASSETS)


def _serve_fleet(
    address: tuple[str, int] | None, kubeconfig: Path | None, namespace: str, port: int
) -> None:
    from bpfsvc.kube.agents import AgentPages
    from bpfsvc.kube.client.connection import connect
    from bpfsvc.page.fleet import FleetAnswers

    file = kubeconfig or Path(os.environ.get("KUBECONFIG", "").split(":")[0] or _KUBECONFIG)
    api = connect(file.expanduser(), user_agent=f"bpfsvc/{__version__}")
    _serve(address, FleetAnswers(AgentPages(api, namespace, port)).by_path(), FLEET_ASSETS)


def _serve(address: tuple[str, int] | None, answers: Answers, assets: Mapping[str, str]) -> None:
    if address is None:
        raise click.UsageError("--ui-bind-address is empty: there is nothing to serve")
    server = PageServer(address, answers, _log, assets=assets)
    click.echo(f"serving http://{with_port(*address)}/ until Ctrl-C", err=True)
    with suppress(KeyboardInterrupt):
        server.serve(None, 1.0)


def _give_way() -> None:
    """Let the agent and the node's pods go first, for processors and for memory."""
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)


def _log(text: str) -> None:
    click.echo(text, err=True)
