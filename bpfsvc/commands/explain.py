"""``bpfsvc explain``: what becomes of a client, and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from bpfsvc.commands import parameters
from bpfsvc.config import Config
from bpfsvc.datapath.cache import DEFAULT as AGENTS_CACHE
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.detection import Detection, Mode
from bpfsvc.errors import UsageError
from bpfsvc.explain.answer import Answer
from bpfsvc.explain.cases import answers, read_cases
from bpfsvc.explain.explainer import Explainer
from bpfsvc.explain.kernel import Kernel
from bpfsvc.explain.local import situation_of
from bpfsvc.explain.manifests import read_cluster
from bpfsvc.explain.question import ORIGINS, Question, place, question
from bpfsvc.explain.stage import stage
from bpfsvc.inspection.reader import open_pinned
from bpfsvc.privileges import require_privileges

DEFAULT_CACHE = AGENTS_CACHE / "explain"
"""Not with the agent's own, of which the oldest are removed."""


@click.command()
@click.argument("source", metavar="[SRC_IP]", required=False)
@click.argument("protocol", metavar="[PROTO]", required=False)
@click.argument("destination", metavar="[DST_IP:PORT]", required=False)
@click.option("--from", "origin", type=click.Choice(ORIGINS), help="Where the packet comes from.")
@click.option("--in-iface", default="", metavar="IF", help="The interface that it comes in by.")
@click.option(
    "--cases",
    type=click.Path(path_type=Path),
    help="Answer every flow of a file of cases instead, one JSON line each.",
)
@click.option(
    "--manifests",
    type=click.Path(path_type=Path),
    help="Ask about these objects; without it, about what the running agent has in the kernel.",
)
@parameters.node_setup
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people, or one object for programs.",
)
@click.option(
    "--cache",
    type=click.Path(path_type=Path),
    default=DEFAULT_CACHE,
    show_default=True,
    help="Where the programs are kept once they are compiled; 'none': nowhere.",
)
@parameters.pin_root
def explain(
    source: str | None,
    protocol: str | None,
    destination: str | None,
    origin: str | None,
    in_iface: str,
    cases: Path | None,
    manifests: Path | None,
    hostname_override: str | None,
    detect_local_mode: Mode,
    cluster_cidr: tuple[str, ...],
    pod_bridge_interface: str,
    pod_interface_name_prefix: str,
    masquerade_all: bool,
    source_ranges_for_all: bool,
    nodeport_addresses: tuple[str, ...],
    localhost_nodeports: bool,
    output: str,
    cache: Path,
    pin_root: Path,
) -> None:
    """Tell what becomes of the first packet of a connection, and why.

    The programs themselves are asked, on a packet that is made up and never sent. PROTO is TCP, UDP
    or SCTP. The options from --hostname-override to --localhost-nodeports go with --manifests, and
    are those of bpfsvc run.
    """
    require_privileges()
    kept = None if str(cache) == "none" else cache
    if cases:
        _answer_cases(cases, kept)
        return
    asked = _question(origin, source, protocol, destination, in_iface)
    if not manifests:
        with open_pinned(PinRoot(pin_root)) as pinned:
            _print(Kernel(pinned).answer(asked), output)
        return
    config = Config(
        manifests=manifests,
        node_name=parameters.node_name(hostname_override or None),
        detection=Detection(
            mode=detect_local_mode,
            cluster_cidrs=cluster_cidr,
            bridge=pod_bridge_interface,
            prefix=pod_interface_name_prefix,
        ),
        masquerade_all=masquerade_all,
        source_ranges_for_all=source_ranges_for_all,
        nodeport_addresses=nodeport_addresses,
        localhost_nodeports=localhost_nodeports,
    )
    cluster = read_cluster(manifests, config.node_name)
    is_this_machine = config.node_name == parameters.node_name(None)
    situation = situation_of(cluster.node, config, is_this_machine=is_this_machine)
    with stage(kept) as made:
        _print(Explainer(made, situation, cluster).answer(asked), output)


def _question(
    origin: str | None,
    source: str | None,
    protocol: str | None,
    destination: str | None,
    interface: str,
) -> Question:
    if origin is None or source is None or protocol is None or destination is None:
        raise UsageError(
            "what is asked is not complete",
            "for example: bpfsvc explain --from pod 10.244.1.5 TCP 10.96.0.10:80",
        )
    address, port = place(destination)
    return question(origin, source, protocol, address, port, interface)


def _answer_cases(path: Path, cache: Path | None) -> None:
    found = read_cases(path)
    with stage(cache) as made:
        for answer in answers(made, found):
            sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _print(answer: Answer, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(answer.to_object(), indent=2))
    else:
        click.echo("\n".join(answer.lines()))
