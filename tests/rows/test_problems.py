"""What is told of what cannot be read, and what it may hide."""

from __future__ import annotations

import logging

import pytest

from bpfsvc.model import ObjectKey
from bpfsvc.problems import Problems
from bpfsvc.sources import Problem

SERVICES = [("default", "web"), ("default", "dns"), ("shop", "web")]
FILE = Problem("a.yaml", 3, "malformed YAML")
SERVICE = Problem("service", 0, "no port", ObjectKey("Service", "default", "dns"))
SLICE = Problem("slice", 0, "no port", ObjectKey("EndpointSlice", "shop", "web-1"))


def test_a_problem_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    problems = Problems()
    with caplog.at_level(logging.INFO):
        for found in ([FILE], [FILE, SLICE], [SLICE], []):
            problems.note(found)
    assert caplog.messages == [
        "a.yaml:3: malformed YAML; the last good state stays in force",
        "slice: no port; the last good state stays in force",
        "mended: a.yaml:3: malformed YAML",
        "mended: slice: no port",
    ]
    assert not problems


@pytest.mark.parametrize(
    ("found", "hidden"),
    [
        pytest.param([], set(), id="nothing is broken"),
        pytest.param([FILE], set(SERVICES), id="a file may have held any"),
        pytest.param([SERVICE], {("default", "dns")}, id="a Service is one of them"),
        pytest.param([SLICE], {("shop", "web")}, id="a slice belongs to a namespace"),
        pytest.param([SLICE, FILE], set(SERVICES), id="both"),
    ],
)
def test_what_is_broken_may_hide_services(
    found: list[Problem], hidden: set[tuple[str, str]]
) -> None:
    """Those stay in the kernel as they are."""
    problems = Problems()
    problems.note(found)
    assert problems.hidden(SERVICES) == hidden
