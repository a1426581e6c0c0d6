"""Whether kube-proxy still runs in this network namespace, and would write its rules again.

Processes tell, where they can be seen: a container sees those of the node only with ``hostPID``,
and k3s, microk8s and others run kube-proxy inside a process of another name. Its metrics server
tells as well: ``/proxyMode`` answers with the mode. (bpfsvc answers there too, for it is asked by
the same programs; it gives its name as ``Server``.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

METRICS_PORT = 10249
HEALTHZ_PORT = 10256
_MODES = frozenset({"iptables", "ipvs", "nftables", "userspace"})
_SECONDS = 1.0
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class KubeProxy:
    """What is known of it.

    * ``processes``: their ids. ``sees_node``: whether all processes of the machine can be seen.
    * ``mode``: the answer of its metrics server, or "".
    """

    processes: tuple[int, ...] = ()
    sees_node: bool = True
    mode: str = ""

    @property
    def runs(self) -> bool:
        """Whether there is one."""
        return bool(self.processes or self.mode)

    def __str__(self) -> str:
        if self.processes:
            return f"kube-proxy runs (process {', '.join(map(str, self.processes))})"
        return f"kube-proxy runs (its metrics server says: mode {self.mode})"


def find_kube_proxy(*, agent_runs: bool = False) -> KubeProxy:
    """Look for it. ``agent_runs``: a metrics server that does not give its name may be ours."""
    mode = _ask_mode(nameless_is_ours=agent_runs)
    return KubeProxy(tuple(_processes()), _sees_node(), mode)


def is_kube_proxy(name: str, arguments: list[str]) -> bool:
    """Tell by the name of a process and its command line."""
    program = arguments[0].rpartition("/")[2] if arguments else ""
    if program == "hyperkube":
        return "kube-proxy" in arguments[1:] or "proxy" in arguments[1:2]
    return "kube-proxy" in (name, program)


def _processes() -> Iterator[int]:
    """Give those of this network namespace: a node may itself be a container beside others."""
    own = (_PROC / "self/ns/net").stat().st_ino
    for place in _PROC.glob("[0-9]*"):
        try:
            name = (place / "comm").read_text().strip()
            arguments = os.fsdecode((place / "cmdline").read_bytes()).split("\0")
            if is_kube_proxy(name, arguments) and (place / "ns/net").stat().st_ino == own:
                yield int(place.name)
        except OSError:
            continue  # it ended meanwhile, or is none of ours to look at


def _sees_node() -> bool:
    """Whether this is the machine's own process namespace: only there kthreadd is number 2."""
    try:
        return (_PROC / "2/comm").read_text().strip() == "kthreadd"
    except OSError:
        return False


def _ask_mode(*, nameless_is_ours: bool) -> str:
    for host in ("127.0.0.1", "::1"):
        talk = HTTPConnection(host, METRICS_PORT, timeout=_SECONDS)
        try:
            talk.request("GET", "/proxyMode")
            response = talk.getresponse()
            server = response.getheader("Server", "")
            answer = response.read(64).decode(errors="replace").strip()
        except (OSError, HTTPException):
            continue
        finally:
            talk.close()
        ours = server.startswith("bpfsvc") or (nameless_is_ours and not server)
        if answer in _MODES and not ours:
            return answer
    return ""
