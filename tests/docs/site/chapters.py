"""The chapters of the book: as ``mkdocs.yml`` has them, and as docs/README.md lists them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from mkdocs.config import load_config

from tests.docs.site.hooks import FROM_CODE, FROM_ROOT, ROOT
from tests.docs.site.markdown import title

CONTENTS = "README.md"

_ENTRY = re.compile(r"^(##+) (.+)$|^\* ([^\[\n]+) \(site\)$|\[([^\]]+)\]\(([^)]+)\)", re.MULTILINE)


class Chapter(NamedTuple):
    """A page, below the headings of its chapter; ``path`` is the one that the site has."""

    headings: tuple[str, ...]
    title: str
    path: str


@cache
def chapters() -> list[Chapter]:
    """Return the pages of ``mkdocs.yml``, but for the table of contents."""
    nav = load_config(str(ROOT / "mkdocs.yml")).nav
    return [chapter for chapter in _pages(nav, ()) if chapter.path != CONTENTS]


def _pages(nav: Any, headings: tuple[str, ...]) -> Iterator[Chapter]:
    for item in nav:
        if isinstance(item, str):
            yield Chapter(headings, title_of(item), item)
        else:
            for heading, below in item.items():
                yield from _pages(below, (*headings, heading))


def title_of(path: str) -> str:
    """Return the title of a page of the site."""
    if path in FROM_CODE:
        return FROM_CODE[path].title
    of_root = {moved: name for name, moved in FROM_ROOT.items()}
    return title((ROOT / of_root.get(path, f"docs/{path}")).read_text())


def listed(contents: Path = ROOT / "docs" / CONTENTS) -> list[Chapter]:
    """Return what the table of contents lists."""
    titles = {page.title: path for path, page in FROM_CODE.items()}
    headings: tuple[str, ...] = ()
    entries = []
    for match in _ENTRY.finditer(contents.read_text()):
        marks, heading, made, name, target = match.groups()
        if marks:
            headings = (*headings[: len(marks) - 2], heading)
        else:
            path = titles.get(made, made) if made else FROM_ROOT.get(target[3:], target)
            entries.append(Chapter(headings, made or name, path))
    return entries
