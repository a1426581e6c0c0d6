"""Events from this node's agent, as lines; and which names it knows."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlencode

from bpfsvc.base import http_client
from bpfsvc.base.errors import BpfsvcError, UsageError
from bpfsvc.base.local_socket import connect
from bpfsvc.base.texts import list_text

_SECONDS = 10.0
_NEAR = 5
_START = "start it with: bpfsvc run, or name its place with --pin-root"
_RESTART = "restart the agent, so that it is of the version of this command"


class NoStream(BpfsvcError):
    """The agent streams no events. ``reason``: the agent's own, if it gave one."""

    reason = ""


@contextmanager
def open_stream(
    pin_root: Path, query: Mapping[str, str], *, follow: bool, seconds: float | None = None
) -> Iterator[Iterator[bytes]]:
    """Yield the lines of a stream; raise :class:`NoStream` if there is none.

    ``follow``: its end is an error. ``seconds``: it ends after that time, at the latest.
    """
    client = _connect(pin_root)
    with client, client.makefile("rb") as stream, ExitStack() as stack:
        try:
            client.sendall(http_client.encode_get(f"/observe?{urlencode(query)}"))
            status = _status(stream.readline())
            while stream.readline().strip():
                pass
            if status != HTTPStatus.OK:
                raise _refusal(status, stream.read())
            client.settimeout(None if follow else _SECONDS)
        except OSError as error:
            raise _no_answer(error) from error
        if seconds is not None:
            timer = threading.Timer(seconds, _end, (client,))
            stack.callback(timer.join)
            stack.callback(timer.cancel)
            timer.start()
        yield _lines(stream, follow=follow and seconds is None)


@contextmanager
def open_stream_with_drops(
    pin_root: Path, seconds: float | None = None
) -> Iterator[tuple[Iterator[bytes], str]]:
    """Yield the lines of all events from now on, with what other parts of the node drop.

    And why such drops are not among them, where the node or its agent cannot tell them; else "".
    ``seconds``: as for :func:`open_stream`.
    """
    query = {"follow": "1"}
    until = partial(open_stream, pin_root, follow=True, seconds=seconds)
    with ExitStack() as stack:
        missing = ""
        try:
            lines = stack.enter_context(until({**query, "drops": "1"}))
        except NoStream as error:
            lines = stack.enter_context(until(query))
            missing = error.reason
        yield lines, missing


def check_name(pin_root: Path, kind: str, name: str) -> None:
    """Raise :class:`UsageError` for a name that no event can have, with names that are near."""
    whole = name.partition(":")[0] if kind == "service" else name
    query = urlencode({"kind": kind, "name": whole})
    client = _connect(pin_root)
    with client:
        try:
            answer = http_client.get(client, f"/observe/names?{query}")
        except OSError as error:
            raise _no_answer(error) from error
    if answer.status != HTTPStatus.OK:
        raise _refusal(answer.status, answer.body)
    near = json.loads(answer.body)["near"]
    if near is None:
        return
    raise UsageError(
        f"this node knows no {kind} {name!r}",
        f"near names: {list_text(near, _NEAR)}" if near else "no known name is near",
    )


def _end(client: socket.socket) -> None:
    with suppress(OSError):  # the agent was first
        client.shutdown(socket.SHUT_RDWR)


def _lines(stream: Iterator[bytes], *, follow: bool) -> Iterator[bytes]:
    try:
        yield from stream
    except TimeoutError as error:
        raise _no_answer(error) from error
    except OSError:
        pass
    if follow:
        raise NoStream("the agent has ended the stream", "ask again when it runs")


def _connect(pin_root: Path) -> socket.socket:
    try:
        return connect(pin_root, _SECONDS)
    except OSError as error:
        raise NoStream(
            f"no agent answers on this node: {error.strerror or error}", _START
        ) from error


def _no_answer(error: OSError) -> NoStream:
    if isinstance(error, TimeoutError):
        return NoStream(f"the agent does not answer within {_SECONDS:.0f} s")
    return NoStream(
        "the agent ended the connection without an answer: it answers root, and its own user",
        "run this as root",
    )


def _status(first: bytes) -> int:
    words = first.split()
    if len(words) < 2 or not words[1].isdigit():
        raise ConnectionResetError("the answer is not HTTP")
    return int(words[1])


def _refusal(status: int, body: bytes) -> NoStream:
    if status == HTTPStatus.NOT_FOUND:
        return NoStream("this node's agent is of a version that tells of no events", _RESTART)
    try:
        text = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = body.decode(errors="replace").strip()
    refusal = NoStream(f"the agent tells of no events: {text}")
    refusal.reason = text
    return refusal
