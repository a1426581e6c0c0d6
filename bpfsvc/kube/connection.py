"""HTTP with the API server, by the ``kubernetes`` package: its configuration, credentials and TLS.

This is the only module that imports the package. It reads kubeconfigs with all their plugins and
the files of a ServiceAccount, and knows proxies and client certificates. Its thousand model classes
are not needed, so only single modules are imported, without the packages around them (23 MB less).
Nothing is retried here; the callers know how long to wait. The one exception are credentials that
have expired: they are read again and the request is sent a second time.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode, urlsplit

from bpfsvc.base.lean_import import deferred, imported_on_call, lean, without
from bpfsvc.kube import chunks, decoding
from bpfsvc.kube.errors import UNAUTHORIZED, ApiError, Silence, Unreachable, one_line
from bpfsvc.kube.source import SourceUnavailable

with lean("kubernetes"):
    from kubernetes.client.configuration import Configuration
    from kubernetes.client.exceptions import ApiException
    from kubernetes.client.rest import RESTClientObject
    from kubernetes.utils.keepalive import tcp_keepalive_socket_options
    from urllib3.exceptions import HTTPError, InsecureRequestWarning, ProtocolError, SSLError
    from urllib3.exceptions import TimeoutError as NoAnswer

Observer = Callable[[str, str, str, float], None]
"""Called for every request: method, host, code (``<error>`` without an answer), seconds."""

_log = logging.getLogger("bpfsvc")

_INSECURE = (
    "the certificate of the API server %s is not verified (insecure-skip-tls-verify): another "
    "server can answer in its place and read the credentials; put its CA into the kubeconfig"
)

CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0

_LONGEST_REFUSAL = 65536  # bytes
_KEEPALIVE = {"idle": 30, "interval": 10, "count": 3}
"""A peer that is gone is noticed after a minute."""

_REREAD_SECONDS = 60.0
"""How old a token from a file may be; the kubelet writes a new one long before it expires."""

_CONNECTIONS = 8
"""Kept open at most: a watch for each resource, and one for Events."""

_TLS = ("ssl_ca_cert", "cert_file", "key_file", "verify_ssl", "tls_server_name", "proxy")
"""The fields of a configuration that a pool of connections is made with."""


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
    if kubeconfig is not None:
        load = _of_kubeconfig(kubeconfig)
        hint = f"fix the kubeconfig {kubeconfig}"
    elif master:
        load, hint = Configuration, "fix --master"
    else:
        load = _of_pod()
        hint = (
            "outside of a pod, name the cluster with --kubeconfig or --master,"
            " or a directory with --manifests"
        )
    try:
        return ApiConnection(_Login(load, master), user_agent, observer)
    except _UNUSABLE as error:
        raise SourceUnavailable(
            f"the API server's address or credentials cannot be used: {_reason(error)}", hint
        ) from error


class Response:
    """A response whose body arrives while it is read. One thread reads; any may interrupt."""

    def __init__(self, response: Any) -> None:
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
            yield from chunks.body(self._response)
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
        if self._response.connection is not None and not self._response.isclosed():
            self._response.connection.close()
        self._response.close()
        self._response.release_conn()


class ApiConnection:
    """An API server and the credentials for it; any thread may send requests."""

    def __init__(self, login: _Login, user_agent: str, observer: Observer | None = None) -> None:
        self._login = login
        self._user_agent = user_agent
        self.observer = observer
        self.server = login.server
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
            "Accept": "application/json",
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

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], body: object, timeout: float
    ) -> Response:
        response, used = self._try(method, url, headers, body, timeout)
        if response.code == UNAUTHORIZED:
            response.close()
            self._login.renew(used)
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
        client, credentials, used = self._login.current()
        began = time.monotonic()
        code = "<error>"
        try:
            response = client.request(
                method,
                self.server + url,
                headers={"User-Agent": self._user_agent, **headers, **credentials},
                body=body,
                _request_timeout=(CONNECT_SECONDS, timeout),
            ).response
            code = str(response.status)
        except _FAILURES as error:
            if _is_tls(error):
                self._login.expire(used)
            raise Unreachable(_reason(error)) from error
        finally:
            if self.observer:
                host = urlsplit(self.server).netloc
                self.observer(method, host, code, time.monotonic() - began)
        return Response(response), used


class _Login:
    """The package's configuration, read again when it is old or no longer accepted."""

    def __init__(self, load: Callable[[], Any], master: str) -> None:
        self._load = load
        self._master = master
        self._lock = threading.Lock()
        self._number = 0
        self._is_insecure = False
        self._read()
        self.server = self._server

    def current(self) -> tuple[Any, dict[str, str], int]:
        """Return the client, the headers of the credentials, and a number for :meth:`renew`.

        Raises :class:`Unreachable` if the credentials cannot be read just now.
        """
        with self._lock:
            try:
                if time.monotonic() >= self._read_again_at:
                    self._read()
                # This runs the package's own hook, which renews a token that is about to expire.
                settings = self._configuration.auth_settings().values()
                if self._made_with != self._tls_fields():
                    self._make_client()
            except _UNUSABLE as error:
                raise Unreachable(f"the credentials cannot be read: {_reason(error)}") from error
            headers = {each["key"]: str(each["value"]).strip() for each in settings}
            return self._client, headers, self._number

    def renew(self, used: int) -> None:
        """Read everything again, unless another thread has done so since ``used``."""
        with self._lock:
            if used != self._number:
                return
            try:
                self._read()
            except _UNUSABLE as error:
                raise Unreachable(f"the credentials cannot be read: {_reason(error)}") from error

    def expire(self, used: int) -> None:
        """Read everything again before the next request: a certificate may have been replaced."""
        with self._lock:
            if used == self._number:
                self._read_again_at = time.monotonic()

    def _read(self) -> None:
        configuration = self._load()
        configuration.retries = False
        configuration.connection_pool_maxsize = _CONNECTIONS
        configuration.socket_options = tcp_keepalive_socket_options(**_KEEPALIVE)
        if self._master:
            server = self._master
            if "://" not in server:
                has_tls = configuration.ssl_ca_cert or configuration.cert_file
                server = f"{'https' if has_tls else 'http'}://{server}"
        else:
            server = configuration.host
        self._configuration = configuration
        self._server = server.rstrip("/")
        self._number += 1
        again = getattr(configuration, "reread_seconds", float("inf"))
        self._read_again_at = time.monotonic() + again
        if self._number == 1 or self._made_with != self._tls_fields():
            self._make_client()

    def _make_client(self) -> None:
        is_insecure = self._server.startswith("https:") and not self._configuration.verify_ssl
        if is_insecure and not self._is_insecure:
            _log.warning(_INSECURE, self._server)
            # The library's own would come at every request.
            warnings.simplefilter("ignore", InsecureRequestWarning)
        self._is_insecure = is_insecure
        # The package's hook sets the host of the kubeconfig, which --master overrides.
        self._configuration.host = self._server
        self._client = RESTClientObject(self._configuration)
        self._made_with = self._tls_fields()

    def _tls_fields(self) -> tuple[object, ...]:
        return tuple(getattr(self._configuration, name, None) for name in _TLS)


