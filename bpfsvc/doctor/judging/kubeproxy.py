"""kube-proxy: does it run, and what is left of it? Neither forbids to start."""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.doctor.facts import Proxy
from bpfsvc.doctor.finding import Finding, note, ok, some, warning
from bpfsvc.takeover.running import HEALTHZ_PORT, METRICS_PORT


def judge(proxy: Proxy, listening: frozenset[int]) -> Iterator[Finding]:
    """Judge what is known of kube-proxy. ``listening``: TCP ports of servers."""
    if proxy.running.runs:
        yield warning(
            "kube-proxy",
            f"{proxy.running}: new connections go by bpfsvc, and it goes on writing rules",
            "remove its DaemonSet when bpfsvc serves; then bpfsvc cleanup --kube-proxy",
        )
    elif proxy.running.sees_node:
        yield ok("kube-proxy", "it does not run")
    else:
        yield note(
            "kube-proxy",
            "whether it runs cannot be seen from this process namespace; its metrics server is"
            " silent",
            "look on the node, or run with hostPID",
        )
    if not proxy.agent_runs:
        taken = [port for port in (HEALTHZ_PORT, METRICS_PORT) if port in listening]
        if taken:
            ports = " and ".join(str(port) for port in taken)
            yield warning(
                "kube-proxy",
                f"somebody listens on port {ports}, where kube-proxy and bpfsvc do",
                "stop it, or choose others with --healthz-bind-address and --metrics-bind-address",
            )
    if proxy.leftovers:
        yield note(
            "kube-proxy",
            f"of its rules are here: {some(list(proxy.leftovers), '; ')}",
            "bpfsvc cleanup --kube-proxy --dry-run",
        )
    elif not proxy.unseen:
        yield ok("kube-proxy", "nothing of its rules is here")
    for text in proxy.remarks:
        yield note("kube-proxy", text)
    for text in proxy.unseen:
        yield note("kube-proxy", text, "install it to look")
