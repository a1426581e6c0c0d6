"""A kubeconfig becomes a login.

The format is ``client.Config`` of Kubernetes (``k8s.io/client-go/tools/clientcmd/api/v1``). Most
kubeconfigs name files or hold the credentials. Only a kubeconfig with a login plugin (``exec`` or
``auth-provider``) needs the ``kubernetes`` package: the package runs the plugin in another process,
which ends afterwards. Loaded into the agent, the package would take 23 MB and 0.2 s.
"""

from __future__ import annotations

import binascii
import importlib.util
import subprocess
import sys
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bpfsvc.base import yaml_documents
from bpfsvc.base.yaml_documents import YamlError
from bpfsvc.kube.client.login import Login, LoginError, Tls, read_file

_PLUGIN = "bpfsvc.kube.client.plugin"
_PLUGIN_SECONDS = 60.0


class _Cluster(msgspec.Struct, rename="kebab"):
    server: str | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool | None = None
    tls_server_name: str | None = None
    proxy_url: str | None = None


class _User(msgspec.Struct, rename="kebab"):
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    username: str | None = None
    password: str | None = None
    exec: dict[str, Any] | None = None
    auth_provider: dict[str, Any] | None = None


class _Context(msgspec.Struct):
    cluster: str
    user: str | None = None


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct):
    name: str
    user: _User | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: _Context


class _Kubeconfig(msgspec.Struct):
    context: str = msgspec.field(name="current-context")
    clusters: list[_NamedCluster]
    contexts: list[_NamedContext]
    users: list[_NamedUser] | None = None

    def active(self) -> tuple[_Cluster, _User]:
        """Return cluster and user of the current context; raise ``ValueError`` without them."""
        context = next((item.context for item in self.contexts if item.name == self.context), None)
        if context is None:
            raise ValueError(f"there is no context {self.context!r}")
        cluster = next(
            (item.cluster for item in self.clusters if item.name == context.cluster), None
        )
        if cluster is None:
            raise ValueError(f"there is no cluster {context.cluster!r}")
        users = (item.user for item in self.users or () if item.name == context.user)
        return cluster, next(users, None) or _User()


class PluginResult(msgspec.Struct):
    """What a login plugin has returned; certificate and key are PEM."""

    authorization: str = ""
    certificate: str = ""
    key: str = ""
    expires: float = float("inf")


def read_kubeconfig(path: Path) -> Login:
    """Return the login of a kubeconfig's current context.

    Raises :class:`LoginError`.
    """
    text = read_file(path)
    try:
        document = next(yaml_documents.read(text, last_wins=True), None)
        if document is None:
            raise ValueError("the file is empty")
        cluster, user = msgspec.convert(document.value, _Kubeconfig).active()
        login = _login(path.absolute().parent, cluster, user)
    except (YamlError, msgspec.ValidationError, ValueError) as error:
        raise LoginError(f"{path}: {error}") from error
    has_token = bool(user.token or user.token_file)
    if user.auth_provider or (user.exec and not has_token):
        return _run_plugin(path, login)
    return login


def _login(directory: Path, cluster: _Cluster, user: _User) -> Login:
    server = (cluster.server or "http://localhost").rstrip("/")
    tls = Tls()
    if server.startswith("https:"):
        tls = Tls(
            ca=_pem(directory, cluster.certificate_authority_data, cluster.certificate_authority),
            certificate=_pem(directory, user.client_certificate_data, user.client_certificate),
            key=_pem(directory, user.client_key_data, user.client_key),
            server_name=cluster.tls_server_name or "",
            verify=not cluster.insecure_skip_tls_verify,
        )
    login = Login(server=server, proxy=cluster.proxy_url or "", tls=tls)
    if user.token:
        return replace(login, authorization=f"Bearer {user.token.strip()}")
    if user.token_file:
        return replace(login, token_file=directory / user.token_file)
    if user.username is not None and user.password is not None:
        basic = b64encode(f"{user.username}:{user.password}".encode()).decode()
        return replace(login, authorization=f"Basic {basic}")
    return login


def _pem(directory: Path, data: str | None, file: str | None) -> bytes:
    """Return what a kubeconfig holds in base64, or else the file that the kubeconfig names."""
    if data:
        try:
            return b64decode(data)
        except binascii.Error as error:
            raise ValueError(f"a certificate or a key is not base64: {error}") from error
    return read_file(directory / file) if file else b""


def _run_plugin(path: Path, login: Login) -> Login:
    """Run the login plugin of a kubeconfig; return the login with what the plugin returned."""
    if importlib.util.find_spec(_PLUGIN) is None:
        raise LoginError(
            f"{path} has a login plugin, and this image runs none: use a kubeconfig with a token or"
            " a certificate, or the image whose name ends with -compiler"
        )
    command = (sys.executable, "-m", _PLUGIN, str(path))
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PLUGIN_SECONDS, check=False)
        result = msgspec.json.decode(done.stdout, type=PluginResult)
    except subprocess.TimeoutExpired:
        raise LoginError(f"{path}: the login plugin took {_PLUGIN_SECONDS:.0f} s") from None
    except msgspec.MsgspecError as error:
        raise LoginError(f"{path}: the login plugin failed: {error}") from error
    if not (result.authorization or result.certificate):
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no credentials"]
        raise LoginError(f"{path}: the login plugin failed: {lines[-1]}")
    tls = login.tls
    if result.certificate:
        tls = replace(tls, certificate=result.certificate.encode(), key=result.key.encode())
    return replace(
        login,
        authorization=result.authorization,
        token_file=None,
        expires=result.expires,
        tls=tls,
    )
