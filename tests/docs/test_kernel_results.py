"""The table of docs/kernels.md, which ``make kernels`` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernels.results import BEGIN, END, Result, write
from tests.kernels.suites import runnable

SUITES = ("demo", "lab", "image")
PAGE = f"Words before.\n\n{BEGIN}\n| head |\n|---|\n{END}\n\nWords after.\n"


def result(kernel: str, release: str, passed: int) -> Result:
    followed = {"ingress": 250_000, "gc": 3_000}
    return Result(kernel, release, followed, ["tcx links"], SUITES[:passed])


def test_a_kernel_has_one_row_and_a_new_run_replaces_it(tmp_path: Path) -> None:
    page = tmp_path / "kernels.md"
    page.write_text(PAGE)
    write(page, result("6.1", "6.1.0-50", 3), SUITES)
    write(page, result("6.1", "6.1.0-56", 2), SUITES)
    rows = [line for line in page.read_text().splitlines() if line.startswith("| 6.1")]
    assert rows == ["| 6.1 | 6.1.0-56 | 2 | 253,000 | `ingress` 250,000 (25 %) | demo, lab | 1 |"]


def test_rows_are_in_the_order_of_versions_and_other_words_stay(tmp_path: Path) -> None:
    page = tmp_path / "kernels.md"
    page.write_text(PAGE)
    for kernel in ("newest", "6.12", "5.10 arm64", "6.1", "5.10"):
        write(page, result(kernel, kernel, 3), SUITES)
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
