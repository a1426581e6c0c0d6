"""What ``bpfsvc`` without arguments says: what this node has, and what to do next."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from bpfsvc import __version__
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.base.privileges import require_privileges
from bpfsvc.inspect.agent_configuration import ask_configuration, healthz_of, usual_pin_root
from bpfsvc.inspect.node_health import AgentHealth
from bpfsvc.inspect.status import ask_health
from bpfsvc.migration.kube_proxy.running import KubeProxyProcess, find_kube_proxy
from bpfsvc.model.answers import AgentConfiguration


class NodeLook(NamedTuple):
    """What is seen at a first look.

    ``agent``: None without one; ``health``: what it answers. ``refused``: what the kernel refuses;
    None if this process has not the rights to try.
    """

    agent: AgentConfiguration | None
    health: AgentHealth | None
    kube_proxy: KubeProxyProcess
    release: str
    refused: tuple[str, ...] | None


def first_look() -> list[str]:
    """Return the lines."""
    return [*lines(_look())]


def _look() -> NodeLook:
    agent = ask_configuration(usual_pin_root())
    address = healthz_of(agent) if agent else None
    return NodeLook(
        agent,
        ask_health(address) if address else None,
        find_kube_proxy(agent_runs=agent is not None),
        os.uname().release,
        _refused(),
    )


def _refused() -> tuple[str, ...] | None:
    from bpfsvc.datapath.loader import probe

    try:
        require_privileges()
        return tuple(probe.missing())
    except BpfsvcError:
        return None


def lines(look: NodeLook) -> Iterator[str]:
    """Yield what a node has, and the next step."""
    healthy = look.health is None or look.health.status == 200
    yield f"agent:      {_agent(look, healthy=healthy)}"
    yield f"kube-proxy: {_kube_proxy(look.kube_proxy)}"
    yield f"kernel:     Linux {look.release} {_kernel(look.refused)}"
    yield f"next:       {_next(look, healthy=healthy)}"
    yield "all commands: bpfsvc --help"


def _agent(look: NodeLook, *, healthy: bool) -> str:
    if look.agent is None:
        return f"none runs here (this is bpfsvc {__version__})"
    other = "" if look.agent.version == __version__ else f"; this command is {__version__}"
    running = f"bpfsvc {look.agent.version} runs on {look.agent.node_name}"
    if look.health is None:
        return f"{running}{other}"
    if healthy:
        return f"{running}, healthy{other}"
    problems = "; ".join(look.health.problems) or "its health is not answered"
    return f"{running}, UNHEALTHY: {problems}{other}"


def _kube_proxy(process: KubeProxyProcess) -> str:
    if process.runs:
        return str(process).removeprefix("kube-proxy ")
    return "does not run" if process.sees_node else "is not seen from this process namespace"


def _kernel(refused: tuple[str, ...] | None) -> str:
    if refused is None:
        return "(not tried: that needs root)"
    return f"refuses {'; '.join(refused)}" if refused else "has what bpfsvc needs"


def _next(look: NodeLook, *, healthy: bool) -> str:
    if look.agent and healthy:
        return "bpfsvc status; bpfsvc services; bpfsvc explain says what happens to a packet"
    if look.agent:
        return "bpfsvc status, and then bpfsvc doctor"
    if look.refused is None:
        return "as root: bpfsvc doctor"
    if look.refused:
        return "bpfsvc doctor says what to use instead"
    if look.kube_proxy.runs:
        return "bpfsvc doctor; docs/migration.md leads from kube-proxy to bpfsvc"
    return "bpfsvc doctor; then bpfsvc run --help"
