"""The rules that kube-proxy writes on a node, for machines without a kube-proxy.

``rules/`` holds one recorded set of rules for each mode: the rules of kube-proxy 1.36 with its
usual settings. The files are Jinja templates, expanded here for any number of Services. A line
``run: TOOL ...`` begins the input of a tool. Names of chains are hashes, as kube-proxy's names are.
The recorded sets leave out chains that no packet reaches in such a cluster, packet counters
(nfacct), comments in nftables, and everything that kube-proxy does beside writing rules. IPv4 only,
like the testbeds.

The time that is measured is the time of the tools and of the kernel: the input of the tools is made
before. A shell in the node starts the tools, because to start a process from one as large as the
benchmark takes milliseconds. iptables-nft may take minutes for 10,000 Services: then ``TooSlow`` is
raised.

Order matters in iptables: a first packet is compared with one rule per frontend until its own rule
matches.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import jinja2

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.devtools.bench.line_process import LineProcess, ProcessFailed
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.patience import stretched

Mode = Literal["iptables", "iptables-nft", "nftables", "ipvs"]
MODES: tuple[Mode, ...] = get_args(Mode)

LIMIT = 60.0
"""Seconds that writing the rules may take unless the caller sets another limit."""

SERVICES = IPv4Network("10.96.0.0/12")
"""The range of cluster IPs: kubeadm's default."""

_LARGE = 1000
"""Endpoints above which kube-proxy leaves comments out of the chains of Services."""

_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "rules"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,
)


class _Needs(NamedTuple):
    """The needs of a mode."""

    packages: Mapping[str, str]
    """Debian package of each program."""
    refusal: str
    """The reason when the kernel refuses the rules."""
    sysctls: Mapping[str, int] = {}


# kube-proxy offers NodePorts on 127.0.0.1 in the iptables mode.
_LOCALHOST = {"net.ipv4.conf.all.route_localnet": 1}
_NEEDS: Mapping[Mode, _Needs] = {
    "iptables": _Needs(
        {"iptables-legacy-restore": "iptables"},
        "this kernel does not take rules of the legacy iptables",
        _LOCALHOST,
    ),
    "iptables-nft": _Needs(
        {"iptables-nft-restore": "iptables"},
        "this kernel does not take rules of iptables by nftables",
        _LOCALHOST,
    ),
    "nftables": _Needs({"nft": "nftables"}, "this kernel does not take nftables' rules"),
    "ipvs": _Needs(
        {
            "ipvsadm": "ipvsadm",
            "ipset": "ipset",
            "iptables-legacy-restore": "iptables",
            "ip": "iproute2",
        },
        "this kernel has no IPVS, or not all it needs",
        {
            # Masquerading needs conntrack; the others end connections to a removed backend.
            "net.ipv4.vs.conntrack": 1,
            "net.ipv4.vs.expire_nodest_conn": 1,
            "net.ipv4.vs.expire_quiescent_template": 1,
        },
    ),
}


class BaselineFailed(BpfsvcError):
    """The rules of a baseline could not be written."""


class TooSlow(BaselineFailed):
    """The rules were not written within the limit; the node may have a part of them."""


@dataclass(frozen=True)
class Endpoint:
    """One endpoint of a Service's port; ``id`` names its chain."""

    address: str
    port: int
    id: str

    def __str__(self) -> str:
        """Return ``address:port``."""
        return f"{self.address}:{self.port}"


@dataclass(frozen=True)
class BaselineService:
    """One port of a Service.

    ``name`` is ``namespace/name`` or ``namespace/name:port``, unique with the protocol;
    ``address`` is the cluster IP; ``node_port`` is 0 for none; ``backends`` are pairs of address
    and port.
    """

    name: str
    address: str
    port: int
    protocol: Literal["tcp", "udp"] = "tcp"
    node_port: int = 0
    backends: tuple[tuple[str, int], ...] = ()

    @cached_property
    def id(self) -> str:
        """Return the part of its chains' names."""
        return _chain_id(self.name, self.protocol)

    @cached_property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the backends in kube-proxy's order: sorted as text."""
        return tuple(
            Endpoint(address, port, _chain_id(self.name, self.protocol, f"{address}:{port}"))
            for address, port in sorted(self.backends, key=lambda pair: f"{pair[0]}:{pair[1]}")
        )


@dataclass(frozen=True)
class NodeFacts:
    """The facts about a node in its rules.

    ``address`` of the node; ``own_pods``: the range of the node's pods; ``pods``: of all pods;
    ``services``: of cluster IPs.
    """

    address: str
    own_pods: IPv4Network
    pods: IPv4Network
    services: IPv4Network = SERVICES

    def holds(self, endpoint: Endpoint) -> bool:
        """Return True if an endpoint is on this node."""
        return endpoint.address == self.address or IPv4Address(endpoint.address) in self.own_pods


