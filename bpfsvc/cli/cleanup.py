"""``bpfsvc cleanup``: remove the maps, programs and pins of an agent, or kube-proxy's rules."""

from __future__ import annotations

import math
import sys
from collections import Counter
from itertools import chain
from pathlib import Path
from socket import ntohs

import click

from bpfsvc.agent.cleanup import cleanup as remove_everything
from bpfsvc.base.address import endpoint_text
from bpfsvc.base.errors import BpfsvcError, KernelError, UsageError
from bpfsvc.base.privileges import require_privileges
from bpfsvc.base.texts import count_text, list_text
from bpfsvc.cli import options
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.datapath.netlink.conntrack.flows import open_connections
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.inspect.reader import is_running
from bpfsvc.migration.kube_proxy import leftovers
from bpfsvc.migration.kube_proxy.leftovers import Leftovers
from bpfsvc.migration.kube_proxy.running import find_kube_proxy

_SHOWN = 4
"""Endpoints that are named; there may be thousands."""


@click.command()
@options.pin_root
@click.option(
    "--drain",
    "drain_seconds",
    type=click.FloatRange(min=0),
    is_flag=False,
    flag_value=math.inf,
    default=0.0,
    metavar="[SECONDS]",
    help="First leave new connections to kube-proxy, and wait until bpfsvc's connections have"
    " ended, at most SECONDS if given.",
)
@click.option(
    "--kube-proxy", is_flag=True, help="Remove the rules that kube-proxy left, and nothing else."
)
@click.option("--dry-run", is_flag=True, help="With --kube-proxy: only show what would be removed.")
@click.option("-y", "--yes", is_flag=True, help="With --kube-proxy: do not ask.")
@click.option("-v", "--verbose", is_flag=True, help="With --kube-proxy: show every rule.")
@click.option(
    "--while-running", is_flag=True, help="With --kube-proxy: also while kube-proxy runs."
)
@click.option(
    "--release",
    is_flag=True,
    help="With --kube-proxy: also remove the rule that keeps conntrack active for old connections."
    " The command asks first while there are such connections.",
)
def cleanup(
    pin_root: Path,
    drain_seconds: float,
    kube_proxy: bool,
    dry_run: bool,
    yes: bool,
    verbose: bool,
    while_running: bool,
    release: bool,
) -> None:
    """Remove programs, maps, pins, qdiscs and sysctls of an agent that no longer runs.

    With --kube-proxy, remove only kube-proxy's chains, tables, sets and devices, after showing
    them. Connections that kube-proxy translated continue, and rules of other programs stay.
    """
    require_privileges()
    if kube_proxy and drain_seconds:
        raise UsageError("--drain does not go with --kube-proxy", "leave one of them out")
    if kube_proxy:
        _remove_kube_proxys(
            pin_root,
            dry_run=dry_run,
            yes=yes,
            verbose=verbose,
            while_running=while_running,
            release=release,
        )
        return
    if dry_run or yes or verbose or while_running or release:
        raise UsageError(
            "--dry-run, --yes, --verbose, --while-running and --release go with --kube-proxy",
            "add --kube-proxy, or leave them out",
        )
    # remove_everything raises if an agent runs, before anything is released.
    for line in chain(remove_everything(pin_root, drain_seconds), leftovers.release()):
        click.echo(line)


def _remove_kube_proxys(
    pin_root: Path, *, dry_run: bool, yes: bool, verbose: bool, while_running: bool, release: bool
) -> None:
    left = _find()
    running = find_kube_proxy(agent_runs=pin_root.is_dir() and is_running(PinRoot(pin_root)))
    _show(left, verbose=verbose)
    if left.parts and running.runs:
        click.echo(f"note: {running}", err=True)
    if left.parts and dry_run:
        return
    if left.parts:
        if running.runs and not while_running:
            raise BpfsvcError(
                f"nothing was removed: {running}, and would write all this again",
                "remove its DaemonSet first, or give --while-running",
            )
        _ask(yes=yes)
        for line in leftovers.remove(left):
            click.echo(line)
        if again := _find().parts:
            raise BpfsvcError(
                f"something was written again meanwhile: {again[-1]}",
                "stop the program that writes it; bpfsvc doctor may show it",
            )
    if release and not dry_run:
        _ask_about_connections(yes=yes)
        for line in leftovers.release():
            click.echo(line)
    click.echo(
        "nothing of kube-proxy is left " + ("where it could be checked" if left.unseen else "here")
    )


def _find() -> Leftovers:
    network = read_network()
    return leftovers.find(network)


def _show(left: Leftovers, *, verbose: bool) -> None:
    for part in (*filter(None, [left.keepalive]), *left.parts):
        click.echo(str(part))
        for line in part.lines if verbose else ():
            click.echo(f"    {line}")
    for text in (*left.remarks, *left.unseen):
        click.echo(f"note: {text}", err=True)


def _ask_about_connections(*, yes: bool) -> None:
    """Ask before connections lose their translation; nothing to ask where there are none."""
    if not any(leftover.act for leftover in leftovers.held()):
        return
    try:
        flows = [*open_connections()]
    except OSError as error:
        raise KernelError(
            f"nothing was released: netfilter's connections cannot be counted: {error.strerror}",
            "run it as root",
        ) from error
    if not flows:
        return
    destinations = Counter(
        endpoint_text(flow.destination, ntohs(flow.destination_port)) for flow in flows
    )
    counts = [f"{name} ({number})" for name, number in destinations.most_common()]
    text = (
        f"{count_text(len(flows), 'TCP connection')} that netfilter translates may end with it, to"
        f" {list_text(counts, _SHOWN)}"
    )
    if yes:
        click.echo(f"note: {text}", err=True)
    elif not sys.stdin.isatty():
        raise UsageError(
            f"nothing was released: {text}", "wait until they have ended, or give --yes"
        )
    else:
        click.echo(text)
        click.confirm("Release it even so?", abort=True)


def _ask(*, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "nothing was removed: there is no terminal to ask for a confirmation",
            "give --yes, or --dry-run to only look",
        )
    click.confirm("Remove all of this?", abort=True)
