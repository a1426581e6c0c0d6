"""The log: where messages go (to stderr, as kube-proxy's do) and their format.

Whatever a process writes to stderr passes through here: messages of bpfsvc and of libraries,
Python's warnings, exceptions that nothing caught, and the error that ends a command. So with
``json`` every line is an object, without exception.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

CHANGES_FROM = 2
"""From this verbosity on, each changed Service has a line."""

DEBUG_FROM = 4
"""From this verbosity on, messages that only help to find faults are logged."""

REQUESTS_FROM = 6
"""From this verbosity on, each request to the API server has a line, as with client-go."""

KEYS = ("service", "hint")
"""Keys that only some lines have. They are attributes of the record."""

_log = logging.getLogger("bpfsvc")


class Json(logging.Formatter):
    """One JSON object for each message, with the names that Kubernetes' own logs have."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        fields: dict[str, object] = {
            "ts": round(record.created * 1000, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "caller": f"{record.filename}:{record.lineno}",
            "msg": record.getMessage(),
        }
        fields |= {key: value for key in KEYS if (value := getattr(record, key, None))}
        if record.exc_info:
            fields["stacktrace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class Text(logging.Formatter):
    """One line for each message. A message of a library begins with the library's name."""

    def __init__(self, with_traceback: bool) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._with_traceback = with_traceback

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Return the line without a traceback."""
        record.message = " ".join(record.message.split())
        if record.name.partition(".")[0] != "bpfsvc":
            record.message = f"{record.name}: {record.message}"
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, with a traceback after it if that is asked for."""
        text = super().format(record)
        return text if self._with_traceback else text.partition("\n")[0]


def set_up(form: str, verbosity: int) -> None:
    """Send everything to stderr; ``form`` is ``text`` or ``json``.

    Of libraries, only warnings and errors are logged, and requests from ``REQUESTS_FROM`` on.
    """
    from bpfsvc.agent.sync import change_log  # no other command than "run" needs it

    _send(form, verbosity)
    _log.setLevel(logging.DEBUG if verbosity >= DEBUG_FROM else logging.INFO)
    changes = logging.INFO if verbosity >= CHANGES_FROM else logging.WARNING
    logging.getLogger(change_log.LOGGER).setLevel(changes)
    requests = logging.DEBUG if verbosity >= REQUESTS_FROM else logging.WARNING
    logging.getLogger("urllib3").setLevel(requests)


def set_up_for_errors(arguments: Sequence[str]) -> None:
    """Make the error that ends a command an object too if the command line asks for JSON.

    The error may be the command line itself, so the command line is not parsed.
    """
    words = " ".join(arguments).replace("_", "-").replace("=", " ")
    if "--logging-format json" in words:
        _send("json", 0)
        log_exceptions()


def complain(message: str, hint: str = "") -> None:
    """Write the error that ends a command, and a hint, in the format of the log."""
    text = " ".join(message.split())
    if any(isinstance(handler.formatter, Json) for handler in logging.getLogger().handlers):
        _log.error("%s", text, extra={"hint": hint})
        return
    click.echo(f"Error: {text}", err=True)
    if hint:
        click.echo(f"Hint: {hint}", err=True)


def _send(form: str, verbosity: int) -> None:
    """Send all messages to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if form == "json" else Text(verbosity >= DEBUG_FROM))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def log_exceptions() -> None:
    """Send warnings of Python, and exceptions that nothing caught, to the log, in threads too."""
    logging.captureWarnings(True)
    sys.excepthook = _log_exception
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_end_of_thread


def _log_exception(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    _log_bug("it ends", kind, error, traceback)


def _log_unraisable(problem: UnraisableHookArgs) -> None:
    where = f"it goes on after {problem.err_msg or 'an exception in'} {problem.object!r}"
    _log_bug(where, problem.exc_type, problem.exc_value, problem.exc_traceback)


def _log_end_of_thread(problem: threading.ExceptHookArgs) -> None:
    name = problem.thread.name if problem.thread else "a thread"
    _log_bug(f"the thread {name} ended", problem.exc_type, problem.exc_value, problem.exc_traceback)


def _log_bug(
    what: str,
    kind: type[BaseException],
    error: BaseException | None,
    traceback: TracebackType | None,
) -> None:
    """Log an exception that nothing caught, with the line of code, in one line."""
    last = traceback
    while last and last.tb_next:
        last = last.tb_next
    line = f" ({last.tb_frame.f_code.co_filename}:{last.tb_lineno})" if last else ""
    _log.error(
        "a bug in bpfsvc, %s: %s: %s%s",
        *(what, kind.__name__, error, line),
        exc_info=(kind, error or kind(), traceback),
    )
