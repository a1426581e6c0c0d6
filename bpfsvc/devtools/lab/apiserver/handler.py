"""HTTP: requests read, answers sent, watches streamed.

Answers have the recorded headers. Large answers are compressed as kube-apiserver does it:
from 128 KiB on, if the client takes gzip, at the lowest level.
"""

from __future__ import annotations

import gzip
import select
import socket
import time
import uuid
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec

from bpfsvc.devtools.lab.apiserver import events, pages, port_forward, resources, status
from bpfsvc.devtools.lab.apiserver.pages import Options
from bpfsvc.devtools.lab.apiserver.port_forward import Forwarded
from bpfsvc.devtools.lab.apiserver.resources import EVENTS, ApiPath
from bpfsvc.devtools.lab.apiserver.status import Refusal
from bpfsvc.devtools.lab.apiserver.store import as_chunk, decode, encode, event_chunk
from bpfsvc.devtools.lab.apiserver.watches import END, UNSUPPORTED, Watch

if TYPE_CHECKING:
    from bpfsvc.devtools.lab.apiserver.server import ApiServer

_COMPRESSED = 128 * 1024  # bytes
_IN_CHUNKS = 2048  # bytes from which Go's server sends chunks
_PROBES = ("/healthz", "/livez", "/readyz")


class Request(NamedTuple):
    """One request and its status code; a watch is recorded when it begins."""

    method: str
    path: str
    query: dict[str, str]
    status: int
    headers: dict[str, str]
    moment: float
    """``time.monotonic()`` of its arrival."""


