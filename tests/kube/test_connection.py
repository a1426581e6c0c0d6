"""Connections to an API server: kubeconfigs, pods, tokens that expire, certificates."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.patience import stretched, wait
from bpfsvc.kube.apiserver import ApiServerSource as Source
from bpfsvc.kube.client import credentials, login
from bpfsvc.kube.client.connection import ApiConnection, connect
from bpfsvc.kube.errors import Refused, Unreachable
from bpfsvc.kube.source import SourceUnavailable
from tests.apiserver.fixtures import Certificates
from tests.kube.following import BRISK, NODE, Following, put_cluster, service, status


def kubeconfig(
    directory: Path, server: str, user: dict[str, Any], cluster: dict[str, Any] | None = None
) -> Path:
    """Write a kubeconfig; JSON is YAML."""
    path = directory / "kubeconfig.conf"
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "default",
        "contexts": [{"name": "default", "context": {"cluster": "lab", "user": "me"}}],
        "clusters": [{"name": "lab", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "me", "user": user}],
    }
    path.write_text(json.dumps(body))
    return path


def open_with(path: Path, master: str = "") -> ApiConnection:
    return connect(path, master, user_agent="bpfsvc/test")


def data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def test_a_token_and_a_private_ca(
    tls_api: ApiServer, certificates: Certificates, tmp_path: Path
) -> None:
    """The CA is in a file or in the kubeconfig itself."""
    for ca in (
        {"certificate-authority": str(certificates.ca)},
        {"certificate-authority-data": data(certificates.ca)},
    ):
        path = kubeconfig(tmp_path, tls_api.url(), {"token": "good"}, ca)
        assert status(open_with(path)) == 200
    assert tls_api.requests[-1].headers["user-agent"] == "bpfsvc/test"


def test_a_client_certificate(
    tls_api: ApiServer, certificates: Certificates, tmp_path: Path
) -> None:
    """No token is needed with one."""
    user = {
        "client-certificate-data": data(certificates.client),
        "client-key-data": data(certificates.client_key),
    }
    path = kubeconfig(
        tmp_path, tls_api.url(), user, {"certificate-authority-data": data(certificates.ca)}
    )
    assert status(open_with(path)) == 200


def test_watches_over_tls_end_at_once(
    tls_api: ApiServer, certificates: Certificates, tmp_path: Path
) -> None:
    """The source follows over TLS as well, and closes an idle connection when it is stopped."""
    put_cluster(tls_api)
    ca = {"certificate-authority-data": data(certificates.ca)}
    path = kubeconfig(tmp_path, tls_api.url(), {"token": "good"}, ca)
    seen = Following(Source(open_with(path), NODE, pacing=BRISK), threading.Event())
    seen.wait_synced(tls_api)
    tls_api.cut_watches()
    tls_api.put(service("new"))
    seen.wait_synced(tls_api)
    began = time.monotonic()
    assert seen.end()
    assert time.monotonic() - began < stretched(1)
    wait(lambda: not tls_api.watches, "the end of the watches")


def test_a_foreign_ca_is_refused(tls_api: ApiServer, tmp_path: Path) -> None:
    """Without its CA, a server is refused; the error has the reason."""
    made = open_with(kubeconfig(tmp_path, tls_api.url(), {"token": "good"}))
    with pytest.raises(Unreachable, match="certificate verify failed"):
        status(made)


def test_tls_without_verification_is_logged_once(
    tls_api: ApiServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    """The line is ours; the library's warning at every request is not shown."""
    cluster = {"insecure-skip-tls-verify": True}
    made = open_with(kubeconfig(tmp_path, tls_api.url(), {"token": "good"}, cluster))
    assert [status(made) for _ in range(3)] == [200, 200, 200]
    (line,) = (record.getMessage() for record in caplog.records if record.name == "bpfsvc")
    assert line.startswith(f"the certificate of the API server {tls_api.url()} is not verified")
    assert not recwarn.list


