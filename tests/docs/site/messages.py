"""Pages of the site about what the agent says, from the source: Events, the log, errors."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import bpfsvc
from bpfsvc.base import errors
from tests.docs.site.markdown import code, table

PACKAGE = Path(bpfsvc.__file__).parent
EVENT_REASONS = ("kube/event_recorder.py", "agent/reports.py", "services/faults.py")
"""Where reasons are: texts in a row, with a description that begins with the word "Reasons"."""

_LEVELS = ("error", "exception", "warning", "info", "debug")
_GAP = "…"
_REASON = re.compile(r"[A-Z][A-Za-z]+")

_EVENTS = """\
From the code: every reason with which the agent reports an Event.
[The handbook](../operations.md#events) says what to do about each.

"""
_MESSAGES = f"""\
From the code: every line that the agent writes, by level; `{_GAP}` stands for a name or a number.
[The handbook](../operations.md#messages) says what to do about those that need you.

"""
_ERRORS = f"""\
From the code: every error of a command or of the agent, with the hint that follows it; `{_GAP}`
stands for a name or a number. The exit status is 2 for wrong usage and 1 for all others.

"""


@cache
def _module(name: str) -> ast.Module:
    return ast.parse((PACKAGE / name).read_text())


def _modules() -> dict[str, ast.Module]:
    files = (file.relative_to(PACKAGE) for file in sorted(PACKAGE.rglob("*.py")))
    return {str(file): _module(str(file)) for file in files if file.parts[0] != "devtools"}


def event_reasons() -> dict[str, str]:
    """Return the reasons of Events, each with the module that has it."""
    reasons: dict[str, str] = {}
    for name in EVENT_REASONS:
        row: list[str] = []
        for statement in _module(name).body:
            if isinstance(statement, ast.Assign):
                values = (getattr(node, "value", "") for node in ast.walk(statement.value))
                row += [text for text in map(str, values) if _REASON.fullmatch(text)]
                continue
            text = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(text, ast.Constant) and str(text.value).startswith("Reasons"):
                reasons |= dict.fromkeys(row, name)
            row = []
    return reasons


def events_page() -> str:
    """Return the page of Events."""
    rows = ((code(reason), code(file)) for reason, file in sorted(event_reasons().items()))
    return _EVENTS + table(("reason", "from"), rows)


def log_lines() -> Iterator[tuple[str, str, str]]:
    """Yield level, text and module of every line of the log that has a text of its own."""
    for name, module in _modules().items():
        for call in ast.walk(module):
            if not (
                isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args
            ):
                continue
            of = call.func.value
            if isinstance(of, ast.Name) and of.id == "_log" and call.func.attr in _LEVELS:
                text = _text(call.args[0])
                for mark in ("%s", "%d", "%r", "%.1f", "%.2f", "%.0f", "%.3f"):
                    text = text.replace(mark, _GAP)
                if any(letter.isalpha() for letter in text):
                    yield call.func.attr, text, name


def messages_page() -> str:
    """Return the page of the log."""
    by_level: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for level, text, name in log_lines():
        by_level["error" if level == "exception" else level].add((text, name))
    return _MESSAGES + "\n".join(
        f"## {level}\n\n"
        + table(("line", "from"), ((code(text), code(name)) for text, name in sorted(rows)))
        for level in _LEVELS
        if (rows := by_level[level])
    )


def raised() -> Iterator[tuple[str, str, str]]:
    """Yield message, hint and module of every error for people that has a text of its own."""
    kinds = _kinds()
    for name, module in _modules().items():
        for statement in ast.walk(module):
            call = statement.exc if isinstance(statement, ast.Raise) else None
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id in kinds
            ):
                message, hint = ([_text(argument) for argument in call.args] + ["", ""])[:2]
                if any(letter.isalpha() for letter in message):
                    yield message, hint, name


def errors_page() -> str:
    """Return the page of errors."""
    rows = sorted({(code(message), code(hint), code(name)) for message, hint, name in raised()})
    return _ERRORS + table(("error", "hint", "from"), rows)


def _kinds() -> set[str]:
    """Return the names of all classes of errors for people."""
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    classes = [
        node
        for module in _modules().values()
        for node in ast.walk(module)
        if isinstance(node, ast.ClassDef)
    ]
    while more := {
        kind.name
        for kind in classes
        if kind.name not in kinds and any(getattr(base, "id", "") in kinds for base in kind.bases)
    }:
        kinds |= more
    return kinds


def _text(node: ast.expr) -> str:
    """Return a text as far as the source has it; the rest is a gap."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return re.sub(f"{_GAP}+", _GAP, "".join(_text(part) for part in node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return _GAP
