"""Logins: kubeconfigs in all their forms, login plugins, proxies."""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.kube.client.kubeconfig import read_kubeconfig
from bpfsvc.kube.client.login import LoginError, find_proxy
from bpfsvc.kube.errors import Refused, Unreachable
from tests.apiserver.fixtures import Certificates
from tests.kube.following import status
from tests.kube.test_connection import data, kubeconfig, open_with

SERVER = "https://192.0.2.1:6443"
VERSION = "client.authentication.k8s.io/v1"


def plugin(directory: Path, **status: str) -> dict[str, Any]:
    """Return the ``exec`` of a user; the plugin returns ``status``, or fails without one."""
    credential = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
    script = directory / "plugin"
    act = f"printf '%s' {shlex.quote(json.dumps(credential))}"
    if not status:
        act = "echo no card >&2; exit 1"
    script.write_text(f"#!/bin/sh\n{act}\n")
    script.chmod(0o755)
    return {"apiVersion": VERSION, "command": "./plugin", "interactiveMode": "Never"}


def test_an_exec_plugin_provides_a_certificate(
    tls_api: ApiServer, certificates: Certificates, tmp_path: Path
) -> None:
    user = plugin(
        tmp_path,
        clientCertificateData=certificates.client.read_text(),
        clientKeyData=certificates.client_key.read_text(),
    )
    cluster = {"certificate-authority": str(certificates.ca)}
    path = kubeconfig(tmp_path, tls_api.url(), {"exec": user}, cluster)
    assert status(open_with(path)) == 200


def test_the_plugin_runs_again_before_its_token_expires(api: ApiServer, tmp_path: Path) -> None:
    user = plugin(tmp_path, token="old", expirationTimestamp="2020-01-01T00:00:00Z")
    made = open_with(kubeconfig(tmp_path, api.url(), {"exec": user}))
    plugin(tmp_path, token="new", expirationTimestamp="2100-01-01T00:00:00Z")
    api.faults.tokens = frozenset({"new"})
    assert status(made) == 200
    plugin(tmp_path)
    assert status(made) == 200
    assert len(api.requests) == 2


def test_a_plugin_that_fails_is_an_error_with_its_reason(tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, SERVER, {"exec": plugin(tmp_path)})
    with pytest.raises(LoginError, match=f"{path}: the login plugin failed: .*no card"):
        read_kubeconfig(path)


@pytest.mark.parametrize(
    ("user", "authorization"),
    [
        ({"token": "t", "username": "me", "password": "x"}, "Bearer t"),
        ({"token": "t", "exec": {"command": "/missing"}}, "Bearer t"),
        ({"username": "me"}, ""),
        ({"token": None}, ""),
    ],
)
def test_a_token_comes_before_other_credentials(
    tmp_path: Path, user: dict[str, Any], authorization: str
) -> None:
    assert read_kubeconfig(kubeconfig(tmp_path, SERVER, user)).authorization == authorization


@pytest.mark.parametrize(
    ("user", "cluster", "reason"),
    [
        ({"token": 5}, {}, r"Expected `str | null`, got `int` - at `\$.users\[0\].user.token`"),
        ({}, {"certificate-authority": "ca.crt"}, "ca.crt: No such file"),
        ({}, {"certificate-authority-data": "abc"}, "not base64"),
    ],
)
def test_what_is_wrong_in_a_kubeconfig_is_named(
    tmp_path: Path, user: dict[str, Any], cluster: dict[str, Any], reason: str
) -> None:
    with pytest.raises(LoginError, match=reason):
        read_kubeconfig(kubeconfig(tmp_path, SERVER, user, cluster))


def test_the_certificate_must_have_the_tls_server_name(
    tls_api: ApiServer, certificates: Certificates, tmp_path: Path
) -> None:
    ca = {"certificate-authority-data": data(certificates.ca)}
    cluster = {**ca, "tls-server-name": "another.example"}
    with pytest.raises(Unreachable, match=r"another\.example"):
        status(open_with(kubeconfig(tmp_path, tls_api.url(), {"token": "good"}, cluster)))


def test_a_proxy_is_sent_the_whole_url(api: ApiServer, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, "http://192.0.2.1", {}, {"proxy-url": api.url()})
    with suppress(Refused):
        status(open_with(path))
    assert api.requests[-1].headers["host"] == "192.0.2.1"


@pytest.mark.parametrize(
    ("given", "no_proxy", "proxy"),
    [
        ("", "", "http://env:3128"),
        ("http://given:1", "", "http://given:1"),
        ("", "10.0.0.0/8, 192.0.2.0/24", ""),
        ("", "192.0.2.1:6443", ""),
        ("", "*", ""),
        ("", "192.0.3.0/24, example.com,,", "http://env:3128"),
    ],
)
def test_the_proxy_of_a_server(
    monkeypatch: pytest.MonkeyPatch, given: str, no_proxy: str, proxy: str
) -> None:
    """Networks in ``no_proxy`` count, as for kubectl."""
    monkeypatch.setenv("HTTPS_PROXY", "env:3128")
    monkeypatch.setenv("no_proxy", no_proxy)
    assert find_proxy(SERVER, given) == proxy


def test_no_proxy_names_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://env:3128")
    monkeypatch.setenv("NO_PROXY", ".example.com")
    assert not find_proxy("https://example.com", "")
    assert not find_proxy("https://api.example.com:6443", "")
    assert find_proxy("https://myexample.com", "")


def test_an_image_without_login_plugins_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bpfsvc.kube.client.kubeconfig._PLUGIN", "bpfsvc.kube.client.missing")
    path = kubeconfig(tmp_path, SERVER, {"exec": plugin(tmp_path, token="token")})
    with pytest.raises(LoginError, match="this image runs none: use a kubeconfig"):
        read_kubeconfig(path)
