"""The lab's API server with TLS, tokens and client certificates."""

from __future__ import annotations

import ssl

import pytest

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.patience import wait
from tests.apiserver.fixtures import Certificates
from tests.kube.requests import SERVICES, dial, path, send, service


@pytest.fixture
def trusting(certificates: Certificates) -> ssl.SSLContext:
    """A TLS context that trusts the CA."""
    return ssl.create_default_context(cafile=str(certificates.ca))


def test_a_certificate_of_an_unknown_ca_is_refused_by_the_client(tls_api: ApiServer) -> None:
    """TLS is real: a client that does not trust the CA cannot connect."""
    with pytest.raises(ssl.SSLCertVerificationError):
        send(tls_api, "GET", SERVICES, tls=ssl.create_default_context())


def test_a_token_or_a_client_certificate_is_needed(
    tls_api: ApiServer, certificates: Certificates, trusting: ssl.SSLContext
) -> None:
    """One of them is enough; without both the answer is 401."""
    assert tls_api.url().startswith("https://127.0.0.1:")
    assert send(tls_api, "GET", SERVICES, tls=trusting).status == 401
    bearer = {"Authorization": "Bearer good"}
    assert send(tls_api, "GET", SERVICES, headers=bearer, tls=trusting).status == 200
    trusting.load_cert_chain(certificates.client, certificates.client_key)
    assert send(tls_api, "GET", SERVICES, tls=trusting).status == 200


def test_a_watch_over_tls_ends_when_the_server_stops(
    tls_api: ApiServer, trusting: ssl.SSLContext
) -> None:
    """Events arrive; then the connection ends; when the server listens again, another works."""
    connection = dial(tls_api, trusting)
    bearer = {"Authorization": "Bearer good"}
    connection.request("GET", path(SERVICES, watch="true"), headers=bearer)
    answer = connection.getresponse()
    wait(lambda: len(tls_api.watches) == 1, "the watch")
    tls_api.put(service("web"))
    assert b'"name":"web"' in answer.readline()
    tls_api.go_away()
    assert answer.readline() == b""
    wait(lambda: not tls_api.watches, "the end of the watch")
    with pytest.raises(ConnectionRefusedError):
        send(tls_api, "GET", SERVICES, tls=trusting)
    tls_api.come_back()
    assert send(tls_api, "GET", SERVICES, headers=bearer, tls=trusting).status == 200
    answer.close()
    connection.close()


def test_a_client_that_speaks_no_tls_does_no_harm(
    tls_api: ApiServer, trusting: ssl.SSLContext
) -> None:
    """It gets no answer; the next client does."""
    with pytest.raises(OSError, match=r".*"):
        send(tls_api, "GET", SERVICES)
    assert send(tls_api, "GET", SERVICES, tls=trusting).status == 401
