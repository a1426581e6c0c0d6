"""docs/troubleshooting.md leads to what the tests of incidents show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TREE = (ROOT / "docs" / "troubleshooting.md").read_text()
INCIDENTS = sorted((ROOT / "tests" / "incidents").glob("test_*.py"))

_ROW = re.compile(r"^\| (.+?) \| (.+?) \| (test_\w+\.py) \|$", re.MULTILINE)
TYPED = {
    "doctor": ".finding(",
    "services": '"services"',
    "-o wide": '"-o", "wide"',
    "status": 'operator.types("status")',
    "history": 'operator.types("history"',
    "observe --summary": '"--summary"',
    "--for 30": '"--for"',
}
"""How tests type what rows name."""

_CODE = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    """One incident: what status says, who says the cause, and the test."""

    says: str
    cause: str
    test: str


ROWS = [Row(*row) for row in _ROW.findall(TREE)]


def test_each_incident_has_its_row_and_each_row_its_incident() -> None:
    assert sorted(row.test for row in ROWS) == [file.name for file in INCIDENTS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.test)
def test_the_test_reads_what_the_row_quotes_and_types_its_commands(row: Row) -> None:
    text = (ROOT / "tests" / "incidents" / row.test).read_text()
    (quoted,) = _CODE.findall(row.says)
    assert quoted in text
    commands = _CODE.findall(row.cause)
    assert "reads_in_status(" in text or commands
    for command in commands:
        assert TYPED[command] in text
