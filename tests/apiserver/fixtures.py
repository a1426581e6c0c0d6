"""API servers on this sandbox's loopback: plain, and with TLS."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer


class Certificates(NamedTuple):
    """A CA, and a server certificate and a client certificate of it."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """A plain HTTP server without objects."""
    with ApiServer() as server:
        server.start()
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates for all tests; the server's is for 127.0.0.1, ::1 and localhost."""
    directory = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl(
        *("req", "-x509", *curve, "-days", "2", "-subj", "/CN=lab-ca"),
        *("-keyout", "ca.key", "-out", "ca.crt"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
    )
    names = {
        "server": ("/CN=kube-apiserver", "subjectAltName=IP:127.0.0.1,IP:::1,DNS:localhost"),
        "client": ("/O=system:nodes/CN=system:node:n1", "extendedKeyUsage=clientAuth"),
    }
    for name, (subject, extension) in names.items():
        openssl(
            *("req", "-new", *curve, "-subj", subject, "-addext", extension),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-days", "2", "-copy_extensions", "copyall", "-out", f"{name}.crt"),
        )
    return Certificates(
        directory / "ca.crt",
        directory / "server.crt",
        directory / "server.key",
        directory / "client.crt",
        directory / "client.key",
    )


@pytest.fixture
def tls_api(certificates: Certificates) -> Iterator[ApiServer]:
    """A TLS server that takes the token ``good`` and certificates of the CA."""
    with ApiServer(
        certificate=certificates.server,
        key=certificates.server_key,
        client_ca=certificates.ca,
        tokens=frozenset({"good"}),
    ) as server:
        server.start()
        yield server
