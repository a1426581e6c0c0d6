"""The documents keep to their width, and their links and file names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
WIDTH = 120

GENERATED = [
    ROOT / "SUPPORT.md",
    *(ROOT / f"docs/{name}.md" for name in ("benchmarks", "kernels", "netfilter-cases", "testing")),
]
"""Written by programs, as a whole or in part; their tables are as wide as their figures."""

_LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
_FILE = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|h|c))`")


def lines(document: Path) -> list[str]:
    return document.read_text().splitlines()


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = [line.lstrip("# ") for line in lines(document) if line.startswith("#")]
    words = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {word.strip().replace(" ", "-") for word in words}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_no_line_is_wider_than_120_columns(document: Path) -> None:
    """Tables that a program writes may be wider."""
    wide = [line for line in lines(document) if len(line) > WIDTH]
    if document in GENERATED:
        wide = [line for line in wide if not line.startswith("|")]
    assert wide == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_point_to_files_and_headings(document: Path) -> None:
    broken = []
    for target, anchor in _LINK.findall(document.read_text()):
        if "://" in target:
            continue
        file = (document.parent / target).resolve() if target else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize(
    "picture", sorted((ROOT / "docs/pictures").glob("*.svg")), ids=lambda path: path.name
)
def test_pictures_are_shown_and_ask_no_other_host_for_anything(picture: Path) -> None:
    text = picture.read_text()
    shown = [page for page in DOCUMENTS if f"(pictures/{picture.name})" in page.read_text()]

    assert shown
    assert re.findall(r"<title>.+</title>", text)
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {"http://www.w3.org/2000/svg"}
    assert "<script" not in text


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/architecture.md"])
def test_source_files_that_are_named_exist(name: str) -> None:
    """A file may be named below the package, below ``bpf``, or from the root."""
    places = (ROOT, ROOT / "bpfsvc", ROOT / "bpf")
    named = set(_FILE.findall((ROOT / name).read_text())) - {"NAME.py", "cli/NAME.py"}
    assert {file for file in named if not any((at / file).exists() for at in places)} == set()


def test_every_reason_of_a_drop_or_a_refusal_is_in_the_handbook() -> None:
    """With what an operator does about it; and no reason is there that is none any more."""
    counters = (ROOT / "bpf/maps/counters.h").read_text()
    handbook = (ROOT / "docs/operations.md").read_text()
    reasons = r"\b(?:dropped|rejected)__\w+"
    assert set(re.findall(reasons, counters)) == set(re.findall(reasons, handbook))
