"""Log lines of objects that cannot be parsed."""

from __future__ import annotations

import logging

import pytest

from bpfsvc.agent.objects.parse_errors import ParseErrors
from bpfsvc.kube.source import ParseError
from bpfsvc.model import ObjectKey

FILE = ParseError("a.yaml", 3, "malformed YAML")
SLICE = ParseError("slice", 0, "no port", ObjectKey("EndpointSlice", "shop", "web-1"))


def test_an_error_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    errors = ParseErrors()
    with caplog.at_level(logging.INFO):
        for broken in ([FILE], [FILE, SLICE], [SLICE], []):
            errors.replace(broken)
    assert caplog.messages == [
        "a.yaml:3: malformed YAML; the last good state stays in force",
        "slice: no port; the last good state stays in force",
        "fixed: a.yaml:3: malformed YAML",
        "fixed: slice: no port",
    ]
    assert not errors
