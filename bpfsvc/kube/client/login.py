"""Where the API server is, and the credentials for it, as one value."""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts the files ``token`` and ``ca.crt`` into every pod."""

_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
"""The environment variables by which the kubelet tells every pod the API server's address."""


class LoginError(Exception):
    """The address or the credentials cannot be used; the text names the file and the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How to make connections by TLS; certificates and the key are PEM.

    ``ca`` is empty for the CAs of the system. ``server_name`` is the name that the certificate of
    the server must have, if the name differs from the host of the URL.
    """

    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    server_name: str = ""
    verify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A login.

    * ``server``: the URL, without a slash at the end.
    * ``proxy``: the URL of a proxy on the way to the server; empty without a proxy.
    * ``authorization``: the HTTP header; empty without one.
    * ``token_file``: a file with a token, which takes the place of ``authorization``. The kubelet
      writes a new token into the file long before the old token expires.
    * ``expires``: when ``authorization`` or the certificate expires, in Unix seconds.
    """

    server: str = "http://localhost"
    proxy: str = ""
    authorization: str = field(default="", repr=False)
    token_file: Path | None = None
    expires: float = float("inf")
    tls: Tls = Tls()


def of_pod() -> Login:
    """Return the login that every pod has.

    See "Accessing the Kubernetes API from a Pod" in the documentation of Kubernetes. Raises
    :class:`LoginError` outside of a pod.
    """
    host, port = os.environ.get(_HOST), os.environ.get(_PORT)
    if not host or not port:
        raise LoginError(f"{_HOST} and {_PORT} are not set")
    token = SERVICE_ACCOUNT / "token"
    read_token(token)
    return Login(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        token_file=token,
        tls=Tls(ca=read_file(SERVICE_ACCOUNT / "ca.crt")),
    )


def read_token(path: Path) -> str:
    """Return the token in a file; raise :class:`LoginError` if there is none."""
    token = read_file(path).decode(errors="replace").strip()
    if not token:
        raise LoginError(f"{path} is empty")
    return token


def read_file(path: Path) -> bytes:
    """Return the content of a file; raise :class:`LoginError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise LoginError(f"{path}: {error.strerror}") from error


def find_proxy(server: str, proxy: str) -> str:
    """Return the proxy for a server: ``proxy``, or the proxy of the environment.

    Returns an empty string if there is no proxy, or if ``no_proxy`` names the server.
    """
    parts = urlsplit(server)
    proxy = proxy or _environment(f"{parts.scheme}_proxy") or _environment("all_proxy")
    if not proxy or any(_names(rule, parts) for rule in _environment("no_proxy").split(",")):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _environment(name: str) -> str:
    return os.environ.get(name) or os.environ.get(name.upper()) or ""


def _names(rule: str, server: SplitResult) -> bool:
    """True if a rule of ``no_proxy`` (``*``, network, host or domain) names a server."""
    rule = rule.strip().lower()
    host = server.hostname or ""
    with suppress(ValueError):
        return ipaddress.ip_address(host) in ipaddress.ip_network(rule, strict=False)
    domain = rule.lstrip(".")
    names = (f".{host}", f".{server.netloc.lower()}")
    return rule == "*" or bool(domain and any(name.endswith(f".{domain}") for name in names))
