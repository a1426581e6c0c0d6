"""The real kube-proxy, where somebody gives its binary: run on a node of the lab until it balances.

It reads an API server, its own Node among the objects. On SIGTERM it leaves its rules, which end
with the node's namespace.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from http.client import HTTPConnection, HTTPException
from ipaddress import IPv4Network
from pathlib import Path
from types import TracebackType
from typing import Literal

from bpfsvc.bench.rivals.running import RivalFailed, TooSlow
from bpfsvc.lab.node import Node
from bpfsvc.lab.patience import stretched
from bpfsvc.lab.supply import kubeconfig

Layout = Literal["iptables", "nftables", "ipvs"]

HEALTH_PORT, METRICS_PORT = 10256, 10249
_SYNCED = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
_POLL = 0.02
_PATIENCE = 2.0  # seconds for one answer, and for its end


class KubeProxy:
    """One running kube-proxy; a context manager that ends it.

    ``binary``: the program; ``server``: a kubeconfig, or the URL of a server that asks for nothing,
    such as the lab's; ``layout``: its ``--proxy-mode``; ``log``: a file for what it says, beside
    which a kubeconfig is written where a URL was given.
    """

    def __init__(
        self,
        node: Node,
        binary: Path,
        server: Path | str,
        layout: Layout,
        pods: IPv4Network,
        log: Path,
    ) -> None:
        if not os.access(binary, os.X_OK):
            raise RivalFailed(f"{binary} is no program that could be run")
        if isinstance(server, str):
            url, server = server, log.with_suffix(".kubeconfig")
            server.write_text(json.dumps(kubeconfig(url)))
        self._node, self._log = node, log
        words = [
            str(binary),
            f"--proxy-mode={layout}",
            f"--cluster-cidr={pods}",
            f"--hostname-override={node.name}",
            f"--kubeconfig={server}",
            # The lab's server speaks nothing else.
            "--kube-api-content-type=application/json",
            # The limit of connections belongs to the machine, and so does its memory.
            "--conntrack-max-per-core=0",
            "--conntrack-min=0",
            "--oom-score-adj=0",
        ]
        self.started = time.monotonic()
        with log.open("wb") as stream:
            self._process = node.popen(
                words, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream
            )
        self.pid = self._process.pid

    def __enter__(self) -> KubeProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def ready(self, limit: float = 60.0) -> float:
        """Wait until it is healthy and has written its rules; give the seconds since its start.

        Health alone says little: before its first sync kube-proxy has nothing to be ill of.
        """
        limit = stretched(limit)
        while not self._ready():
            if self._process.poll() is not None:
                raise RivalFailed(f"kube-proxy of {self._node.name} ended: {self._last_line()}")
            if time.monotonic() - self.started > limit:
                raise TooSlow(f"kube-proxy of {self._node.name} not ready within {limit:g} s")
            time.sleep(_POLL)
        return time.monotonic() - self.started

    def stop(self) -> None:
        """End it; its rules stay."""
        self._process.terminate()
        try:
            self._process.wait(stretched(_PATIENCE))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ready(self) -> bool:
        if self._get(HEALTH_PORT, "/healthz")[0] != 200:
            return False
        return synced(self._get(METRICS_PORT, "/metrics")[1])

    def _get(self, port: int, path: str) -> tuple[int, str]:
        """Give status and body; 0 and nothing if nobody answers."""
        talk = HTTPConnection("127.0.0.1", port)
        talk.sock = self._node.socket(2)
        try:
            talk.sock.settimeout(stretched(_PATIENCE))
            talk.sock.connect(("127.0.0.1", port))
            talk.request("GET", path)
            answer = talk.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, HTTPException):
            return 0, ""
        finally:
            talk.close()

    def _last_line(self) -> str:
        lines = self._log.read_text().strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


def synced(metrics: str) -> bool:
    """Whether kube-proxy's metrics tell of a first sync of the IPv4 rules."""
    for line in metrics.splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(_SYNCED) and "IPv6" not in name:
            return float(value) > 0
    return False
