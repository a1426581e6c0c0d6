"""Find out whether kube-proxy still runs in this network namespace, and would write rules again.

Its process shows it, where processes can be seen: a container sees the node's processes only with
``hostPID``, and k3s, microk8s and others run kube-proxy inside a process of another name. Its
metrics server shows it as well: ``/proxyMode`` answers with the mode. (bpfsvc answers there too,
for programs that expect it; it sends its name in the ``Server`` header.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bpfsvc.base import http_client

METRICS_PORT = 10249
HEALTHZ_PORT = 10256
_MODES = frozenset({"iptables", "ipvs", "nftables", "userspace"})
_SECONDS = 1.0
_PROC = Path("/proc")
_KUBELETS = frozenset({"kubelet", "k3s-server", "k3s-agent", "k0s", "kubelite"})
"""Programs that are or contain the kubelet."""


class KubeProxyProcess(NamedTuple):
    """What is known of a running kube-proxy.

    * ``processes``: the ids of its processes.
    * ``sees_node``: True if all processes of the machine can be seen.
    * ``mode``: the answer of its metrics server, or "".
    """

    processes: tuple[int, ...] = ()
    sees_node: bool = True
    mode: str = ""

    @property
    def runs(self) -> bool:
        """True if there is one."""
        return bool(self.processes or self.mode)

    def __str__(self) -> str:
        if self.processes:
            return f"kube-proxy runs (process {', '.join(map(str, self.processes))})"
        return f"kube-proxy runs (its metrics server reports mode {self.mode})"


def find_kube_proxy(*, agent_runs: bool = False) -> KubeProxyProcess:
    """Look for kube-proxy. ``agent_runs``: a metrics server without a name may be bpfsvc's."""
    mode = _ask_mode(unnamed_is_ours=agent_runs)
    return KubeProxyProcess(tuple(_processes()), _sees_node(), mode)


def is_kube_proxy(name: str, arguments: list[str]) -> bool:
    """True if a process of this name and command line is kube-proxy."""
    program = arguments[0].rpartition("/")[2] if arguments else ""
    if program == "hyperkube":
        return "kube-proxy" in arguments[1:] or "proxy" in arguments[1:2]
    return "kube-proxy" in (name, program)


def _processes() -> Iterator[int]:
    """Yield kube-proxy's processes in this network namespace; a node may be a container."""
    own = (_PROC / "self/ns/net").stat().st_ino
    for directory in _PROC.glob("[0-9]*"):
        try:
            name = (directory / "comm").read_text().strip()
            arguments = os.fsdecode((directory / "cmdline").read_bytes()).split("\0")
            if is_kube_proxy(name, arguments) and (directory / "ns/net").stat().st_ino == own:
                yield int(directory.name)
        except OSError:
            continue  # it has ended, or must not be read


def _sees_node() -> bool:
    """True if the node's processes can be seen: the machine's kthreadd, or the node's kubelet.

    A node that is a container, as of kind, has a process namespace of its own.
    """
    return _name_of(_PROC / "2") == "kthreadd" or any(
        _name_of(directory) in _KUBELETS for directory in _PROC.glob("[0-9]*")
    )


def _name_of(directory: Path) -> str:
    try:
        return (directory / "comm").read_text().strip()
    except OSError:
        return ""


def _ask_mode(*, unnamed_is_ours: bool) -> str:
    for host in ("127.0.0.1", "::1"):
        try:
            with http_client.connect((host, METRICS_PORT), _SECONDS) as client:
                answer = http_client.get(client, "/proxyMode")
        except OSError:
            continue
        mode = answer.body.decode(errors="replace").strip()
        ours = answer.server.startswith("bpfsvc") or (unnamed_is_ours and not answer.server)
        if mode in _MODES and not ours:
            return mode
    return ""
