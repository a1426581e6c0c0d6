"""``bpfsvc services``: Services, their backends, and how busy they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from bpfsvc.base.errors import UsageError
from bpfsvc.cli import completion, options
from bpfsvc.cli.terminal import FOR_PEOPLE, print_pieces
from bpfsvc.cli.watch import print_changes
from bpfsvc.datapath.maps.pins import PinRoot
from bpfsvc.inspect.reader import PinnedReader, open_pinned
from bpfsvc.inspect.recent_failures import ask_failures
from bpfsvc.inspect.services.choice import Wanted
from bpfsvc.inspect.services.documents import write_view_json, write_view_yaml
from bpfsvc.inspect.services.look import look
from bpfsvc.inspect.services.tables import write_view
from bpfsvc.inspect.services.view import View, view_records, with_rates

WRITERS: dict[str, Callable[[View], Iterator[str]]] = {
    "table": write_view,
    "wide": partial(write_view, wide=True),
    "json": write_view_json,
    "yaml": write_view_yaml,
}


@click.command()
@click.argument(
    "wanted",
    nargs=-1,
    metavar="[NAME|NAMESPACE/NAME[:PORT]|ADDRESS[:PORT]]...",
    shell_complete=completion.services_or_names,
)
@options.namespace
@click.option("--stats", is_flag=True, help="Show connections, packets and bytes counted so far.")
@click.option("--rate", is_flag=True, help="Show connections, packets and bytes per second.")
@click.option(
    "--interval",
    metavar="S",
    type=click.FloatRange(min=0.1, max=3600),
    default=1.0,
    show_default=True,
    help="With --rate: seconds over which the rate is measured.",
)
@click.option("--watch", is_flag=True, help="Print changes from now on, until Ctrl-C.")
@options.output(*WRITERS)
@options.pin_root
def services(
    wanted: tuple[str, ...],
    namespace: str,
    stats: bool,
    rate: bool,
    interval: float,
    watch: bool,
    output: str,
    pin_root: Path,
) -> None:
    """Show Services with frontends, backends and connections, as ipvsadm -ln does.

    The pinned maps are read, so no agent has to run. A frontend is named as ADDRESS, ADDRESS:PORT
    or, for a port of the node, :30080 or nodeport:30080.

    A backend is "ready" if new connections are sent to it, "draining" if it only has connections
    left, and "unused" if no frontend leads to it. A TCP connection is half-open until the client
    has the backend's answer, then active, and inactive from its first FIN or reset on; every UDP
    flow is inactive. FAILED LATELY says which connections failed in the last one or two minutes:
    refused by the backend, unanswered (the client had to send its SYN again), or unreachable (an
    ICMP error said so); the agent knows it, and - stands where no agent runs. Connections of
    sockets (socket LB) are counted if they are of the node's processes; connections of pods'
    sockets are counted if the Service has a scheduler that counts connections. 12+ is 12 or more,
    and - is not known. --stats and --rate count all connections when they begin. CONNECT MEDIAN and
    P95 say within which time half, and 95 %, of the TCP connects of clients on this node were
    answered; the kernel counts them in buckets, so <0.256ms is from 0.128 to 0.256 ms.
    """
    if stats and rate:
        raise UsageError("--stats and --rate exclude each other", "leave one of them out")
    if rate and watch:
        raise UsageError("--rate and --watch exclude each other", "use: bpfsvc top")
    chosen = [Wanted(argument) for argument in wanted]

    read_view = partial(
        _read_view, pin_root, chosen, namespace, required=not watch, traffic=stats or rate
    )
    if watch:
        print_changes(lambda: view_records(read_view()), output)
        return
    view = read_view()
    if rate:
        time.sleep(interval)
        view = with_rates(view, read_view())
    if not view.ports and output in FOR_PEOPLE:
        click.echo(f"no Services{f' in namespace {namespace}' if namespace else ''}")
        return
    print_pieces(WRITERS[output](view), output)


def _read_view(
    pin_root: Path, chosen: Sequence[Wanted], namespace: str, *, required: bool, traffic: bool
) -> View:
    failures = ask_failures(pin_root)
    with open_pinned(PinRoot(pin_root)) as pinned:
        reader = PinnedReader(pinned)
        return look(
            reader, chosen, namespace, required=required, traffic=traffic, failures=failures
        )
