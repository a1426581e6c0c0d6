"""Requests to the API server, and their responses.

Nothing is retried here: the callers know how long to wait. There is one exception: if the server
refuses the credentials, they are loaded again and the request is sent a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import msgspec
from urllib3 import BaseHTTPResponse, Timeout
from urllib3.exceptions import HTTPError, ProtocolError, SSLError
from urllib3.exceptions import TimeoutError as NoAnswer

from bpfsvc.kube import decoding
from bpfsvc.kube.client.credentials import UNUSABLE, Credentials
from bpfsvc.kube.client.kubeconfig import read_kubeconfig
from bpfsvc.kube.client.login import Login, LoginError, of_pod
from bpfsvc.kube.errors import UNAUTHORIZED, ApiError, Silence, Unreachable, one_line
from bpfsvc.kube.source import SourceUnavailable

if TYPE_CHECKING:
    from bpfsvc.kube.client.port_forward import ForwardedPort

Observer = Callable[[str, str, str, float], None]
"""Called for every request: method, host, code (``<error>`` without an answer), seconds."""

ACCEPTED = "application/json;drop=metadata.managedFields,application/json"
"""What a read is to be answered with: managedFields are most of an object, and nothing reads them.

Kubernetes 1.38 leaves them out; a server that does not know the parameter ignores it.
"""

CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0

_LONGEST_REFUSAL = 65536  # bytes
_PIECE = 65536  # bytes


def connect(
    kubeconfig: Path | None,
    master: str = "",
    *,
    user_agent: str,
    observer: Observer | None = None,
) -> ApiConnection:
    """Return a connection to the API server; nothing is sent yet.

    With neither ``kubeconfig`` nor ``master`` the ServiceAccount of the pod is used. ``master``
    alone has no credentials; together with a kubeconfig it replaces its server. Raises
    :class:`SourceUnavailable` for settings that cannot be used.
    """
    load: Callable[[], Login]
    if kubeconfig is not None:
        load, hint = partial(read_kubeconfig, kubeconfig), f"fix the kubeconfig {kubeconfig}"
        if master:
            load = partial(_with_server, load, master)
    elif master:
        load, hint = partial(_with_server, Login, master), "fix --master"
    else:
        load = of_pod
        hint = (
            "outside of a pod, name the cluster with --kubeconfig or --master,"
            " or a directory with --manifests"
        )
    try:
        return ApiConnection(Credentials(load), user_agent, observer)
    except UNUSABLE as error:
        raise SourceUnavailable(
            f"the API server's address or credentials cannot be used: {_reason(error)}", hint
        ) from error


def _with_server(load: Callable[[], Login], server: str) -> Login:
    """Return a login for another server than its own; without a scheme, TLS needs a CA or a key."""
    login = load()
    if "://" not in server:
        server = f"{'https' if login.tls.ca or login.tls.certificate else 'http'}://{server}"
    return replace(login, server=server.rstrip("/"))


class Response:
    """A response; the body arrives while a thread reads it. Any thread may interrupt the read."""

    def __init__(self, response: BaseHTTPResponse) -> None:
        self._response = response
        self.code: int = response.status

    def header(self, name: str) -> str:
        """Return a header, empty without it."""
        return str(self._response.headers.get(name) or "")

    def pieces(self) -> Iterator[bytes]:
        """Return the body as it comes.

        Raises :class:`Unreachable` when it breaks off, :class:`Silence` when nothing comes.
        """
        try:
            yield from iter(partial(self._response.read1, _PIECE), b"")
        except (NoAnswer, TimeoutError) as error:
            raise Silence(_reason(error)) from error
        except _FAILURES as error:
            raise Unreachable(_reason(error)) from error

    def body(self) -> bytes:
        """Return the body, cut at a length that no sensible error message has."""
        text = b""
        for piece in self.pieces():
            text += piece
            if len(text) > _LONGEST_REFUSAL:
                break
        return text

    def set_timeout(self, seconds: float) -> bool:
        """Set how long the server may send nothing; false if the connection is closed already."""
        socket = getattr(self._response.connection, "sock", None)
        if socket is None:
            return False
        socket.settimeout(seconds)
        return True

    def interrupt(self) -> None:
        """End the read of another thread."""
        try:
            self._response.shutdown()
        except (OSError, RuntimeError, ValueError):
            return  # it has ended by itself

    def close(self) -> None:
        """Return the connection to the pool if the body was read to its end; else close it."""
        if self._response.connection is not None and not self._response.closed:
            self._response.connection.close()
        self._response.close()
        self._response.release_conn()


class ApiConnection:
    """An API server and the credentials for it; any thread may send requests."""

    def __init__(
        self, credentials: Credentials, user_agent: str, observer: Observer | None = None
    ) -> None:
        self._credentials = credentials
        self._user_agent = user_agent
        self.observer = observer
        self.server: str = credentials.server
        """Its URL, without a slash at the end."""

    def get(
        self,
        path: str,
        query: Sequence[tuple[str, str]] = (),
        *,
        read_timeout: float = READ_SECONDS,
        compressed: bool = False,
    ) -> Response:
        """Return the response; the server may send nothing for ``read_timeout`` seconds.

        Raises :class:`Unreachable` or :class:`Refused`. The response must be closed.
        """
        url = f"{path}?{urlencode(query)}" if query else path
        headers = {
            "Accept": ACCEPTED,
            "Accept-Encoding": "gzip" if compressed else "identity",
        }
        return self._request("GET", url, headers, None, read_timeout)

    def send(
        self, method: str, path: str, body: Mapping[str, object], *, content_type: str
    ) -> None:
        """Create (``POST``) or change (``PATCH``) an object; raises as :meth:`get`."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        response = self._request(method, path, headers, body, READ_SECONDS)
        try:
            response.body()
        finally:
            response.close()

    def forward(
        self, namespace: str, pod: str, port: int, *, read_timeout: float = READ_SECONDS
    ) -> ForwardedPort:
        """Return a connection to a port of a Pod, as ``kubectl port-forward`` makes it.

        Raises as :meth:`get`. The connection must be closed.
        """
        from bpfsvc.kube.client.port_forward import open_port  # the agent does not need its library

        login, authorization = self._credentials.login()
        headers = {"User-Agent": self._user_agent, **authorization}
        return open_port(login, headers, (namespace, pod), port, read_timeout)

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: object, timeout: float
    ) -> Response:
        response, used = self._try(method, url, headers, body, timeout)
        if response.code == UNAUTHORIZED:
            response.close()
            self._credentials.renew(used)
            response, _ = self._try(method, url, headers, body, timeout)
        if response.code < 300:
            return response
        try:
            text = response.body()
        except Unreachable:
            text = b""
        finally:
            response.close()
        raise decoding.refusal(text, response.code, response.header("Retry-After"))

    def _try(
        self, method: str, url: str, headers: Mapping[str, str], body: object, timeout: float
    ) -> tuple[Response, int]:
        pools, authorization, used = self._credentials.current()
        began = time.monotonic()
        code = "<error>"
        try:
            response = pools.request(
                method,
                self.server + url,
                headers={"User-Agent": self._user_agent, **headers, **authorization},
                body=None if body is None else msgspec.json.encode(body),
                timeout=Timeout(connect=CONNECT_SECONDS, read=timeout),
                preload_content=False,
            )
            code = str(response.status)
        except _FAILURES as error:
            if isinstance(error, SSLError):
                self._credentials.expire(used)
            raise Unreachable(_reason(error)) from error
        finally:
            if self.observer:
                host = urlsplit(self.server).netloc
                self.observer(method, host, code, time.monotonic() - began)
        return Response(response), used


_FAILURES = (HTTPError, HTTPException, OSError)


def _reason(error: BaseException) -> str:
    """Return in one line what failed: the innermost cause that has a text."""
    if isinstance(error, ApiError):
        return error.message
    if isinstance(error, LoginError):
        return one_line(str(error))
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return one_line(cause.strerror)
        reason = getattr(cause, "reason", None)
        if not isinstance(reason, BaseException):
            reason = cause.__cause__ or cause.__context__
        cause = reason
    if isinstance(error, NoAnswer | TimeoutError):
        return "no answer in time"
    if isinstance(error, ProtocolError):
        return "the connection broke off"
    return one_line(str(getattr(error, "reason", None) or error)) or type(error).__name__
