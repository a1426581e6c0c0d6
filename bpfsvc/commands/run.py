"""``bpfsvc run``: the agent of this node."""

from __future__ import annotations

import ipaddress
import logging
import signal
import socket
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from bpfsvc.agent import Agent
from bpfsvc.commands import parameters
from bpfsvc.config import DEFAULT_MASQUERADE_PORTS, Config, Lifetimes
from bpfsvc.datapath import sockets
from bpfsvc.datapath.attachment import WAYS, Way
from bpfsvc.datapath.netlink.hooks import PRIORITY
from bpfsvc.datapath.source import Sizes
from bpfsvc.datapath.sysctls import PortRange, check_masquerade_ports
from bpfsvc.errors import UsageError
from bpfsvc.privileges import require_privileges
from bpfsvc.sources.manifests import Manifests


class CidrList(click.ParamType[Any]):
    """One CIDR, or two of different families with a comma between them."""

    name = "cidr[,cidr]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Check and split."""
        if isinstance(value, tuple):
            return value
        found = tuple(part.strip() for part in str(value).split(",") if part.strip())
        try:
            versions = [ipaddress.ip_network(one, strict=False).version for one in found]
        except ValueError as error:
            self.fail(f"{error}; give CIDRs such as 10.244.0.0/16,fd44::/48", param, ctx)
        if len(set(versions)) != len(versions):
            self.fail(f"{value}: give at most one CIDR per family", param, ctx)
        return found


class Ports(click.ParamType[Any]):
    """``FIRST-LAST``."""

    name = "first-last"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> PortRange:
        """Check and split."""
        if isinstance(value, PortRange):
            return value
        first, dash, last = str(value).partition("-")
        if not (dash and first.isdigit() and last.isdigit()):
            self.fail(f"{value!r} is not FIRST-LAST, such as 10000-29999", param, ctx)
        return PortRange(int(first), int(last))


def _sizes(command: Any) -> Any:
    """Add an option for the size of every map."""
    for size in reversed(fields(Sizes)):
        command = click.option(
            f"--{size.name.replace('_', '-')}",
            type=click.IntRange(1, 1 << 24),
            default=size.default,
            show_default=True,
            help=f"Rows of the map for {size.name.removeprefix('max_').replace('_', ' ')}.",
        )(command)
    return command


@click.command()
@click.option(
    "--manifests",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory of Services, EndpointSlices and Nodes as YAML or JSON; followed as it changes.",
)
@click.option(
    "--hostname-override",
    metavar="NAME",
    default=None,
    help="Name of this node; the host's name if not given.",
)
@click.option(
    "--cluster-cidr",
    type=CidrList(),
    default=(),
    help="Range of the pods, one per family; other clients of a cluster IP are masqueraded.",
)
@click.option("--masquerade-all", is_flag=True, help="Masquerade all that goes to a cluster IP.")
@click.option(
    "--devices",
    metavar="PATTERN,...",
    default="",
    help="Interfaces to attach, by name; !PATTERN excludes. All that carry traffic if not given.",
)
@click.option(
    "--cgroup-root",
    metavar="DIR|none",
    default=None,
    help="cgroup2 directory of the node's processes; where cgroup2 is mounted if not given.",
)
@parameters.pin_root
@parameters.healthz
@click.option(
    "--masquerade-ports",
    type=Ports(),
    default=DEFAULT_MASQUERADE_PORTS,
    show_default=str(DEFAULT_MASQUERADE_PORTS),
    help="Source ports of masqueraded connections.",
)
@click.option(
    "--attach",
    type=click.Choice(WAYS),
    default="auto",
    show_default=True,
    help="How to attach to interfaces: by tcx links, or filters in a clsact qdisc.",
)
@click.option(
    "--tc-priority",
    type=click.IntRange(1, 0xBFFF),
    default=PRIORITY,
    show_default=True,
    help="Priority of filters in a clsact qdisc; lower comes first.",
)
@_sizes
def run(
    manifests: Path,
    hostname_override: str | None,
    cluster_cidr: tuple[str, ...],
    masquerade_all: bool,
    devices: str,
    cgroup_root: str | None,
    pin_root: Path,
    healthz: tuple[str, int] | None,
    masquerade_ports: PortRange,
    attach: Way,
    tc_priority: int,
    **sizes: int,
) -> None:
    """Balance Services on this node until told to stop; what is loaded then stays."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    require_privileges()
    check_masquerade_ports(masquerade_ports)
    config = Config(
        manifests=manifests,
        node_name=_node_name(hostname_override),
        cluster_cidrs=cluster_cidr,
        masquerade_all=masquerade_all,
        pin_root=pin_root,
        cgroup_root=_cgroup_root(cgroup_root),
        devices=tuple(part.strip() for part in devices.split(",") if part.strip()),
        attach=attach,
        tc_priority=tc_priority,
        healthz=healthz,
        masquerade_ports=masquerade_ports,
        sizes=Sizes(**sizes),
        lifetimes=Lifetimes(),
    )
    agent = Agent(config, Manifests(manifests))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.stop())
    agent.run()


def _node_name(override: str | None) -> str:
    name = (socket.gethostname() if override is None else override).strip().lower()
    if not name:
        raise UsageError("--hostname-override is blank", "give the name of this Node object")
    return name


def _cgroup_root(given: str | None) -> Path | None:
    if given == "none":
        return None
    if given is None:
        return sockets.find_cgroup_root()
    path = Path(given)
    sockets.check_cgroup_root(path)
    return path
