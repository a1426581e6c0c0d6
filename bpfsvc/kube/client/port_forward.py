"""A connection to a port of a Pod through the API server, as ``kubectl port-forward`` makes it.

The API server hands it on to the kubelet, which connects to 127.0.0.1 in the Pod's network
namespace: so a port is reached that no other machine reaches, with the rights of who asks. It is a
WebSocket with two channels, each message of which begins with the number of its channel: one for
the bytes, and one for what went wrong. The first message of each channel is the number of the port.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from websocket import (
    ABNF,
    WebSocket,
    WebSocketBadStatusException,
    WebSocketException,
    create_connection,
)

from bpfsvc.kube import decoding
from bpfsvc.kube.client.login import Login, find_proxy
from bpfsvc.kube.client.transport import tls_context
from bpfsvc.kube.errors import Unreachable, one_line

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _PROBLEM = 0, 1
_PORT_BYTES = 2


def open_port(
    login: Login, headers: Mapping[str, str], pod: tuple[str, str], port: int, seconds: float
) -> ForwardedPort:
    """Return a connection to a port of the Pod with this namespace and name.

    ``seconds``: how long each answer may take. Raises :class:`Unreachable` or :class:`Refused`.
    """
    namespace, name = pod
    server = f"ws{login.server.removeprefix('http')}"
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/portforward?ports={port}"
    try:
        socket = create_connection(
            server + path,
            timeout=seconds,
            header=dict(headers),
            subprotocols=[_PROTOCOL],
            suppress_origin=True,
            **_tls(login),
            **_proxy(login),
        )
    except WebSocketBadStatusException as error:
        text = error.resp_body or b""
        body = text if isinstance(text, bytes) else text.encode()
        raise decoding.refusal(body, error.status_code, "") from error
    except (WebSocketException, OSError) as error:
        raise Unreachable(one_line(str(error)) or type(error).__name__) from error
    return ForwardedPort(socket)


def _tls(login: Login) -> dict[str, Any]:
    if not login.server.startswith("https:"):
        return {}
    options: dict[str, Any] = {"context": tls_context(login.tls)}
    if login.tls.server_name:
        options["server_hostname"] = login.tls.server_name
    return {"sslopt": options}


def _proxy(login: Login) -> dict[str, Any]:
    proxy = urlsplit(find_proxy(login.server, login.proxy))
    if not proxy.hostname:
        return {"http_no_proxy": ["*"]}  # the library would read the environment by itself
    return {
        "http_proxy_host": proxy.hostname,
        "http_proxy_port": proxy.port or 80,
        "http_proxy_auth": (proxy.username, proxy.password) if proxy.username else None,
        "proxy_type": proxy.scheme.removesuffix("s"),
    }


class ForwardedPort(io.RawIOBase):
    """The bytes of the connection, to read; they end where the Pod closes it."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._rest = b""
        self._begun: set[int] = set()

    def http(self) -> HTTPConnection:
        """Return it for a request; the server is named as it is in the Pod."""
        connection = HTTPConnection("localhost")
        connection.sock = _HttpSocket(self)
        return connection

    def send(self, data: bytes) -> None:
        """Send bytes; raises :class:`Unreachable`."""
        try:
            self._socket.send_binary(bytes([_DATA]) + data)
        except (WebSocketException, OSError) as error:
            raise Unreachable(one_line(str(error))) from error

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read what has arrived; 0 at the end. Raises :class:`Unreachable`."""
        while not self._rest:
            data = self._receive()
            if data is None:
                return 0
            self._rest = data
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def close(self) -> None:
        """Close the connection."""
        if not self.closed:
            self._socket.shutdown()  # type: ignore[no-untyped-call]
        super().close()

    def _receive(self) -> bytes | None:
        """Return the bytes of the next message; None at the end."""
        try:
            kind, message = self._socket.recv_data()
        except (WebSocketException, OSError) as error:
            raise Unreachable(one_line(str(error)) or "no answer in time") from error
        if kind == ABNF.OPCODE_CLOSE or not message:
            return None
        channel, data = message[0], message[1:]
        if channel not in self._begun:
            self._begun.add(channel)
            data = data[_PORT_BYTES:]
        if channel == _PROBLEM and data:
            raise Unreachable(one_line(data.decode(errors="replace")))
        return data if channel == _DATA else b""


class _HttpSocket:
    """As much of a socket as ``http.client`` uses.

    It closes the socket before it has read the answer; a file of a socket stays open then.
    """

    def __init__(self, forwarded: ForwardedPort) -> None:
        self._forwarded = forwarded

    def sendall(self, data: bytes) -> None:
        self._forwarded.send(data)

    def makefile(self, mode: str) -> io.BufferedReader:  # noqa: ARG002
        return io.BufferedReader(self._forwarded)

    def close(self) -> None:
        """Do nothing: the connection is closed by who has opened it."""
