"""The rules of a node as kube-proxy writes them, for machines without its binary.

``rules/`` holds one recorded rule set per layout: what kube-proxy 1.36 is observed to write with
its usual settings, the node's fixed part once and the part of a Service once. They are Jinja
templates, expanded here for any number of Services. A line ``run: TOOL ...`` begins what a tool
reads. Names of chains are hashes, as kube-proxy's are. Left out are chains that no packet reaches
in such a cluster, packet counters (nfacct), comments in nftables, and everything that kube-proxy
does beside writing rules. IPv4 only, like the testbeds.

What is timed is the tools and the kernel: the text that they read is made before. A shell in the
node starts the tools, because starting a process from one as large as the benchmark takes
milliseconds. iptables-nft may take minutes for 10,000 Services: ``TooSlow`` reports that.

Order matters in iptables: a first packet passes one rule per frontend until its own rule comes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

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
    """What a mode needs of a machine."""

    packages: Mapping[str, str]
    """Debian package of each program."""
    refusal: str
    """What it means when the kernel refuses the rules."""
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
    """The rules were not written within the limit; what the node holds is unknown."""


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

    @property
    def key(self) -> tuple[str, str]:
        """Return what identifies it among all Services."""
        return self.name, self.protocol

    @cached_property
    def id(self) -> str:
        """Return what names its chains."""
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
    """What the rules of a node hold about it.

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
    """One run of a tool: its words, and what it reads."""

    command: tuple[str, ...]
    text: str


