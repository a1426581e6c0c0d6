"""HTTP with the API server, by the ``kubernetes`` package: its configuration, credentials and TLS.

This is the only module that knows the package. Kubeconfigs with all their plugins, the files of a
ServiceAccount, proxies and client certificates are its business; its thousand model classes are
not wanted, so only the modules in question are imported, without the packages around them (23 MB
less). Nothing is retried in here, for those who ask have better reasons to wait or not to. The one
exception are credentials: they expire in the middle of everything, so they are read anew and the
request is made a second time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode, urlsplit

from bpfsvc.apiserver import decoding
from bpfsvc.apiserver.trouble import UNAUTHORIZED, ApiError, Unreachable, one_line
from bpfsvc.bare import bare_package
from bpfsvc.memory import without
from bpfsvc.sources import SourceUnavailable

_PARTS = ("kubernetes", "kubernetes.client", "kubernetes.config", "kubernetes.utils")

with ExitStack() as _bare:
    for _part in _PARTS:
        _bare.enter_context(bare_package(_part))
    from kubernetes.client.configuration import Configuration
    from kubernetes.client.exceptions import ApiException
    from kubernetes.client.rest import RESTClientObject
    from kubernetes.utils.keepalive import tcp_keepalive_socket_options
    from urllib3.exceptions import HTTPError, ProtocolError, SSLError
    from urllib3.exceptions import TimeoutError as Silence

Observer = Callable[[str, str, str, float], None]
"""Is told of every request: method, host, code (``<error>`` without an answer), seconds."""

CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0

_PIECE = 65536  # bytes
_LONGEST_REFUSAL = 65536  # bytes
_KEEPALIVE = {"idle": 30, "interval": 10, "count": 3}
"""A peer that is gone without a word is noticed after a minute."""

_REREAD_SECONDS = 60.0
"""How old a token out of a file may be; the kubelet writes a new one long before it expires."""

_CONNECTIONS = 8
"""Kept open at most: a watch for each resource, and one for events."""

_TLS = ("ssl_ca_cert", "cert_file", "key_file", "verify_ssl", "tls_server_name", "proxy")
"""What of a configuration a pool of connections is made with."""


def connect(
    kubeconfig: Path | None,
    master: str = "",
    *,
    user_agent: str,
    observer: Observer | None = None,
) -> Connection:
    """Prepare to talk with the API server; nothing is sent yet.

    With neither ``kubeconfig`` nor ``master`` the ServiceAccount of the pod is used. ``master``
    alone has no credentials; together with a kubeconfig it takes the place of its server. Raises
    :class:`SourceUnavailable` for what cannot be used.
    """
    if kubeconfig is not None:
        load = _of_kubeconfig(kubeconfig)
        hint = f"mend the kubeconfig {kubeconfig}"
    elif master:
        load, hint = Configuration, "mend --master"
    else:
        load = _of_pod()
        hint = (
            "outside of a pod, name the cluster with --kubeconfig or --master,"
            " or a directory with --manifests"
        )
    try:
        return Connection(_Login(load, master), user_agent, observer)
    except _UNUSABLE as error:
        raise SourceUnavailable(f"no way to the API server: {_words(error)}", hint) from error


class Answer:
    """An answer whose body arrives while it is read. One thread reads; any may interrupt."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self.code: int = response.status

    def header(self, name: str) -> str:
        """Give a header, empty without it."""
        return str(self._response.headers.get(name) or "")

    def pieces(self) -> Iterator[bytes]:
        """Give the body as it comes; raises :class:`Unreachable` when it breaks off."""
        read = self._response.read1
        try:
            while piece := read(_PIECE):
                yield piece
        except _FAILURES as error:
            raise Unreachable(_words(error)) from error

    def body(self) -> bytes:
        """Give all of it, up to a length that no sensible refusal has."""
        text = b""
        for piece in self.pieces():
            text += piece
            if len(text) > _LONGEST_REFUSAL:
                break
        return text

    def wait_for(self, seconds: float) -> bool:
        """Let the next silence be so long; tell whether that can still be changed."""
        socket = getattr(self._response.connection, "sock", None)
        if socket is None:
            return False
        socket.settimeout(seconds)
        return True

    def interrupt(self) -> None:
        """Let the reader come to an end, from another thread."""
        try:
            self._response.shutdown()
        except (OSError, RuntimeError, ValueError):
            return  # it has come to an end by itself

    def close(self) -> None:
        """Give the connection back if the body was read to its end; close it otherwise."""
        if self._response.connection is not None and not self._response.isclosed():
            self._response.connection.close()
        self._response.close()
        self._response.release_conn()


