"""One HTTP request from inside a namespace."""

from __future__ import annotations

import socket
from http.client import HTTPConnection

from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import stretched


def http_request(
    namespace: Namespace,
    address: str,
    port: int,
    path: str,
    body: str | None = None,
    timeout: float = 2.0,
) -> tuple[int, bytes]:
    """Return status and body of the answer; POST if there is a body to send, else GET.

    ``timeout`` in seconds for each read or write. Raises ``OSError`` and ``HTTPException``.
    """
    connection = HTTPConnection(address, port)
    connection.sock = namespace.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        connection.sock.settimeout(stretched(timeout))
        connection.sock.connect((address, port))
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
