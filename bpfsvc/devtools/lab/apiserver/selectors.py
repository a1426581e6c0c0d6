"""labelSelector and fieldSelector, as "API concepts" and "Labels and Selectors" describe them.

Labels: ``key``, ``!key``, ``key=value``, ``key==value``, ``key!=value`` (true without the key),
``key in (a,b)``, ``key notin (a,b)``, with commas for "and". Fields: ``=``, ``==`` and ``!=`` only,
and only those that the resource knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from bpfsvc.devtools.lab.apiserver.resources import Resource
from bpfsvc.devtools.lab.apiserver.status import Refusal

Test = Callable[[Mapping[str, str]], bool]

_SET = re.compile(r"^(\S+)\s+(in|notin)\s*\(([^()]*)\)$")
_PARTS = re.compile(r",(?![^()]*\))")
_KEY = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.\-/]*[A-Za-z0-9])?$")


def label_test(text: str) -> Test | None:
    """Read a labelSelector into a test of an object's labels; None if it selects everything."""
    tests = [_label(part.strip()) for part in _PARTS.split(text)] if text.strip() else []
    return _all(tests)


def field_test(text: str, resource: Resource) -> Test | None:
    """Read a fieldSelector into a test of an object's fields; None if all pass."""
    tests = [_field(part.strip(), resource) for part in text.split(",")] if text.strip() else []
    return _all(tests)


def _all(tests: list[Test]) -> Test | None:
    if len(tests) < 2:
        return tests[0] if tests else None
    return lambda labels: all(test(labels) for test in tests)


def _label(text: str) -> Test:
    if match := _SET.match(text):
        key, word = _key(match[1]), match[2]
        values = {value.strip() for value in match[3].split(",")}
        if word == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: key not in labels or labels[key] not in values
    if text.startswith("!"):
        absent = _key(text[1:].strip())
        return lambda labels: absent not in labels
    if "=" not in text:
        present = _key(text)
        return lambda labels: present in labels
    key, wanted, value = _comparison(text)
    _key(key)
    if "=" in value:
        raise _unreadable(text)
    if wanted:
        return lambda labels: labels.get(key) == value
    return lambda labels: labels.get(key) != value


def _field(text: str, resource: Resource) -> Test:
    if "=" not in text:
        raise Refusal(400, f"invalid selector: '{text}'; can't understand '{text}'")
    key, wanted, value = _comparison(text)
    if key not in resource.fields:
        raise Refusal(
            400,
            f"field label not supported: {key}",
        )
    if wanted:
        return lambda fields: fields.get(key, "") == value
    return lambda fields: fields.get(key, "") != value


def _comparison(text: str) -> tuple[str, bool, str]:
    """Split ``a=b``, ``a==b`` or ``a!=b`` into key, whether equality is wanted, and value."""
    left, _, right = text.partition("=")
    wanted = not left.endswith("!")
    return left.removesuffix("!").strip(), wanted, right.removeprefix("=").strip()


def _key(text: str) -> str:
    if not _KEY.match(text):
        raise _unreadable(text)
    return text


def _unreadable(text: str) -> Refusal:
    return Refusal(400, f"unable to parse requirement: {text!r} is no requirement")
