"""Connections to a server, by urllib3, and the reading of chunked bodies.

``http.client``, below urllib3, returns one chunk for each call, and an API server sends one chunk
for each object or two of a list that it streams: for 10,000 Services and 10,000 EndpointSlices,
these calls took 0.3 s of processor time. :class:`ArrivedChunks` returns all chunks that have
arrived at a time.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException, HTTPResponse
from typing import Any

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool, PoolManager, ProxyManager
from urllib3.connection import HTTPConnection, HTTPSConnection

from bpfsvc.kube.client.login import Login, Tls, find_proxy

_CONNECTIONS = 8
"""Kept open at most: a watch for each resource, and a connection for Events."""

_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
)
"""A peer that is gone is noticed after a minute."""

_LINE_END = b"\r\n"
_LONGEST_LINE = 65536
_PIECE = 65536  # bytes


def open_pools(login: Login) -> PoolManager:
    """Return connections to the server of a login, none of them open yet; any thread may ask.

    Raises ``ssl.SSLError`` for certificates and keys that cannot be used.
    """
    options: dict[str, Any] = {
        "maxsize": _CONNECTIONS,
        "retries": False,
        "socket_options": _KEEPALIVE,
    }
    if login.server.startswith("https:"):
        options["ssl_context"] = tls_context(login.tls)
        if login.tls.server_name:
            options["server_hostname"] = login.tls.server_name
    proxy = find_proxy(login.server, login.proxy)
    pools: PoolManager
    if proxy.startswith("socks"):
        from urllib3.contrib.socks import SOCKSProxyManager  # needs PySocks

        return SOCKSProxyManager(proxy, **options)
    pools = ProxyManager(proxy, **options) if proxy else PoolManager(**options)
    pools.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
    return pools


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return how connections by TLS are made; raises ``ssl.SSLError`` as :func:`open_pools`."""
    context = ssl.create_default_context(cadata=tls.ca.decode() if tls.ca else None)
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate:
        # OpenSSL reads only files, and a key should not be in one.
        with os.fdopen(os.memfd_create("client certificate"), "wb") as file:
            file.write(tls.certificate + b"\n" + tls.key)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context


class BrokenOff(HTTPException):
    """The body ended too early, or is not in chunks."""

    def __init__(self) -> None:
        super().__init__("the connection broke off")


class ArrivedChunks(HTTPResponse):
    """A response; if its body is in chunks, :meth:`read1` returns all that have arrived."""

    _pieces: Iterator[bytes] | None = None

    def read1(self, n: int = -1) -> bytes:
        """Return what has arrived, up to some 64 KB; nothing at the end of the body."""
        if self.fp is None or not self.chunked:
            return super().read1(n)
        if self._pieces is None:
            self._pieces = join_chunks(iter(partial(self.fp.read1, _PIECE), b""))
        piece = next(self._pieces, b"")
        if not piece:
            # The body was read to its end: urllib3 may use the connection again.
            self.close()
        return piece


class _Connection(HTTPConnection):
    response_class = ArrivedChunks


class _TlsConnection(HTTPSConnection):
    response_class = ArrivedChunks


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


def join_chunks(reads: Iterator[bytes]) -> Iterator[bytes]:
    """Return the data of the chunks (RFC 9112, section 7.1) in ``reads``, bytes as they arrive.

    Nothing is read behind the end of the body. Raises :class:`BrokenOff` if ``reads`` ends before.
    """
    data = b""
    left = 0  # bytes of the present chunk and of the line end behind it
    for read in reads:
        data += read
        parts: list[bytes] = []
        start = 0
        while start < len(data):
            if not left:
                end = data.find(_LINE_END, start)
                if end < 0:
                    break
                size = _chunk_size(data[start:end])
                start = end + len(_LINE_END)
                if not size:
                    if parts:
                        yield b"".join(parts)
                    _skip_trailer(data[start:], reads)
                    return
                left = size + len(_LINE_END)
            stop = min(start + left, len(data))
            left -= stop - start
            of_line_end = max(0, len(_LINE_END) - left)
            parts.append(data[start : max(start, stop - of_line_end)])
            start = stop
        data = data[start:]
        if len(data) > _LONGEST_LINE:
            raise BrokenOff
        if piece := b"".join(parts):
            yield piece
    raise BrokenOff


def _chunk_size(line: bytes) -> int:
    """Return the size in the line before a chunk; extensions may follow the size."""
    try:
        size = int(line.partition(b";")[0], 16)
    except ValueError:
        size = -1
    if size < 0:
        raise BrokenOff
    return size


def _skip_trailer(data: bytes, reads: Iterator[bytes]) -> None:
    """Read the lines behind the last chunk, up to an empty line."""
    while not data.startswith(_LINE_END) and 2 * _LINE_END not in data:
        read = next(reads, b"")
        if not read or len(data) > _LONGEST_LINE:
            raise BrokenOff
        data += read
