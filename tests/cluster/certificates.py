"""The cluster's own certificate authority, and what it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster.addresses import API, API_SERVICE
from tests.cluster.errors import ClusterError

_DAYS = "365"
_EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc")
_AUTHORITY = "ca"

SERVER, KUBELET_CLIENT, ACCOUNTS = "apiserver", "kubelet-client", "accounts"


class Certificates:
    """The files in ``folder``: ``<name>.crt`` and ``<name>.key``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def authority(self) -> Path:
        """The certificate of the authority."""
        return self.certificate(_AUTHORITY)

    @property
    def authority_key(self) -> Path:
        """The key of the authority."""
        return self.key(_AUTHORITY)

    def certificate(self, name: str) -> Path:
        """Return the file of a certificate."""
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Return the file of a key."""
        return self.folder / f"{name}.key"

    def make(self) -> None:
        """Make the authority, the API server's certificate, its client's, and the accounts' key."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._self_signed(_AUTHORITY, "/CN=cluster-ca", "keyUsage=critical,keyCertSign,cRLSign")
        addresses = [*map(str, API.addresses), *API_SERVICE, "127.0.0.1"]
        names = [f"IP:{address}" for address in addresses] + [f"DNS:{name}" for name in _NAMES]
        self._signed(SERVER, "/CN=kube-apiserver", f"subjectAltName={','.join(names)}")
        self._signed(
            KUBELET_CLIENT,
            "/O=system:masters/CN=apiserver-kubelet-client",
            "extendedKeyUsage=clientAuth",
        )
        # In the older of the two forms, the only one in which the API server reads a signing key.
        self._openssl(
            *("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{ACCOUNTS}.key")
        )

    def localhost(self) -> None:
        """Make a certificate of its own for localhost: a test server's, in the image agnhost."""
        self.folder.mkdir(parents=True, exist_ok=True)
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        self._self_signed("localhost", "/CN=localhost", names)

    def _self_signed(self, name: str, subject: str, extension: str) -> None:
        self._openssl(
            *("req", "-x509", *_EC, "-days", _DAYS, "-subj", subject, "-addext", extension),
            *("-keyout", f"{name}.key", "-out", f"{name}.crt"),
        )

    def _signed(self, name: str, subject: str, extension: str) -> None:
        self._openssl(
            *("req", "-new", *_EC, "-subj", subject, "-addext", extension),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr"),
        )
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", _DAYS, "-copy_extensions", "copyall"),
            *("-out", f"{name}.crt"),
        )

    def _openssl(self, *words: str) -> None:
        done = subprocess.run(
            ["openssl", *words], cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"openssl {words[0]}: {done.stderr.strip()}")