class Step(NamedTuple):
    """One run of a tool: its words, and its input."""

    command: tuple[str, ...]
    text: str


def all_rules(mode: Mode, services: Sequence[BaselineService], node: NodeFacts) -> list[Step]:
    """Return the runs that write everything into a node that has no rules yet."""
    layout, _, flavour = mode.partition("-")
    text = _TEMPLATES.get_template(f"{layout}.txt").render(
        flavour=flavour or "legacy",
        services=services,
        node=node,
        large=sum(len(service.backends) for service in services) > _LARGE,
    )
    runs = re.split(r"^run: ", text, flags=re.MULTILINE)[1:]
    parts = [run.partition("\n") for run in runs]
    return [Step(tuple(command.split()), reads) for command, _, reads in parts]


def _chain_id(*words: str) -> str:
    """Return 16 letters, as kube-proxy puts them into the names of chains."""
    return hashlib.sha256("".join(words).encode()).hexdigest()[:16].upper()


def run_tools(
    namespace: Namespace, mode: str, steps: Sequence[Step], limit: float, services: int
) -> float:
    """Run tools in a namespace; return the seconds from the start of the first to the last's end.

    Raises TooSlow after ``limit`` seconds (``services`` is for its message), and BaselineFailed if
    a tool fails.
    """
    # A session of its own, so that a tool that takes too long is ended with the shell.
    shell = LineProcess(namespace, f"the shell for {mode}", ["sh"], start_new_session=True)
    with ExitStack() as stack:
        inputs = [stack.enter_context(_memory_file(step.text)) for step in steps]
        errors = stack.enter_context(_memory_file(""))
        began = time.monotonic()
        for step, text in zip(steps, inputs, strict=True):
            shell.patience = max(began + limit - time.monotonic(), 0)
            try:
                words = f"{shlex.join(step.command)} <{text} >/dev/null 2>{errors}; echo $?"
                status = int(shell.ask_text(words))
            except ProcessFailed:
                os.killpg(shell.pid, signal.SIGKILL)
                number = "1 Service" if services == 1 else f"{services} Services"
                raise TooSlow(f"{mode}: {number} not programmed within {limit:g} s") from None
            if status:
                # Tools may print a line for each of thousands of rules.
                first = Path(errors).read_text(errors="replace").partition("\n")[0]
                raise BaselineFailed(f"{' '.join(step.command)} ended with {status}: {first}")
        return time.monotonic() - began


@contextmanager
def _memory_file(text: str) -> Iterator[str]:
    """Make a file in memory, with a path that other processes can open."""
    descriptor = os.memfd_create("input")
    with open(descriptor, "w") as stream:  # noqa: PTH123 - a descriptor
        stream.write(text)
        stream.flush()
        yield f"/proc/{os.getpid()}/fd/{descriptor}"


def write_rules(
    node: LabNode,
    mode: Mode,
    services: Sequence[BaselineService],
    pods: IPv4Network,
    limit: float = LIMIT,
) -> float:
    """Write the rules of a mode into a node that has none yet; return how long writing took.

    ``pods``: the range of all pods of the cluster. ``limit``: seconds for writing all rules.
    """
    facts = NodeFacts(node.address(4), IPv4Network(node.pod_cidrs[4]), pods)
    return _write(node, mode, services, facts, stretched(limit))


def obstacles() -> dict[Mode, str]:
    """Return all modes, each with the reason why it cannot run here; empty if it can.

    The test writes the rules of one Service in a namespace made for that.
    """
    return {mode: _obstacle(mode) for mode in MODES}


def _obstacle(mode: Mode) -> str:
    needs = _NEEDS[mode]
    missing = [name for name in needs.packages if shutil.which(name) is None]
    if missing:
        packages = " ".join(dict.fromkeys(needs.packages[name] for name in missing))
        return f"{', '.join(missing)} not found (apt install {packages})"
    facts = NodeFacts("192.0.2.1", IPv4Network("10.244.1.0/24"), IPv4Network("10.244.0.0/16"))
    backends = (("10.244.1.2", 80), ("10.244.2.2", 80))
    service = BaselineService("default/trial", "10.96.0.1", 80, "tcp", 30080, backends)
    with closing(Namespace(f"trial-{mode}")) as namespace:
        try:
            _write(namespace, mode, [service], facts, LIMIT)
        except (BaselineFailed, OSError) as error:
            return f"{needs.refusal}: {error}"
    return ""


def _write(
    namespace: Namespace,
    mode: Mode,
    services: Sequence[BaselineService],
    facts: NodeFacts,
    limit: float,
) -> float:
    seconds = run_tools(namespace, mode, all_rules(mode, services, facts), limit, len(services))
    for key, value in _NEEDS[mode].sysctls.items():
        namespace.sysctl(key, value)
    return seconds
