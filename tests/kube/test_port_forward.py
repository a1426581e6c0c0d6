"""A port of a Pod through the API server: the bytes, the rights, and what goes wrong on the way."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.objects import pod
from bpfsvc.kube.agents import AgentPages
from bpfsvc.kube.client.connection import ApiConnection
from bpfsvc.kube.errors import Refused, Unreachable
from tests.apiserver.fixtures import Certificates
from tests.kube.test_connection import data, kubeconfig, open_with

POD = pod("agent", [], "n1", "kube-system")
LARGE = b"x" * 300_000


def answering(body: bytes) -> Iterator[int]:
    """Serve one answer after the other at 127.0.0.1, until the generator is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    asked = client.recv(65536).split(b"\r\n")[0]
                    text = body or asked
                    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n"
                    client.sendall(head.encode() + text)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def dial(_: str, __: str, port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


@pytest.fixture
def echo() -> Iterator[int]:
    yield from answering(b"")


@pytest.fixture
def large() -> Iterator[int]:
    yield from answering(LARGE)


def plain(api: ApiServer, directory: Path) -> ApiConnection:
    api.put(POD)
    api.dial = dial
    return open_with(kubeconfig(directory, api.url(), {}))


def test_a_question_reaches_the_pod_and_its_answer_comes_back(
    api: ApiServer, tmp_path: Path, echo: int
) -> None:
    pages = AgentPages(plain(api, tmp_path), "kube-system", echo)
    for target in ("/api/status?", "/api/services?search=web"):
        assert pages.ask("agent", target) == (200, f"GET {target} HTTP/1.1".encode())
    (asked, _) = (request for request in api.requests if request.path.endswith("/portforward"))
    assert asked.query == {"ports": str(echo)}


def test_an_answer_of_many_messages_is_whole(api: ApiServer, tmp_path: Path, large: int) -> None:
    pages = AgentPages(plain(api, tmp_path), "kube-system", large)
    assert pages.ask("agent", "/") == (200, LARGE)


@pytest.mark.parametrize("by", ["token", "certificate"])
def test_the_login_and_the_certificates_of_the_kubeconfig_are_used(
    tls_api: ApiServer, certificates: Certificates, tmp_path: Path, echo: int, by: str
) -> None:
    tls_api.put(POD)
    tls_api.dial = dial
    user = (
        {"token": "good"}
        if by == "token"
        else {
            "client-certificate-data": data(certificates.client),
            "client-key-data": data(certificates.client_key),
        }
    )
    ca = {"certificate-authority-data": data(certificates.ca)}
    pages = AgentPages(
        open_with(kubeconfig(tmp_path, tls_api.url(), user, ca)), "kube-system", echo
    )
    assert pages.ask("agent", "/")[0] == 200


def test_a_server_that_another_ca_knows_is_refused(
    tls_api: ApiServer, tmp_path: Path, echo: int
) -> None:
    tls_api.dial = dial
    pages = AgentPages(
        open_with(kubeconfig(tmp_path, tls_api.url(), {"token": "good"})), "kube-system", echo
    )
    with pytest.raises(Unreachable, match="certificate"):
        pages.ask("agent", "/")


def test_without_the_right_it_is_what_the_api_server_says(
    api: ApiServer, tmp_path: Path, echo: int
) -> None:
    pages = AgentPages(plain(api, tmp_path), "kube-system", echo)
    api.faults.forbidden = frozenset({"pods/portforward"})
    with pytest.raises(Refused, match='cannot create resource "pods/portforward"') as refused:
        pages.ask("agent", "/")
    assert refused.value.code == 403


def test_a_pod_that_is_gone_and_a_port_that_is_closed_are_said(
    api: ApiServer, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    pages = AgentPages(plain(api, tmp_path), "kube-system", port)
    with pytest.raises(Refused, match='"gone" not found'):
        pages.ask("gone", "/")
    with pytest.raises(Unreachable, match=f"error forwarding port {port} .*refused"):
        pages.ask("agent", "/")


def test_a_pod_that_closes_without_an_answer_is_one_line(api: ApiServer, tmp_path: Path) -> None:
    connection = plain(api, tmp_path)

    def hangs_up(*_: object) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    api.dial = hangs_up
    with pytest.raises(Unreachable):
        AgentPages(connection, "kube-system", 1).ask("agent", "/")


CLIENT = """
import os, sys
from kubernetes import client, config
from kubernetes.stream import portforward

core = client.CoreV1Api(config.new_client_from_config(sys.argv[1]))
port = sys.argv[2]
forward = core.connect_get_namespaced_pod_portforward
stream = portforward(forward, "agent", "kube-system", ports=port).socket(int(port))
stream.setblocking(True)
stream.settimeout(20)
stream.sendall(b"GET /hello HTTP/1.1\\r\\n\\r\\n")
print(stream.recv(1000).split()[1].decode(), flush=True)
os._exit(0)  # its thread would wait for more
"""


def test_kubernetes_own_client_forwards_by_the_labs_server(
    api: ApiServer, tmp_path: Path, echo: int
) -> None:
    """So what the server of the lab does is what a client of Kubernetes expects."""
    plain(api, tmp_path)
    words = [sys.executable, "-c", CLIENT, str(tmp_path / "kubeconfig.conf"), str(echo)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "200\n", done.stderr