def _of_pod() -> Callable[[], Any]:
    """Return a reader of what every pod has: address, CA and a token that the package renews."""
    module = _import("kubernetes.config.incluster_config")

    def load() -> Any:
        configuration = Configuration()
        module.load_incluster_config(configuration)
        return configuration

    return load


def _of_kubeconfig(path: Path) -> Callable[[], Any]:
    def load() -> Any:
        text = path.read_bytes()
        module = _import("kubernetes.config.kube_config")
        configuration = Configuration()
        try:
            module.load_kube_config(
                str(path), client_configuration=configuration, persist_config=False
            )
        except module.yaml.YAMLError as error:
            raise ValueError(f"{path} is no YAML: {error}") from error
        if b"tokenFile" in text:
            # The package reads such a file only once.
            configuration.reread_seconds = _REREAD_SECONDS
        return configuration

    return load


def _import(name: str) -> ModuleType:
    """Import a module of ``kubernetes.config`` without what surrounds it.

    For OIDC tokens that have expired, and for nothing else, ``kube_config`` needs the package's
    client and OAuth. They are imported when that happens: the client takes 14 MB, OAuth 5.3 MB and
    50 ms of CPU.
    """
    if name not in _imported:
        with ExitStack() as stack:
            stack.enter_context(lean("kubernetes", _MEMBERS))
            stack.enter_context(without("google"))
            for library, members in _DEFERRED.items():
                stack.enter_context(deferred(library, **members))
            _imported[name] = importlib.import_module(name)
    return _imported[name]


_imported: dict[str, ModuleType] = {}

_MEMBERS: dict[str, dict[str, object]] = {
    "kubernetes.client": {
        "Configuration": Configuration,
        "ApiClient": imported_on_call("kubernetes.client", "ApiClient"),
    }
}
_DEFERRED: dict[str, dict[str, object]] = {
    "oauthlib": {},
    "oauthlib.oauth2": {},
    "requests_oauthlib": {"OAuth2Session": imported_on_call("requests_oauthlib", "OAuth2Session")},
}

_FAILURES = (HTTPError, HTTPException, OSError, ApiException)

_UNUSABLE = Exception
"""A kubeconfig with a wrong structure makes the package raise errors of any kind."""


def _is_tls(error: Exception) -> bool:
    return isinstance(error, SSLError) or (isinstance(error, ApiException) and not error.status)


def _reason(error: BaseException) -> str:
    """Return in one line what failed: the innermost cause that has a text."""
    if isinstance(error, ApiError):
        return error.message
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            place = f"{seen.filename}: " if seen.filename else ""
            return one_line(place + seen.strerror)
        reason = getattr(seen, "reason", None)
        seen = reason if isinstance(reason, BaseException) else seen.__cause__ or seen.__context__
    if isinstance(error, NoAnswer | TimeoutError):
        return "no answer in time"
    if isinstance(error, ProtocolError):
        return "the connection broke off"
    return one_line(str(getattr(error, "reason", None) or error)) or type(error).__name__
