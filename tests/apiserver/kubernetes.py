"""etcd and kube-apiserver, started from the programs in the folder that ``KUBERNETES`` names.

They listen on the loopback of the sandbox. No controllers run beside them, so nothing but the test
changes the objects that it looks at.

An etcd before 3.5.13 makes kube-apiserver turn WatchList off. ``says_newer`` puts a relay between
the two in which the answer about etcd's version says 3.6.0; what kube-apiserver then asks of it,
etcd 3.5.1 can do already (it only had rare races, which a single member does not meet).
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from bpfsvc.devtools.lab.patience import wait
from tests.cluster.programs import collect
from tests.cluster.settings import FOLDER

ETCD, PEERS, RELAY, PORT = 2379, 2380, 2378, 6443
TOKENS = {"admin": "system:masters", "nobody": "nobodies"}
"""Token and user of the same name, and the group."""

_OLD, _NEW = b"\x12\x053.5.1", b"\x12\x053.6.0"  # StatusResponse.version of etcd's RPC
_MADE = {
    "/readyz": b"ok",
    "/api/v1/namespaces/default/services/kubernetes": b'"clusterIP"',
    "/apis/networking.k8s.io/v1/servicecidrs/kubernetes": b'"Ready"',
}
_PATIENCE = 120.0  # seconds; a start takes eight


class KubeApiServer:
    """One etcd and one kube-apiserver, from ``start`` to ``stop``."""

    def __init__(self, directory: Path, certificate: Path, key: Path, *, says_newer: bool) -> None:
        self.port = PORT
        self.tls = ssl.create_default_context()
        self.tls.check_hostname = False
        self.tls.verify_mode = ssl.CERT_NONE
        self._directory = directory
        self._programs = programs()
        self._certificate, self._key = certificate, key
        self._relay = Relay(RELAY, ETCD) if says_newer else None
        self._etcd: subprocess.Popen[bytes] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start both; returns when they answer."""
        rows = [f"{user},{user},{user},{group}\n" for user, group in TOKENS.items()]
        (self._directory / "tokens.csv").write_text("".join(rows))
        if self._relay:
            self._relay.start()
        here = f"http://127.0.0.1:{ETCD}"
        self._etcd = self._run(
            "etcd",
            *("--data-dir", str(self._directory / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", here, "--advertise-client-urls", here),
            *("--listen-peer-urls", f"http://127.0.0.1:{PEERS}"),
        )
        self._start_server()

    def restart(self) -> None:
        """Start kube-apiserver again: its caches are empty, and know nothing from before."""
        self._end(self._server)
        self._start_server()

    def compact(self) -> None:
        """Let etcd forget its history."""
        key = base64.b64encode(b"/").decode()
        version = self._etcd_call("/v3/kv/range", {"key": key})["header"]["revision"]
        self._etcd_call("/v3/kv/compaction", {"revision": version, "physical": True})

    def stop(self) -> None:
        """End both."""
        self._end(self._server)
        self._end(self._etcd)
        if self._relay:
            self._relay.close()

    def _start_server(self) -> None:
        etcd = RELAY if self._relay else ETCD
        self._server = self._run(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            *("--bind-address=127.0.0.1", f"--secure-port={PORT}", "--advertise-address=192.0.2.1"),
            *("--endpoint-reconciler-type=none", f"--cert-dir={self._directory}"),
            f"--tls-cert-file={self._certificate}",
            f"--tls-private-key-file={self._key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._certificate}",
            f"--service-account-signing-key-file={self._key}",
            f"--token-auth-file={self._directory / 'tokens.csv'}",
            *("--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount"),
        )
        wait(self._is_ready, "kube-apiserver, " + str(self._directory), _PATIENCE)

    def _is_ready(self) -> bool:
        assert self._server is not None
        assert self._server.poll() is None, f"kube-apiserver has ended: see {self._directory}"
        connection = http.client.HTTPSConnection("127.0.0.1", PORT, timeout=5, context=self.tls)
        with suppress(OSError), closing(connection):
            # What it makes itself at its first start is there.
            return all(mark in _text(connection, url_path) for url_path, mark in _MADE.items())
        return False

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = (self._directory / f"{program}.log").open("ab")
        with log:
            return subprocess.Popen(
                [self._programs / program, *arguments], stdout=log, stderr=log, cwd=self._directory
            )

    @staticmethod
    def _end(process: subprocess.Popen[bytes] | None) -> None:
        if process is not None:
            process.kill()
            process.wait()

    @staticmethod
    def _etcd_call(path: str, body: dict[str, object]) -> dict[str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", ETCD, timeout=10)
        with closing(connection):
            connection.request("POST", path, json.dumps(body))
            answer = connection.getresponse()
            text = answer.read()
        assert answer.status == 200, text
        values: dict[str, dict[str, str]] = json.loads(text)
        return values


def _text(connection: http.client.HTTPConnection, url_path: str) -> bytes:
    connection.request("GET", url_path, headers={"Authorization": "Bearer admin"})
    return connection.getresponse().read()


class Relay:
    """Passes TCP connections on to another port, and changes what etcd says of its version."""

    def __init__(self, port: int, onward: int) -> None:
        self._onward = onward
        self._listener = socket.create_server(("127.0.0.1", port))

    def start(self) -> None:
        """Accept connections from now on."""
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def close(self) -> None:
        """Accept no more; what is open ends with its two ends."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._onward))
                for pair, changed in (((client, server), False), ((server, client), True)):
                    threading.Thread(target=_pass_on, args=(pair, changed), daemon=True).start()


def _pass_on(pair: Sequence[socket.socket], changed: bool) -> None:
    source, sink = pair
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data.replace(_OLD, _NEW) if changed else data)
    for side in pair:
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
    source.close()  # the thread of the other direction closes the other one


def programs() -> Path:
    """Return the folder of all programs, unpacked if they were archives."""
    named = os.environ.get("KUBERNETES", "")
    assert named, "set KUBERNETES to the folder of Kubernetes' programs (make api-test)"
    collect(Path(named).resolve(), FOLDER / "bin")
    return FOLDER / "bin"
