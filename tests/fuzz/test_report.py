"""The total of program runs that ``make fuzz`` keeps in a document."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.report import Total, write_figures


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """A document that has no run yet."""
    path = tmp_path / "testing.md"
    path.write_text("before\n<!-- make fuzz: begin -->\n<!-- make fuzz: end -->\nafter\n")
    return path


def _written(document: Path, digest: str, seed: int, runs: int) -> Total:
    total = Total.read(document, digest).with_run(seed, runs)
    write_figures(document, "figures", total)
    return Total.read(document, digest)


def test_runs_of_the_same_programs_add_up(document: Path) -> None:
    _written(document, "ab12", 7, 1_000_000)
    assert _written(document, "ab12", 8, 234_567) == Total("ab12", 1_234_567, (7, 8))
    assert "1,234,567 program runs, of the seeds 7, 8." in document.read_text()


def test_a_seed_counts_once(document: Path) -> None:
    _written(document, "ab12", 7, 1_000_000)
    assert _written(document, "ab12", 7, 9_000_000) == Total("ab12", 1_000_000, (7,))


def test_runs_of_other_programs_are_not_counted(document: Path) -> None:
    _written(document, "ab12", 7, 1_000_000)
    assert _written(document, "cd34", 8, 5) == Total("cd34", 5, (8,))


def test_what_stands_around_the_figures_stays(document: Path) -> None:
    _written(document, "ab12", 7, 1_000_000)
    _written(document, "ab12", 8, 1)
    assert document.read_text().startswith("before\n<!-- make fuzz: begin -->\nfigures\n")
    assert document.read_text().endswith("<!-- make fuzz: end -->\nafter\n")
