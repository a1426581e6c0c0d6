"""``bpfsvc run --shadow``: compare kube-proxy's translations with bpfsvc's decisions."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bpfsvc import __version__
from bpfsvc.base.errors import SystemUnfit, UsageError
from bpfsvc.base.texts import count_text
from bpfsvc.cli import options
from bpfsvc.cli.flags import DURATION
from bpfsvc.config import durations
from bpfsvc.config.config import Config
from bpfsvc.datapath.maps.pins import NotLoaded, Pinned, PinRoot

if TYPE_CHECKING:
    from bpfsvc.agent.shadow import ShadowSettings
    from bpfsvc.kube.source import Source

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("bpfsvc")


def add_options(command: F) -> F:
    """Describe the options of shadow mode."""
    for decorate in (
        options.shadow_address,
        click.option(
            "--shadow-tolerance",
            type=DURATION,
            metavar=DURATION.name,
            default="30s",
            help="With --shadow: how long kube-proxy may take to follow a change. A state that was"
            " true at any moment of this time is no difference.  [default: 30s]",
        ),
        click.option(
            "--for",
            "shadow_limit",
            type=DURATION,
            metavar=DURATION.name,
            help="With --shadow: compare for this time, then exit: 0 without a difference, else 1.",
        ),
        click.option(
            "--shadow",
            is_flag=True,
            help="Change nothing on this node. Follow the new connections that kube-proxy"
            " translates, and report where bpfsvc would do something else.",
        ),
    ):
        command = decorate(command)
    return command


def take_settings(values: MutableMapping[str, Any], *, changes: bool) -> ShadowSettings | None:
    """Remove the options of shadow mode from ``values``; return None without ``--shadow``.

    ``changes``: another option was given that changes the node.
    """
    is_on, limit = values.pop("shadow"), values.pop("shadow_limit")
    tolerance, address = values.pop("shadow_tolerance"), values.pop("shadow_address")
    if is_on and changes:
        raise UsageError("--shadow changes nothing on this node", "run the other step by itself")
    if not is_on:
        if limit:
            raise UsageError("--for has no effect without --shadow", "add --shadow")
        return None
    from bpfsvc.agent.shadow import ShadowSettings

    return ShadowSettings(
        tolerance=_seconds("--shadow-tolerance", tolerance),
        limit=_seconds("--for", limit) if limit else None,
        address=address,
    )


def run(config: Config, settings: ShadowSettings) -> int:
    """Compare until SIGTERM or the limit; return the exit status."""
    from bpfsvc.agent.shadow import ShadowAgent

    _refuse_beside_programs(config)
    agent = ShadowAgent(config, _source(config), settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    totals = agent.run()
    _log.info(
        "shadow mode ends: %s compared, %s",
        count_text(totals.flows, "connection"),
        count_text(totals.differences, "difference") if totals.differences else "no difference",
    )
    for count in totals.counts:
        name = f"{count.namespace}/{count.name}" if count.name else "(unknown Service)"
        _log.info("%s %s: %d, first: %s", name, count.kind, count.number, count.first)
    return 1 if totals.differences else 0


def _seconds(flag: str, text: str) -> float:
    seconds = durations.parse(text).seconds
    if seconds <= 0:
        raise UsageError(f"{flag} must be longer than nothing, not {text}", "give 10m, or 30s")
    return seconds


def _refuse_beside_programs(config: Config) -> None:
    """Raise ``SystemUnfit`` where bpfsvc serves: netfilter sees none of its connections."""
    try:
        Pinned(PinRoot(config.pin_root).current).close()
    except NotLoaded:
        return
    raise SystemUnfit(
        f"bpfsvc already serves Services on this node (pinned at {config.pin_root}):"
        " there is nothing of kube-proxy's to compare with",
        "end that agent and run: bpfsvc cleanup",
    )


def _source(config: Config) -> Source:
    """Return where the objects come from."""
    if config.manifests:
        from bpfsvc.kube.manifests.directory import ManifestSource

        return ManifestSource(config.manifests)
    from bpfsvc.kube.apiserver import ApiServerSource
    from bpfsvc.kube.client.connection import connect

    agent = f"bpfsvc/{__version__}"
    connection = connect(config.kubeconfig, config.master, user_agent=agent)
    return ApiServerSource(connection, config.node_name, with_pods=False)
