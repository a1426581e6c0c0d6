"""Do ports clash: those of masquerading, of NodePorts, of the node's own connections and servers?

A server may well listen on a masquerade port, as the kubelet does on 10250: what its clients send
has another source than any backend. What the node itself sends from such a port may meet a
masqueraded connection; the programs notice that and take another port.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bpfsvc.datapath.sysctls import PortRange
from bpfsvc.doctor.facts import Ports
from bpfsvc.doctor.finding import Finding, note, ok, refuse, some


def judge(ports: Ports) -> Iterator[Finding]:
    """Judge ports."""
    if ports.clash:
        yield refuse("ports", ports.clash, ports.clash_hint)
    else:
        yield ok(
            "ports",
            f"masquerade ports {ports.masquerade}, NodePorts {ports.node_ports} and those of the"
            " node's own connections do not meet",
        )
    calling = _within(ports.calling, ports.masquerade)
    if calling:
        yield note(
            "ports",
            f"programs of this node send from masquerade ports: {some(calling)}",
            "choose a range without them with --masquerade-ports",
        )
    servers = {("tcp", port) for port in ports.listening}
    shadowed = _within({*servers, *ports.calling}, ports.node_ports)
    if shadowed:
        yield note(
            "ports",
            f"somebody uses NodePorts: {some(shadowed)};"
            " a Service with that NodePort would take its packets",
        )


def _within(ports: Iterable[tuple[str, int]], wanted: PortRange) -> list[str]:
    found = sorted((port, name) for name, port in ports if wanted.first <= port <= wanted.last)
    return [f"{name} {port}" for port, name in found]