class Took(NamedTuple):
    """When the first tool began, and when the last ended (``CLOCK_MONOTONIC``, seconds)."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """Return how long that was."""
        return self.ended - self.began


def all_rules(mode: Mode, services: Sequence[BaselineService], node: NodeFacts) -> list[Step]:
    """Return the runs that write everything into a node that has no rules yet."""
    return _expand(mode, services, node, written=services, change=False, gone=(), fresh=())


def changed_rules(
    mode: Mode,
    services: Sequence[BaselineService],
    node: NodeFacts,
    before: BaselineService,
    after: BaselineService,
) -> list[Step]:
    """Return the runs that bring one Service from ``before`` to ``after``.

    ``services`` are all Services as they are to be. Sets of hairpin connections keep endpoints
    that are gone: another Service may have the same ones.
    """
    gone = [each for each in before.endpoints if each not in after.endpoints]
    fresh = [each for each in after.endpoints if each not in before.endpoints]
    return _expand(mode, services, node, written=[after], change=True, gone=gone, fresh=fresh)


def _expand(
    mode: Mode, services: Sequence[BaselineService], node: NodeFacts, **values: Any
) -> list[Step]:
    layout, _, flavour = mode.partition("-")
    text = _TEMPLATES.get_template(f"{layout}.txt").render(
        flavour=flavour or "legacy",
        services=services,
        node=node,
        large=sum(len(service.backends) for service in services) > _LARGE,
        **values,
    )
    runs = re.split(r"^run: ", text, flags=re.MULTILINE)[1:]
    parts = [run.partition("\n") for run in runs]
    return [Step(tuple(command.split()), reads) for command, _, reads in parts]


def _chain_id(*words: str) -> str:
    """Return 16 letters, as kube-proxy puts them into the names of chains."""
    return hashlib.sha256("".join(words).encode()).hexdigest()[:16].upper()


class ToolRunner:
    """Runs tools in a namespace, one after the other; it ends with the namespace."""

    def __init__(self, place: Namespace, mode: str) -> None:
        self._mode = mode
        # A session of its own, so that a tool that takes too long is ended with the shell.
        self._shell = LineProcess(place, f"the shell for {mode}", ["sh"], start_new_session=True)
        self._ready: list[tuple[Step, int]] = []

    def take(self, steps: Sequence[Step]) -> None:
        """Keep ready what is to be run next."""
        for _, reads in self._ready:
            os.close(reads)
        self._ready = []
        for step in steps:
            reads = os.memfd_create("reads")
            with open(reads, "w", closefd=False) as stream:
                stream.write(step.text)
            self._ready.append((step, reads))

    def run(self, limit: float, services: int, *, empty: bool = False) -> Took:
        """Run what was taken; ``empty``: only the first tool, with nothing to read.

        Raises TooSlow after ``limit`` seconds (``services`` is for its message), and
        BaselineFailed if a tool fails.
        """
        began = time.monotonic()
        deadline = began + limit
        errors = os.memfd_create("errors")
        try:
            for step, reads in self._ready[:1] if empty else self._ready:
                source = "/dev/null" if empty else _descriptor_path(reads)
                words = f"{shlex.join(step.command)} <{source} >/dev/null"
                words += f" 2>{_descriptor_path(errors)}; echo $?"
                if status := self._status(words, deadline, limit, services):
                    # Tools may print a line for each of thousands of rules.
                    text = os.pread(errors, 4096, 0).decode(errors="replace")
                    failed = f"{' '.join(step.command)} ended with {status}"
                    raise BaselineFailed(f"{failed}: {text.partition(chr(10))[0]}")
        finally:
            os.close(errors)
        return Took(began, time.monotonic())

    def _status(self, words: str, deadline: float, limit: float, services: int) -> int:
        try:
            self._shell.patience = max(deadline - time.monotonic(), 0)
            return int(self._shell.ask_text(words))
        except ProcessFailed:
            os.killpg(self._shell.pid, signal.SIGKILL)
            number = "1 Service" if services == 1 else f"{services} Services"
            raise TooSlow(f"{self._mode}: {number} not programmed within {limit:g} s") from None


def _descriptor_path(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"


class Baseline:
    """The rules of a mode in a node that has none yet; written when this is made.

    ``pods``: the range of all pods of the cluster. ``limit`` and ``change_limit``: seconds for
    writing all, and for a change. ``seconds``: how long writing took.
    """

    def __init__(
        self,
        node: LabNode,
        mode: str,
        services: Sequence[BaselineService],
        pods: IPv4Network,
        limit: float = LIMIT,
        change_limit: float = LIMIT,
    ) -> None:
        self._mode, self._change_limit = _known(mode), stretched(change_limit)
        self._facts = NodeFacts(node.address(4), IPv4Network(node.pod_cidrs[4]), pods)
        self._services = {service.key: service for service in services}
        if len(self._services) != len(services):
            raise BaselineFailed("two of the Services have the same name and protocol")
        self._runner = ToolRunner(node, mode)
        took = _write(node, self._runner, self._mode, services, self._facts, stretched(limit))
        self.seconds = took.seconds

    def prepare(self, service: BaselineService) -> None:
        """Have ready a change of a Service of which only ``backends`` differ.

        Flows that conntrack knows keep their backend. (kube-proxy would delete UDP flows to an
        endpoint that is gone.)
        """
        before = self._services.get(service.key)
        if before is None:
            raise BaselineFailed(f"there is no Service {service.name}, {service.protocol}")
        self._services[service.key] = service
        services = list(self._services.values())
        self._runner.take(changed_rules(self._mode, services, self._facts, before, service))

    def change(self) -> Took:
        """Make the change that was prepared."""
        return self._runner.run(self._change_limit, 1)

    def close(self) -> None:
        """Release a change that was prepared; the rules stay."""
        self._runner.take(())

    def start_tool(self) -> Took:
        """Start the first tool of the change with nothing to do.

        In every mode that is the tool after which packets go to another backend.
        """
        return self._runner.run(self._change_limit, 1, empty=True)


def obstacles() -> dict[Mode, str]:
    """Return all modes, each with the reason why it cannot run here; empty if it can.

    Tried out by writing the rules of one Service in a namespace made for that.
    """
    return {mode: _obstacle(mode) for mode in MODES}


def _known(mode: str) -> Mode:
    for each in MODES:
        if each == mode:
            return each
    raise BaselineFailed(f"no such baseline: {mode!r}", f"give one of {', '.join(MODES)}")


def _obstacle(mode: Mode) -> str:
    needs = _NEEDS[mode]
    missing = [name for name in needs.packages if shutil.which(name) is None]
    if missing:
        packages = " ".join(dict.fromkeys(needs.packages[name] for name in missing))
        return f"{', '.join(missing)} not found (apt install {packages})"
    facts = NodeFacts("192.0.2.1", IPv4Network("10.244.1.0/24"), IPv4Network("10.244.0.0/16"))
    backends = (("10.244.1.2", 80), ("10.244.2.2", 80))
    service = BaselineService("default/trial", "10.96.0.1", 80, "tcp", 30080, backends)
    with closing(Namespace(f"trial-{mode}")) as place:
        try:
            _write(place, ToolRunner(place, mode), mode, [service], facts, LIMIT)
        except (BaselineFailed, OSError) as error:
            return f"{needs.refusal}: {error}"
    return ""


def _write(
    place: Namespace,
    runner: ToolRunner,
    mode: Mode,
    services: Sequence[BaselineService],
    facts: NodeFacts,
    limit: float,
) -> Took:
    runner.take(all_rules(mode, services, facts))
    try:
        took = runner.run(limit, len(services))
    finally:
        runner.take(())  # the text of 10,000 Services is long
    for key, value in _NEEDS[mode].sysctls.items():
        place.sysctl(key, value)
    return took