class Connection:
    """An API server and the right to talk with it; any thread may."""

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
    ) -> Answer:
        """Ask; ``read_timeout`` is the longest silence in seconds, before and in the answer.

        Raises :class:`Unreachable` or :class:`Refused`. The answer must be closed.
        """
        url = f"{path}?{urlencode(query)}" if query else path
        headers = {
            "Accept": "application/json",
            "Accept-Encoding": "gzip" if compressed else "identity",
        }
        return self._ask("GET", url, headers, None, read_timeout)

    def send(
        self, method: str, path: str, body: Mapping[str, object], *, content_type: str
    ) -> None:
        """Create (``POST``) or change (``PATCH``); raises as :meth:`get`."""
        headers = {"Accept": "application/json", "Content-Type": content_type}
        answer = self._ask(method, path, headers, body, READ_SECONDS)
        try:
            answer.body()
        finally:
            answer.close()

    def _ask(
        self, method: str, url: str, headers: Mapping[str, str], body: object, timeout: float
    ) -> Answer:
        answer, used = self._try(method, url, headers, body, timeout)
        if answer.code == UNAUTHORIZED:
            answer.close()
            self._login.renew(used)
            answer, _ = self._try(method, url, headers, body, timeout)
        if answer.code < 300:
            return answer
        try:
            text = answer.body()
        except Unreachable:
            text = b""
        finally:
            answer.close()
        raise decoding.refusal(text, answer.code, answer.header("Retry-After"))

    def _try(
        self, method: str, url: str, headers: Mapping[str, str], body: object, timeout: float
    ) -> tuple[Answer, int]:
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
                self._login.distrust(used)
            raise Unreachable(_words(error)) from error
        finally:
            if self.observer:
                host = urlsplit(self.server).netloc
                self.observer(method, host, code, time.monotonic() - began)
        return Answer(response), used


class _Login:
    """The package's configuration, read again when it is old or no longer accepted."""

    def __init__(self, load: Callable[[], Any], master: str) -> None:
        self._load = load
        self._master = master
        self._lock = threading.Lock()
        self._number = 0
        self._read()
        self.server = self._server

    def current(self) -> tuple[Any, dict[str, str], int]:
        """Give the client, the headers of the credentials, and a number for :meth:`renew`.

        Raises :class:`Unreachable` if the credentials cannot be read just now.
        """
        with self._lock:
            try:
                if time.monotonic() >= self._read_again_at:
                    self._read()
                # This runs the package's own hook, which knows when a token is about to expire.
                settings = self._configuration.auth_settings().values()
                if self._made_with != self._traits():
                    self._make_client()
            except _UNUSABLE as error:
                raise Unreachable(f"the credentials cannot be read: {_words(error)}") from error
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
                raise Unreachable(f"the credentials cannot be read: {_words(error)}") from error

    def distrust(self, used: int) -> None:
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
        if self._number == 1 or self._made_with != self._traits():
            self._make_client()

    def _make_client(self) -> None:
        # The package's hook writes the host of the kubeconfig, which --master overrides.
        self._configuration.host = self._server
        self._client = RESTClientObject(self._configuration)
        self._made_with = self._traits()

    def _traits(self) -> tuple[object, ...]:
        return tuple(getattr(self._configuration, name, None) for name in _TLS)


def _of_pod() -> Callable[[], Any]:
    """Read what the kubelet gives every pod: address, CA and a token that the package renews."""
    module = _import("kubernetes.config.incluster_config")

    def load() -> Any:
        configuration = Configuration()
        module.load_incluster_config(configuration)
        return configuration

    return load


def _of_kubeconfig(path: Path) -> Callable[[], Any]:
    def load() -> Any:
        text = path.read_bytes()
        # OIDC alone needs the whole package, and OAuth.
        module = _import("kubernetes.config.kube_config", whole=b"auth-provider" in text)
        configuration = Configuration()
        try:
            module.load_kube_config(
                str(path), client_configuration=configuration, persist_config=False
            )
        except module.yaml.YAMLError as error:
            raise ValueError(f"{path} is no YAML: {error}") from error
        if b"tokenFile" in text:
            # The package reads such a file once only.
            configuration.reread_seconds = _REREAD_SECONDS
        return configuration

    return load


def _import(name: str, *, whole: bool = False) -> ModuleType:
    """Import a module of ``kubernetes.config``, without what surrounds it unless ``whole``."""
    if name not in _imported or whole:
        with ExitStack() as stack:
            if not whole:
                for part in _PARTS:
                    stack.enter_context(bare_package(part))
                stack.enter_context(without("google"))
                _stand_in(stack, "oauthlib.oauth2", "requests_oauthlib")
                client = sys.modules["kubernetes.client"]
                vars(client).setdefault("Configuration", Configuration)
                vars(client).setdefault("ApiClient", None)
            __import__(name)
            _imported[name] = sys.modules[name]
    return _imported[name]


_imported: dict[str, ModuleType] = {}


def _stand_in(stack: ExitStack, *names: str) -> None:
    """Put empty modules in the place of libraries whose only use is one that is excluded."""
    for name in names:
        parent = name.partition(".")[0]
        if parent in sys.modules:
            continue
        for each in {parent, name}:
            module = ModuleType(each)
            module.OAuth2Session = None  # type: ignore[attr-defined]
            sys.modules[each] = module
            stack.callback(sys.modules.pop, each, None)


_FAILURES = (HTTPError, HTTPException, OSError, ApiException)

_UNUSABLE = Exception
"""A kubeconfig of a wrong shape makes the package raise whatever its code happens to meet."""


def _is_tls(error: Exception) -> bool:
    return isinstance(error, SSLError) or (isinstance(error, ApiException) and not error.status)


def _words(error: BaseException) -> str:
    """Say in one line what failed, in the words of whoever knows best."""
    if isinstance(error, ApiError):
        return error.message
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror:
            place = f"{seen.filename}: " if seen.filename else ""
            return one_line(place + seen.strerror)
        reason = getattr(seen, "reason", None)
        seen = reason if isinstance(reason, BaseException) else seen.__cause__ or seen.__context__
    if isinstance(error, Silence):
        return "no answer in time"
    if isinstance(error, ProtocolError):
        return "the connection broke off"
    return one_line(str(getattr(error, "reason", None) or error)) or type(error).__name__
