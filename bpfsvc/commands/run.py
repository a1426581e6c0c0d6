"""``bpfsvc run``: the agent of this node."""

from __future__ import annotations

import logging
import signal
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
from bpfsvc.datapath.sysctls import NODE_PORTS, PortRange, check_ports
from bpfsvc.detection import Detection, Mode
from bpfsvc.errors import UsageError
from bpfsvc.privileges import require_privileges
from bpfsvc.sources.manifests import Manifests


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
@parameters.node_setup
@click.option(
    "--service-node-port-range",
    type=parameters.Ports(),
    default=NODE_PORTS,
    show_default=str(NODE_PORTS),
    help="NodePorts as the API server gives them out.",
)
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
    type=parameters.Ports(),
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
    detect_local_mode: Mode,
    cluster_cidr: tuple[str, ...],
    pod_bridge_interface: str,
    pod_interface_name_prefix: str,
    masquerade_all: bool,
    source_ranges_for_all: bool,
    nodeport_addresses: tuple[str, ...],
    localhost_nodeports: bool,
    service_node_port_range: PortRange,
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
    detection = Detection(
        mode=detect_local_mode,
        cluster_cidrs=cluster_cidr,
        bridge=pod_bridge_interface,
        prefix=pod_interface_name_prefix,
    )
    _check_detection(detection)
    check_ports(masquerade_ports, service_node_port_range)
    config = Config(
        manifests=manifests,
        node_name=parameters.node_name(hostname_override),
        detection=detection,
        masquerade_all=masquerade_all,
        source_ranges_for_all=source_ranges_for_all,
        nodeport_addresses=nodeport_addresses,
        localhost_nodeports=localhost_nodeports,
        node_ports=service_node_port_range,
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


def _check_detection(detection: Detection) -> None:
    needs = {
        "BridgeInterface": ("--pod-bridge-interface", detection.bridge),
        "InterfaceNamePrefix": ("--pod-interface-name-prefix", detection.prefix),
    }
    flag, value = needs.get(detection.mode, ("", "none"))
    if not value:
        raise UsageError(
            f"--detect-local-mode {detection.mode} says nothing by itself", f"give {flag} as well"
        )


def _cgroup_root(given: str | None) -> Path | None:
    if given == "none":
        return None
    if given is None:
        return sockets.find_cgroup_root()
    path = Path(given)
    sockets.check_cgroup_root(path)
    return path
