"""The process that serves the page of the node; it runs only while somebody looks at the page.

The agent has the listening socket, and nothing else of the page: when a client connects, it starts
``bpfsvc page`` with that socket. The process ends when nobody has asked for some minutes, and the
next client starts another one. So a page that fails, or needs much memory, costs the agent nothing.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bpfsvc.base.address import with_port
from bpfsvc.http.ports import BoundPort
from bpfsvc.http.server import RETRY_SECONDS, Response, encode

_PAUSE_SECONDS = 10.0
"""Before another process is started after one that failed."""

_END_SECONDS = 2.0

_PIPE_BYTES = 1 << 16
"""What a pipe holds. The process is not held up by it: it does not block."""

_FAILED = Response(503, b"the page of this node has failed; the agent's log says why\n")


class PageProcess:
    """Starts and ends the process, in a thread of its own."""

    def __init__(
        self,
        address: tuple[str, int],
        pin_root: Path,
        healthz: tuple[str, int] | None,
        log: Callable[[str], None],
    ) -> None:
        """``healthz``: where the agent serves its health, if it does."""
        self._address = address
        self._port = BoundPort(*address)
        self._arguments = (
            f"--pin-root={pin_root}",
            f"--healthz-bind-address={_text(healthz) if healthz else ''}",
        )
        self._log = log
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="page", daemon=True)

    @property
    def port(self) -> int:
        """The port that is listened on; 0 while there is none."""
        return self._port.port

    def start(self) -> None:
        """Listen from now on, or as soon as the address is free."""
        self._thread.start()

    def stop(self) -> None:
        """End the process and close the socket. Once only."""
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._port.close()
        os.close(self._wake)

    # -- in the thread --

    def _run(self) -> None:
        listener = self._listen()
        while listener and not self._stopped_within(None, listener.fileno()):
            reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                status = self._serve(listener, writer)
                reason = _last_lines(reader)
            finally:
                os.close(reader)
                os.close(writer)
            if status is None:
                return
            if status:
                self._log(
                    f"the page of this node has failed: its process ended with status {status}"
                    f"{reason}; it may be started again in {_PAUSE_SECONDS:g} s"
                )
                _refuse_waiting(listener)
                if self._stopped_within(_PAUSE_SECONDS):
                    return

    def _listen(self) -> socket.socket | None:
        """Return the listening socket; None if the agent ends before it gets the address."""
        said = ""
        while True:
            try:
                (listener,) = self._port.open()
                return listener
            except OSError as error:
                text = f"cannot serve the page at {_text(self._address)}: {error.strerror or error}"
                if text != said:
                    said = text
                    self._log(f"{text}; trying again every {RETRY_SECONDS:g} s")
            if self._stopped_within(RETRY_SECONDS):
                return None

    def _stopped_within(self, seconds: float | None, *files: int) -> bool:
        """Wait for files to be ready; return True if the agent ends."""
        waits = select.poll()
        for number in (self._wake, *files):
            waits.register(number, select.POLLIN)
        ready = waits.poll(None if seconds is None else seconds * 1000)
        return self._wake in dict(ready)

    def _serve(self, listener: socket.socket, errors: int) -> int | None:
        """Run the process until its end; return its status, None if the agent ends.

        ``errors`` gets what the process writes to stderr, which is the log of this process, and
        may have to be JSON.
        """
        number = listener.fileno()
        command = [sys.executable, "-m", "bpfsvc", "page", f"--listener={number}"]
        try:
            process = subprocess.Popen(
                [*command, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=(number,),
                cwd=Path(__file__).parents[2],
            )
        except OSError as error:
            self._log(f"the process of the page cannot be started: {error}")
            return 1
        with process:
            ended = os.pidfd_open(process.pid)
            try:
                stops = self._stopped_within(None, ended)
            finally:
                os.close(ended)
            if stops:
                _end(process)
                return None
            return process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, by its standard input, and make it end."""
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _last_lines(errors: int) -> str:
    """Return what the process wrote last, an error and a hint, as a part of a sentence."""
    try:
        text = os.read(errors, _PIPE_BYTES)
    except BlockingIOError:
        return ""
    lines = text.decode(errors="replace").strip().splitlines()[-2:]
    return f" ({'; '.join(lines)})" if lines else ""


def _refuse_waiting(listener: socket.socket) -> None:
    """Answer the clients that wait that there is no page."""
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            with client, suppress(OSError):
                client.setblocking(False)
                client.sendall(encode(_FAILED))


def _text(address: tuple[str, int]) -> str:
    return with_port(*address)