def test_a_ca_that_is_replaced_is_read_again(
    tls_api: ApiServer, certificates: Certificates, tmp_path: Path
) -> None:
    """A kubeconfig that is fixed is used at the next attempt."""
    path = kubeconfig(tmp_path, tls_api.url(), {"token": "good"})
    made = open_with(path)
    with pytest.raises(Unreachable):
        status(made)
    ca = {"certificate-authority-data": data(certificates.ca)}
    kubeconfig(tmp_path, tls_api.url(), {"token": "good"}, ca)
    assert status(made) == 200


def test_a_token_that_is_refused_is_read_again(api: ApiServer, tmp_path: Path) -> None:
    """After a 401 the token file is read again and the request sent once more."""
    token = tmp_path / "token"
    token.write_text("old\n")
    made = open_with(kubeconfig(tmp_path, api.url(), {"tokenFile": str(token)}))
    api.faults.tokens = frozenset({"old"})
    assert status(made) == 200
    api.faults.tokens = frozenset({"new"})
    token.write_text("new\n")
    assert status(made) == 200
    assert [request.status for request in api.requests] == [200, 401, 200]
    token.write_text("wrong\n")
    api.faults.tokens = frozenset({"newest"})
    with pytest.raises(Refused, match="Unauthorized") as caught:
        status(made)
    assert caught.value.code == 401