class Handler(BaseHTTPRequestHandler):
    """One connection of a client. The class of ``server`` is ``ApiServer``."""

    protocol_version = "HTTP/1.1"
    server: ApiServer  # type: ignore[assignment]
    connection: socket.socket
    wbufsize = -1  # headers and body leave in one segment

    def finish(self) -> None:
        """Close both ends, also when the client has reset the connection."""
        try:
            super().finish()
        finally:
            self.rfile.close()

    def parse_request(self) -> bool:
        """Record the time of arrival."""
        self.moment = time.monotonic()
        return super().parse_request()

    def do_GET(self) -> None:
        """List, watch, get, discovery and probes."""
        self._serve()

    def do_POST(self) -> None:
        """Create an Event; the control API."""
        self._serve()

    def do_PATCH(self) -> None:
        """Patch an Event."""
        self._serve()

    def do_DELETE(self) -> None:
        """Refuse: nothing here needs it."""
        self._serve()

    do_PUT = do_DELETE  # noqa: N815 (the name is the protocol's)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing: ``ApiServer.requests`` keeps every request."""

    # -- one request --------------------------------------------------------------------------

    def _serve(self) -> None:
        target = urlsplit(self.path)
        self.query = dict(parse_qsl(target.query, keep_blank_values=True))
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else b""
        if self.server.control is not None and target.path.startswith("/control/"):
            self._send(200, encode(self.server.control(target.path, body)))
            return
        self.server.faults.hold(self._left)
        try:
            self._route(target.path, body)
        except Refusal as refusal:
            self._refuse(refusal)

    def _route(self, path: str, body: bytes) -> None:
        faults = self.server.faults
        if refusal := faults.refusal(path):
            raise refusal
        if path in _PROBES:
            self._send(200, b"ok", "text/plain; charset=utf-8")
            return
        self._authenticate()
        if path == "/version":
            minor = faults.minor
            self._send(200, encode({"major": "1", "minor": minor, "gitVersion": f"v1.{minor}.0"}))
            return
        if forwarded := port_forward.parse(path):
            self._forward(forwarded)
            return
        target = resources.parse_path(path)
        if target is not None and not faults.absent & {
            target.resource.group,
            target.resource.plural,
        }:
            self._object(target, body)
        elif (listing := resources.discovery(path, faults.absent)) is not None:
            self._send(200, encode(listing))
        elif resources.below_a_group(path, faults.absent):
            raise status.unknown_resource()
        else:
            # A real server answers unknown paths in plain text.
            self._send(404, b"404 page not found\n", "text/plain; charset=utf-8")

    def _authenticate(self) -> None:
        tokens = self.server.faults.tokens
        if tokens is None or self.server.certified(self.connection):
            return
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or token.strip() not in tokens:
            raise status.unauthorized()

    def _user(self) -> str:
        """Return who asks: a token is its user's name."""
        token = self.headers.get("Authorization", "").partition(" ")[2]
        return token or "system:anonymous"

    def _drops_managed_fields(self) -> bool:
        """True if the client wants objects without ``managedFields``, and the server knows how."""
        accepted = self.headers.get("Accept", "").split(",")[0]
        _, *parameters = accepted.replace(" ", "").split(";")
        dropped = {
            field
            for name, _, fields in (parameter.partition("=") for parameter in parameters)
            if name == "drop"
            for field in fields.split("+")
        }
        return self.server.faults.drops_managed_fields and "metadata.managedFields" in dropped

    def _verb(self, target: ApiPath) -> str:
        if self.command == "POST":
            return "create"
        if self.command != "GET":
            return self.command.lower()
        if target.name:
            return "get"
        return "watch" if Options.read(self.query).watch else "list"

    def _object(self, target: ApiPath, body: bytes) -> None:
        store, faults = self.server.store, self.server.faults
        right = (target.resource.group, target.resource.plural, self._verb(target))
        self.server.asked.add(right)
        is_allowed = faults.role is None or right in faults.role
        if target.resource.plural in faults.forbidden or not is_allowed:
            raise status.forbidden(target, self._user(), right[2])
        if self.command == "GET" and target.name:
            record = store.get(target.resource.kind, target.namespace, target.name)
            if record is None:
                raise status.not_found(target)
            self._send(200, record.single(bare=self._drops_managed_fields()) + b"\n")
        elif self.command == "GET":
            options = Options.read(self.query, bare=self._drops_managed_fields())
            if options.watch:
                self._watch(target, options)
            else:
                self._send(200, pages.answer(store, target, options))
        elif target.resource is EVENTS and self.command == "POST" and not target.name:
            record = events.create(store, target.namespace, _read(body))
            self._send(201, record.single() + b"\n")
        elif target.resource is EVENTS and self.command == "PATCH" and target.name:
            kind = self.headers.get("Content-Type", "")
            key = (target.namespace, target.name)
            self._send(200, events.patch(store, key, kind, _read(body)).single() + b"\n")
        else:
            raise status.wrong_method()

    def _forward(self, pod: Forwarded) -> None:
        """Forward a port of a Pod."""
        target = ApiPath(resources.named("pods"), *pod)
        if port_forward.SUBRESOURCE in self.server.faults.forbidden:
            raise status.forbidden(target, self._user(), "create", "portforward")
        dial = self.server.dial
        if dial is None or self.server.store.get("Pod", *pod) is None:
            raise status.not_found(target)
        if port_forward.PROTOCOL not in self.headers.get("Sec-WebSocket-Protocol", ""):
            raise Refusal(400, "Upgrade request required")
        self._note(101)
        self.send_response_only(101)
        for name, text in port_forward.handshake(self.headers.get("Sec-WebSocket-Key", "")):
            self.send_header(name, text)
        self.end_headers()
        self.wfile.flush()
        port = int(self.query.get("ports", "0"))
        port_forward.serve(self.rfile, self.connection, dial, pod, port)
        self.close_connection = True

    # -- answers ------------------------------------------------------------------------------

    def _send(self, code: int, body: bytes, kind: str = "application/json") -> None:
        self._note(code)
        self._head(code, kind)
        takes = self.headers.get("Accept-Encoding", "")
        if len(body) >= _COMPRESSED and "gzip" in takes:
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Vary", "Accept-Encoding")
        if len(body) < _IN_CHUNKS:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        else:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(as_chunk(body) + END)
        self.wfile.flush()

    def _refuse(self, refusal: Refusal) -> None:
        self._note(refusal.code)
        body = encode(refusal.body) + b"\n"
        self._head(refusal.code, "application/json")
        for name, value in refusal.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _head(self, code: int, kind: str) -> None:
        self.send_response_only(code)
        self.send_header("Audit-Id", str(uuid.uuid4()))
        self.send_header("Cache-Control", "no-cache, private")
        self.send_header("Content-Type", kind)
        self.send_header("Date", self.date_time_string())

    def _note(self, code: int) -> None:
        path = urlsplit(self.path).path
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.note(Request(self.command, path, self.query, code, headers, self.moment))

    # -- watches ------------------------------------------------------------------------------

    def _watch(self, target: ApiPath, options: Options) -> None:
        faults = self.server.faults
        try:
            watch = Watch(self.server.store, faults, target, options)
        except Refusal as refusal:
            begins = refusal.code in (410, 504) or refusal.body["message"] == UNSUPPORTED
            if not begins or (refusal.code == 410 and faults.gone_at_once):
                raise
            self._begin_stream()
            self._send_now(event_chunk("ERROR", encode(refusal.body)) + END)
            return
        self.server.watches.append(watch)
        try:
            self._begin_stream()
            lives = watch.run(self.connection, self._send_now)
        finally:
            self.server.watches.remove(watch)
            watch.close()
        self.close_connection = not lives

    def _begin_stream(self) -> None:
        self._note(200)
        self._head(200, "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _send_now(self, chunk: bytes) -> None:
        self.connection.sendall(chunk)

    def _left(self) -> bool:
        """True if the client, or this server, has closed the connection."""
        poll = select.poll()
        poll.register(self.connection, select.POLLRDHUP)
        return bool(poll.poll(0))


def _read(body: bytes) -> dict[str, Any]:
    try:
        value = decode(body)
    except msgspec.DecodeError as error:
        raise Refusal(400, f"the object provided is unrecognized: {error}") from None
    if not isinstance(value, dict):
        raise Refusal(400, "the object provided is unrecognized: no object")
    return value
