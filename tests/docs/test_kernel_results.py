"""The table of docs/kernels.md, which ``make kernels`` writes."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from tests.kernels.results import BEGIN, END, Result, write
from tests.kernels.suites import runnable

PAGE = f"Words before.\n\n{BEGIN}\n| head |\n|---|\n{END}\n\nWords after.\n"
FIRST, SECOND = date(2026, 3, 9), date(2026, 4, 1)


def result(kernel: str, release: str, **suites: bool) -> Result:
    """Return what a run has seen of a kernel. ``suites``: whether they passed."""
    return Result(kernel, release, {"ingress": 250_000, "gc": 3_000}, ["tcx links"], suites)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with an empty table."""
    made = tmp_path / "kernels.md"
    made.write_text(PAGE)
    return made


def test_a_kernel_has_one_row_and_a_new_run_replaces_it(page: Path) -> None:
    write(page, result("6.1", "6.1.0-50", demo=True), FIRST)
    write(page, result("6.1", "6.1.0-56", demo=True), SECOND)
    rows = [line for line in page.read_text().splitlines() if line.startswith("| 6.1")]
    assert rows == [
        "| 6.1 | 6.1.0-56 | 2 | 253,000 | `ingress` 250,000 (25 %) | 1 | 2026-04-01: demo |"
    ]


def test_a_suite_that_did_not_run_keeps_its_day_and_one_that_failed_is_gone(page: Path) -> None:
    write(page, result("6.1", "6.1.0-50", demo=True, lab=True, image=True, ipvs=False), FIRST)
    write(page, result("6.1", "6.1.0-50", demo=True, lab=False), SECOND)
    assert page.read_text().count("| 2026-04-01: demo; 2026-03-09: image |") == 1


def test_a_kernel_on_which_nothing_passed_says_so(page: Path) -> None:
    write(page, result("6.1", "6.1.0-50", demo=False), FIRST)
    assert "| 1 | none |" in page.read_text()


def test_rows_are_in_the_order_of_versions_and_other_words_stay(page: Path) -> None:
    for kernel in ("newest", "6.12", "5.10 arm64", "6.1", "5.10"):
        write(page, result(kernel, kernel, demo=True), FIRST)
    text = page.read_text()
    assert text.startswith("Words before.\n\n")
    assert text.endswith("\n\nWords after.\n")
    order = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][1:]
    assert order == ["| 5.10", "| 5.10 arm64", "| 6.1", "| 6.12", "| newest"]


@pytest.mark.parametrize(
    ("kernel", "runs"),
    [("5.10", False), ("6.1", False), ("6.12", True), ("7.3.4", True), ("newest", True)],
)
def test_pods_on_netkit_are_tested_on_each_kernel_that_has_it(kernel: str, runs: bool) -> None:
    """So the suite cannot be left out where it should pass: there a missing netkit is a failure."""
    assert runnable(("demo", "netkit"), kernel) == (("demo", "netkit") if runs else ("demo",))
