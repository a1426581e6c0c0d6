"""What gives access is not in a sysdump."""

from __future__ import annotations

import pytest

from bpfsvc.sysdump.secrets import LEFT_OUT, without_secrets

PEM = "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmg\n-----END CERTIFICATE-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("    token: abcdef.0123456789", "abcdef"),
        ('"password": "hunter 2",', "hunter"),
        ("client-key-data: LS0tLS1CRUdJTg==", "LS0t"),
        ("client-certificate-data: 'LS0tLS1CRUdJTg=='", "LS0t"),
        ("certificate-authority-data: LS0tLS1CRUdJTg==", "LS0t"),
        ("Authorization: Bearer abcdefghijkl", "abcdefghijkl"),
        ("request with bearer eyJhbGciOi.eyJzdWIiOi.c2ln", "eyJ"),
        ("bpfsvc run --token=abcdef", "abcdef"),
        ("bpfsvc run --password abcdef", "abcdef"),
        ("https://admin:hunter2@10.0.0.1:6443/", "hunter2"),
        (PEM, "MIIB"),
        (PEM.replace("\n", "\\n"), "MIIB"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIBszCC", "MIIB"),
    ],
)
def test_a_secret_is_left_out(text: str, secret: str) -> None:
    assert secret in text
    assert secret not in without_secrets(text)
    assert LEFT_OUT in without_secrets(text)


@pytest.mark.parametrize(
    "text",
    [
        "kubeconfig: /etc/kubernetes/kube-proxy.conf",
        "ready: 40 Services in the kernel after 1.20 s; attached to eth0",
        "https://10.0.0.1:6443",
        '"port_secret": 5, "keys": [1, 2]',
        '-A FORWARD -m comment --comment "secrets" -j ACCEPT',
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert without_secrets(text) == text
