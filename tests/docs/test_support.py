"""SUPPORT.md is what other pages say."""

from __future__ import annotations

from tests.docs.support import COMMAND, PAGE, page, table


def test_the_page_is_made_of_the_other_pages() -> None:
    assert PAGE.read_text() == page().rstrip() + "\n", f"run {COMMAND}"


def test_each_kernel_that_was_tried_has_a_row() -> None:
    for row in table("kernels.md", "kernel"):
        assert any(line.startswith(f"| {row[0]} ") for line in page().splitlines()), row[0]


def test_what_the_doctor_refuses_is_not_supported() -> None:
    section = page().partition("## Beside other programs")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if " | " in line]
    by_name = {row[0].removeprefix("| "): row[1] for row in rows}
    for name in ("Cilium in place of kube-proxy", "Calico in eBPF mode", "OVN-Kubernetes"):
        assert by_name[name] == "not"
    assert by_name["Antrea"] == "expected, untried"
