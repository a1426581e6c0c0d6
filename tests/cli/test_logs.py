"""The log: each line in the format that is asked for, whatever wrote the line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

KEYS = {"ts", "level", "logger", "caller", "msg"}


def run(program: str) -> list[str]:
    """Run a Python program and return the lines of its stderr."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    return done.stderr.splitlines()


def bpfsvc(*words: str) -> list[str]:
    """Run a command that fails, and return the lines of its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "bpfsvc", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    return done.stderr.splitlines()


def program(form: str, verbosity: int, *lines: str) -> str:
    begin = "import logging, threading, warnings\nfrom bpfsvc.cli import logs\n"
    return f"{begin}logs.set_up({form!r}, {verbosity})\nlogs.log_exceptions()\n" + "\n".join(lines)


FAILURES = {
    "an exception that nothing caught": ("1 / 0", "it ends: ZeroDivisionError: division by zero"),
    "an exception in a thread": (
        "threading.Thread(target=lambda: 1 / 0, name='sweep').start()",
        "the thread sweep ended: ZeroDivisionError: division by zero",
    ),
    "an exception in a destructor": (
        "class Half:\n  def __del__(self): 1 / 0\nHalf()",
        "ZeroDivisionError: division by zero",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_json_an_exception_that_nothing_caught_is_an_object_with_the_stack(name: str) -> None:
    code, text = FAILURES[name]
    (line,) = run(program("json", 0, code))
    fields = json.loads(line)
    assert fields.keys() == KEYS | {"stacktrace"}
    assert fields["level"] == "error"
    assert fields["msg"].startswith("a bug in bpfsvc, ")
    assert text in fields["msg"]
    assert "Traceback" in fields["stacktrace"]


@pytest.mark.parametrize("name", FAILURES)
def test_text_an_exception_that_nothing_caught_is_a_line_with_the_file(name: str) -> None:
    code, text = FAILURES[name]
    (line,) = run(program("text", 0, code))
    assert f"{text} (<string>:" in line


def test_text_the_traceback_comes_with_the_messages_for_finding_faults() -> None:
    line, *traceback = run(program("text", 4, "1 / 0"))
    assert "a bug in bpfsvc" in line
    assert traceback[0] == "Traceback (most recent call last):"


OTHERS = {
    "a library's warning": ("logging.getLogger('urllib3').warning('retry\\nagain')", "urllib3"),
    "a warning of Python": ("warnings.warn('old\\nname')", "py.warnings"),
    "a message of several lines": (
        "logging.getLogger('bpfsvc').warning('first\\nsecond')",
        "bpfsvc",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_message_is_one_line_with_its_logger(form: str, name: str) -> None:
    code, logger = OTHERS[name]
    (line,) = run(program(form, 0, code))
    if form == "json":
        fields: dict[str, Any] = json.loads(line)
        assert ({*fields}, fields["logger"]) == (KEYS, logger)
        assert "\n" in fields["msg"]
    else:
        assert (f" WARNING {logger}: " in line) is (logger != "bpfsvc")


@pytest.mark.parametrize(
    ("verbosity", "expected"),
    [
        (0, ["info"]),
        (1, ["info"]),
        (2, ["info", "changes"]),
        (3, ["info", "changes"]),
        (4, ["info", "changes", "debug"]),
        (5, ["info", "changes", "debug"]),
        (6, ["info", "changes", "debug", "request"]),
        (9, ["info", "changes", "debug", "request"]),
    ],
)
def test_a_verbosity_adds_its_messages(verbosity: int, expected: list[str]) -> None:
    lines = run(
        program(
            "json",
            verbosity,
            "logging.getLogger('bpfsvc').info('info')",
            "logging.getLogger('bpfsvc.changes').info('changes')",
            "logging.getLogger('bpfsvc').debug('debug')",
            "logging.getLogger('urllib3').debug('request')",
        )
    )
    assert [json.loads(line)["msg"] for line in lines] == expected


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--logging-format=json", "--no-such-flag"),
        ("run", "--logging-format", "json", "--cluster-cidr=10.0.0.0/99"),
        ("run", "--logging_format=json", "--config=/nonexistent/file"),
    ],
)
def test_json_the_error_that_ends_the_command_is_an_object(words: tuple[str, ...]) -> None:
    (line,) = bpfsvc(*words)
    fields = json.loads(line)
    assert KEYS <= fields.keys() <= KEYS | {"hint"}
    assert (fields["level"], fields["logger"]) == ("error", "bpfsvc")


def test_text_the_error_that_ends_the_command_is_a_line_and_a_hint() -> None:
    error, hint = bpfsvc("run", "--no-such-flag")
    assert error.startswith("Error: No such option")
    assert hint == "Hint: see bpfsvc run --help"
