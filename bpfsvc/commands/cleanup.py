"""``bpfsvc cleanup``: take away what an agent put here, or what kube-proxy left."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import click

from bpfsvc.cleanup import cleanup as remove_everything
from bpfsvc.commands import parameters
from bpfsvc.datapath.netlink.conversation import Conversation
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.errors import BpfsvcError, UsageError
from bpfsvc.inspection.status import is_running
from bpfsvc.privileges import require_privileges
from bpfsvc.takeover import leftovers
from bpfsvc.takeover.leftovers import Leftovers
from bpfsvc.takeover.running import find_kube_proxy


@click.command()
@parameters.pin_root
@click.option("--kube-proxy", is_flag=True, help="Remove what kube-proxy left, and nothing else.")
@click.option("--dry-run", is_flag=True, help="With --kube-proxy: only show what would go.")
@click.option("-y", "--yes", is_flag=True, help="With --kube-proxy: do not ask.")
@click.option("-v", "--verbose", is_flag=True, help="With --kube-proxy: show every rule.")
@click.option(
    "--while-running", is_flag=True, help="With --kube-proxy: also while kube-proxy runs."
)
@click.option(
    "--release",
    is_flag=True,
    help="With --kube-proxy: let go of conntrack, once the connections of its time have ended.",
)
def cleanup(
    pin_root: Path,
    kube_proxy: bool,
    dry_run: bool,
    yes: bool,
    verbose: bool,
    while_running: bool,
    release: bool,
) -> None:
    """Remove programs, maps, pins, qdiscs and sysctls of an agent that no longer runs.

    With --kube-proxy, remove instead exactly kube-proxy's chains, tables, sets and devices, and
    show them first. Connections it translated go on, and so does what others made.
    """
    require_privileges()
    if kube_proxy:
        _remove_kube_proxys(
            pin_root,
            dry_run=dry_run,
            yes=yes,
            verbose=verbose,
            anyhow=while_running,
            release=release,
        )
        return
    if dry_run or yes or verbose or while_running or release:
        raise UsageError(
            "--dry-run, --yes, --verbose, --while-running and --release go with --kube-proxy",
            "add --kube-proxy, or leave them out",
        )
    # The first ends this command if an agent runs; so the second comes after it.
    for line in chain(remove_everything(pin_root), leftovers.release()):
        click.echo(line)


def _remove_kube_proxys(
    pin_root: Path, *, dry_run: bool, yes: bool, verbose: bool, anyhow: bool, release: bool
) -> None:
    found = _look()
    running = find_kube_proxy(agent_runs=pin_root.is_dir() and is_running(PinRoot(pin_root)))
    _show(found, verbose=verbose)
    if found.parts and running.runs:
        click.echo(f"note: {running}", err=True)
    if found.parts and dry_run:
        return
    if found.parts:
        if running.runs and not anyhow:
            raise BpfsvcError(
                f"nothing was removed: {running}, and would write all this again",
                "remove its DaemonSet first, or give --while-running",
            )
        _ask(yes=yes)
        for line in leftovers.remove(found):
            click.echo(line)
        if anything_left := _look().parts:
            raise BpfsvcError(
                f"something came back meanwhile: {anything_left[-1]}",
                "find out who writes it; bpfsvc doctor may know",
            )
    for line in leftovers.release() if release and not dry_run else ():
        click.echo(line)
    click.echo(
        "nothing of kube-proxy is left "
        + ("where it could be looked for" if found.unseen else "here")
    )


def _look() -> Leftovers:
    with Conversation() as talk:
        network = read_network(talk)
    return leftovers.find(network)


def _show(found: Leftovers, *, verbose: bool) -> None:
    for part in (*filter(None, [found.hold]), *found.parts):
        click.echo(str(part))
        for line in part.lines if verbose else ():
            click.echo(f"    {line}")
    for text in (*found.remarks, *found.unseen):
        click.echo(f"note: {text}", err=True)


def _ask(*, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            "nothing was removed: there is no terminal to ask at",
            "give --yes, or --dry-run to look only",
        )
    click.confirm("Remove all of this?", abort=True)
