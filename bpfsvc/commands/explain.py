"""``bpfsvc explain``: what becomes of a client, and why."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import get_args

import click

from bpfsvc.commands import parameters
from bpfsvc.datapath.pins import PinRoot
from bpfsvc.detection import Detection, Mode
from bpfsvc.errors import UsageError
from bpfsvc.explain.answer import Answer
from bpfsvc.explain.cases import answers, read_cases
from bpfsvc.explain.explainer import Explainer
from bpfsvc.explain.kernel import Kernel
from bpfsvc.explain.local import Setup, situation_of
from bpfsvc.explain.manifests import read_cluster
from bpfsvc.explain.question import ORIGINS, Question, place, question
from bpfsvc.explain.stage import stage
from bpfsvc.inspection.reader import open_pinned
from bpfsvc.nodeports import PRIMARY
from bpfsvc.privileges import require_privileges


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
@click.option(
    "--hostname-override",
    metavar="NAME",
    default=None,
    help="With --manifests: the node that is asked about; this one if not given.",
)
@click.option(
    "--detect-local-mode",
    type=click.Choice(get_args(Mode)),
    default="ClusterCIDR",
    show_default=True,
    help="With --manifests, as all that follow: how the agent is set up.",
)
@click.option(
    "--cluster-cidr",
    type=parameters.CidrList(one_per_family=True),
    default=(),
    help="Range of the pods, one per family.",
)
@click.option(
    "--pod-bridge-interface", metavar="NAME", default="", help="For mode BridgeInterface."
)
@click.option(
    "--pod-interface-name-prefix",
    metavar="PREFIX",
    default="",
    help="For mode InterfaceNamePrefix.",
)
@click.option("--masquerade-all", is_flag=True, help="As of bpfsvc run.")
@click.option("--source-ranges-for-all", is_flag=True, help="As of bpfsvc run.")
@click.option(
    "--nodeport-addresses",
    metavar="CIDR,...|primary",
    type=parameters.CidrList(alone=PRIMARY),
    default=(PRIMARY,),
    show_default=PRIMARY,
    help="Where NodePorts answer.",
)
@click.option(
    "--localhost-nodeports/--no-localhost-nodeports",
    default=True,
    show_default=True,
    help="Whether they answer on IPv4 loopback too.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people, or one object for programs.",
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
    pin_root: Path,
) -> None:
    """Tell what becomes of the first packet of a connection, and why.

    The programs themselves are asked, on a packet that is made up and never sent. PROTO is TCP, UDP
    or SCTP.
    """
    require_privileges()
    if cases:
        _answer_cases(cases)
        return
    asked = _question(origin, source, protocol, destination, in_iface)
    if not manifests:
        with open_pinned(PinRoot(pin_root)) as pinned:
            _print(Kernel(pinned).answer(asked), output)
        return
    here = socket.gethostname().strip().lower()
    name = (hostname_override or here).strip().lower()
    cluster = read_cluster(manifests, name)
    setup = Setup(
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
        is_this_machine=name == here,
    )
    situation = situation_of(cluster, setup)
    with stage() as made:
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


def _answer_cases(path: Path) -> None:
    found = read_cases(path)
    with stage() as made:
        for answer in answers(made, found):
            sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _print(answer: Answer, output: str) -> None:
    if output == "json":
        click.echo(json.dumps(answer.to_object(), indent=2))
    else:
        click.echo("\n".join(answer.lines()))
