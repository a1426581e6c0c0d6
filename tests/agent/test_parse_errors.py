"""Log lines of objects that cannot be parsed, and the Services that they may hide."""

from __future__ import annotations

import logging

import pytest

from bpfsvc.agent.objects.parse_errors import ParseErrors
from bpfsvc.kube.source import ParseError
from bpfsvc.model import ObjectKey

SERVICES = [("default", "web"), ("default", "dns"), ("shop", "web")]
FILE = ParseError("a.yaml", 3, "malformed YAML")
SERVICE = ParseError("service", 0, "no port", ObjectKey("Service", "default", "dns"))
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


@pytest.mark.parametrize(
    ("broken", "hidden"),
    [
        pytest.param([], set(), id="nothing is broken"),
        pytest.param([FILE], set(SERVICES), id="a file may have held any"),
        pytest.param([SERVICE], {("default", "dns")}, id="a Service is one of them"),
        pytest.param([SLICE], {("shop", "web")}, id="a slice belongs to a namespace"),
        pytest.param([SLICE, FILE], set(SERVICES), id="both"),
    ],
)
def test_broken_objects_may_hide_services(
    broken: list[ParseError], hidden: set[tuple[str, str]]
) -> None:
    """The entries of such Services stay in the kernel."""
    errors = ParseErrors()
    errors.replace(broken)
    assert errors.may_hide(SERVICES) == hidden
