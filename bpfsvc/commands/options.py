"""What an option of ``bpfsvc run`` is, and those of our own, each with the field it sets.

An option has no default of its own: what was not given is left to :mod:`bpfsvc.settings`, which so
knows what was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from bpfsvc.commands.gotypes import Bool, Numbers, Span, Text, Words
from bpfsvc.commands.parameters import NODE_SETUP, Ports
from bpfsvc.config import (
    DEFAULT_LAST_GOOD,
    DEFAULT_MASQUERADE_PORTS,
    DEFAULT_MESH_PORTS,
    DEFAULT_PIN_ROOT,
    SOCKET_LB,
)
from bpfsvc.datapath.attachment import WAYS
from bpfsvc.datapath.cache import DEFAULT as DEFAULT_CACHE
from bpfsvc.datapath.netlink.hooks import PRIORITY
from bpfsvc.datapath.source import Sizes
from bpfsvc.datapath.sysctls import NODE_PORTS
from bpfsvc.settings.own import DEFAULT_PATIENCE, MOST_ROWS, SIZES


@dataclass(frozen=True, slots=True)
class Option:
    """An option and the fields it sets, such as ``conntrack.min``; none if it has no effect."""

    name: str
    fields: tuple[str, ...]
    attributes: Mapping[str, Any]

    @property
    def flag(self) -> str:
        """Give it as people write it."""
        return self.name.partition("/")[0]

    @property
    def parameter(self) -> str:
        """Give the name that click knows its value by."""
        return self.flag.removeprefix("--").replace("-", "_")


def option(name: str, fields: str, kind: Any, help_: str, default: Any = "", **more: Any) -> Option:
    """Describe an option; ``fields`` has spaces between, ``default`` is only told."""
    shown = {"show_default": str(default)} if default != "" else {}
    attributes = {"type": kind, "default": None, "help": help_, **shown, **more}
    if isinstance(kind, Bool):
        attributes |= {"is_flag": False, "flag_value": "true", "metavar": "[=BOOL]"}
    return Option(name, tuple(fields.split()), attributes)


def as_explained(name: str) -> str:
    """Give the description that ``bpfsvc explain`` has of the same option."""
    return str(NODE_SETUP[name]["help"])


OWN = (
    option(
        "--manifests",
        "manifests",
        Text("dir"),
        "Directory of Services, EndpointSlices and Nodes as YAML or JSON, followed as it changes,"
        " in place of an API server.",
    ),
    option(
        "--last-good",
        "lastGood",
        Text("file|none"),
        "What a node begins with that finds no API server; kept up to date.",
        DEFAULT_LAST_GOOD,
    ),
    option(
        "--last-good-after",
        "lastGoodAfter",
        Span(),
        "How long the API server may be silent at the start before that is served.",
        DEFAULT_PATIENCE,
    ),
    option(
        "--source-ranges-for-all",
        "sourceRangesForAll",
        Bool(),
        as_explained("--source-ranges-for-all"),
    ),
    option(
        "--service-node-port-range",
        "serviceNodePortRange",
        Ports(),
        "NodePorts as the API server gives them out.",
        NODE_PORTS,
    ),
    option(
        "--devices",
        "devices",
        Words("pattern,..."),
        "Interfaces to attach, by name; !PATTERN excludes. All that carry traffic if not given.",
    ),
    option(
        "--cgroup-root",
        "cgroupRoot",
        Text("dir|none"),
        "cgroup2 directory of the node's processes; where cgroup2 is mounted if not given.",
    ),
    option(
        "--socket-lb",
        "socketLb",
        click.Choice(SOCKET_LB),
        "Whose sockets are translated when they connect: those of the node and its pods, of the"
        " node alone, or nobody's. What is not is translated packet by packet.",
        "all",
    ),
    option(
        "--mesh-ports",
        "meshPorts",
        Numbers("port,..."),
        "Sockets of a pod that listens on such a port of its loopback address are left to the proxy"
        " that does.",
        ",".join(map(str, DEFAULT_MESH_PORTS)),
    ),
    option(
        "--fast-path",
        "fastPath",
        Bool(),
        "Send translated packets straight to where they leave, past netfilter and its policies.",
        "false",
    ),
    option(
        "--xdp",
        "xdp",
        Words("off|auto|pattern,..."),
        "Uplinks on which XDP forwards what is for backends on other nodes: auto takes those whose"
        " driver does it natively.",
        "off",
    ),
    option(
        "--pin-root",
        "pinRoot",
        Text("dir"),
        "Directory in a bpf file system that belongs to the agent.",
        DEFAULT_PIN_ROOT,
    ),
    option(
        "--cache",
        "cache",
        Text("dir|none"),
        "Where compiled programs are kept, so that the next boot need not compile them.",
        DEFAULT_CACHE,
    ),
    option(
        "--masquerade-ports",
        "masqueradePorts",
        Ports(),
        "Source ports of masqueraded connections.",
        DEFAULT_MASQUERADE_PORTS,
    ),
    option(
        "--attach",
        "attach",
        click.Choice(WAYS),
        "How to attach to interfaces: by tcx links, or filters in a clsact qdisc.",
        "auto",
    ),
    option(
        "--tc-priority",
        "tcPriority",
        click.IntRange(1, 0xBFFF),
        "Priority of filters in a clsact qdisc; lower comes first.",
        PRIORITY,
    ),
    *(
        option(
            f"--{attribute.replace('_', '-')}",
            f"mapSizes.{name}",
            click.IntRange(1, MOST_ROWS),
            f"Rows of the map for {attribute.removeprefix('max_').replace('_', ' ')}.",
            getattr(Sizes(), attribute),
        )
        for name, attribute in SIZES.items()
    ),
)