def test_a_token_file_is_read_before_its_token_expires(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kubeadm's kubeconfig names the ServiceAccount's file, which is written every hour."""
    monkeypatch.setattr(credentials, "_TOKEN_SECONDS", 0.0)
    token = tmp_path / "token"
    token.write_text("old")
    made = open_with(kubeconfig(tmp_path, api.url(), {"tokenFile": "token"}))
    for word in ("old", "new"):
        token.write_text(word)
        api.faults.tokens = frozenset({word})
        assert status(made) == 200
    assert [request.status for request in api.requests] == [200, 200]


def test_an_exec_plugin_provides_a_token(api: ApiServer, tmp_path: Path) -> None:
    """An exec plugin is run at the start, and again when its token is no longer accepted."""
    token, runs = tmp_path / "token", tmp_path / "runs"
    token.write_text("first")
    script = tmp_path / "plugin"
    status_now = f'{{"token":"\'$(cat {shlex.quote(str(token))})\'"}}'
    version = "client.authentication.k8s.io/v1"
    credential = f'{{"apiVersion":"{version}","kind":"ExecCredential","status":{status_now}}}'
    script.write_text(f"#!/bin/sh\necho run >> {shlex.quote(str(runs))}\necho '{credential}'\n")
    script.chmod(0o755)
    plugin = {
        "apiVersion": version,
        "command": str(script),
        "interactiveMode": "Never",
    }
    made = open_with(kubeconfig(tmp_path, api.url(), {"exec": plugin}))
    for word in ("first", "second"):
        token.write_text(word)
        api.faults.tokens = frozenset({word})
        assert status(made) == 200
        assert status(made) == 200
    assert runs.read_text() == "run\nrun\n"


class _Issuer(BaseHTTPRequestHandler):
    """An OIDC issuer that gives one token for any refresh token."""

    token = f"e30.{base64.urlsafe_b64encode(b'{}').decode().rstrip('=')}.fresh"

    def do_GET(self) -> None:
        self._answer({"token_endpoint": f"http://{self.headers['Host']}/token"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(
            {
                "access_token": "a",
                "token_type": "Bearer",
                "id_token": self.token,
                "refresh_token": "next",
            }
        )

    def _answer(self, body: dict[str, str]) -> None:
        text = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_expired_token_of_oidc_is_refreshed(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubernetes package and OAuth run in a process of their own."""
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    issuer = HTTPServer(("127.0.0.1", 0), _Issuer)
    thread = threading.Thread(target=issuer.serve_forever)
    thread.start()
    expired = base64.urlsafe_b64encode(b'{"exp": 1}').decode().rstrip("=")
    settings = {
        "client-id": "me",
        "client-secret": "secret",
        "id-token": f"e30.{expired}.x",
        "idp-issuer-url": f"http://127.0.0.1:{issuer.server_port}",
        "refresh-token": "first",
    }
    api.faults.tokens = frozenset({_Issuer.token})
    user = {"auth-provider": {"name": "oidc", "config": settings}}
    try:
        made = open_with(kubeconfig(tmp_path, api.url(), user))
        assert status(made) == 200
    finally:
        issuer.shutdown()
        thread.join()
        issuer.server_close()


def test_name_and_password(api: ApiServer, tmp_path: Path) -> None:
    """Basic authentication is sent as the kubeconfig has it."""
    made = open_with(kubeconfig(tmp_path, api.url(), {"username": "me", "password": "secret"}))
    assert status(made) == 200
    expected = "Basic " + base64.b64encode(b"me:secret").decode()
    assert api.requests[-1].headers["authorization"] == expected


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_master_takes_the_place_of_the_server(api: ApiServer, tmp_path: Path, scheme: str) -> None:
    """The credentials stay those of the kubeconfig, at every request."""
    api.faults.tokens = frozenset({"good"})
    path = kubeconfig(tmp_path, "http://192.0.2.1:6443", {"token": "good"})
    made = open_with(path, scheme + api.url().removeprefix("http://"))
    assert made.server == api.url()
    assert [status(made), status(made)] == [200, 200]


def test_a_server_below_a_path(api: ApiServer, tmp_path: Path) -> None:
    """Some servers are reached through another, below a path of it."""
    path = kubeconfig(tmp_path, api.url() + "/k8s/clusters/c-1/", {"token": "good"})
    made = open_with(path)
    with pytest.raises(Refused):
        status(made)
    assert api.requests[-1].path == "/k8s/clusters/c-1/api/v1/services"


def test_the_service_account_of_a_pod(
    tls_api: ApiServer,
    certificates: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Address and files are those that the kubelet gives; a new token is taken after a 401."""
    token = tmp_path / "token"
    token.write_text("good\n")
    (tmp_path / "ca.crt").write_bytes(certificates.ca.read_bytes())
    monkeypatch.setattr(login, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(tls_api.port))
    made = connect(None, user_agent="test")
    assert made.server == tls_api.url()
    assert status(made) == 200
    token.write_text("better\n")
    tls_api.faults.tokens = frozenset({"better"})
    assert status(made) == 200


def test_outside_of_a_pod_the_error_has_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any settings, the flags are named."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SourceUnavailable, match="--kubeconfig"):
        connect(None, user_agent="test")


@pytest.mark.parametrize(
    "text",
    [None, "", "a: [", "[]", "apiVersion: v1", "current-context: x\ncontexts: 5\n", "\0"],
    ids=["missing", "empty", "no YAML", "a list", "nothing in it", "wrong types", "binary"],
)
def test_a_kubeconfig_that_cannot_be_used(tmp_path: Path, text: str | None) -> None:
    """It is named in one line, with what is wrong."""
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SourceUnavailable, match=str(path)) as caught:
        open_with(path)
    assert "\n" not in str(caught.value)


# -- what it costs --


def test_the_agent_loads_nothing_of_the_kubernetes_package(tmp_path: Path) -> None:
    """The package would take 23 MB; OAuth, and what else it imports, is part of that."""
    path = kubeconfig(tmp_path, "http://192.0.2.1", {"token": "good"})
    script = (
        "import sys; from pathlib import Path; import bpfsvc.kube.apiserver\n"
        "from bpfsvc.kube.client.connection import connect\n"
        "connect(Path(sys.argv[1]), user_agent='x')\n"
        "print({'kubernetes', 'pydantic', 'requests', 'oauthlib'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", script, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
