"""What MkDocs calls while it builds the site: adds pages, and reads pages as code hosts do."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tests.docs.site import families, messages, settings


class Made(NamedTuple):
    """A page that is made of the code."""

    title: str
    body: Callable[[], str]

    def text(self) -> str:
        """Return the whole page."""
        return f"# {self.title}\n\n{self.body()}"


ROOT = Path(__file__).parents[3]
SHIM = Path(__file__).with_name("iframe-worker.js")

FROM_CODE = {
    "reference/fields.md": Made("Fields of the configuration", settings.fields_page),
    "reference/annotations.md": Made("Annotations of Services", settings.annotations_page),
    "reference/families.md": Made("Families of metrics", families.page),
    "reference/events.md": Made("Reasons of Events", messages.events_page),
    "reference/messages.md": Made("Lines of the log", messages.messages_page),
    "reference/errors.md": Made("Errors", messages.errors_page),
}
"""Pages of the site that are in no file, by their paths."""

FROM_ROOT = {
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
}
"""Documents of the root -> where the site has them."""

_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]+)?\)")
_ITEM = re.compile(r"(?:\*|-|1\.) ")
_ELSEWHERE = re.compile(r"https://unpkg\.com/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of the code, those of the root, and the script of search."""
    for path, page in FROM_CODE.items():
        files.append(File.generated(config, path, content=page.text()))
    for name, path in FROM_ROOT.items():
        files.append(File.generated(config, path, content=(ROOT / name).read_text()))
    files.append(File.generated(config, f"assets/{SHIM.name}", abs_src_path=str(SHIM)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Return the page with links of the site, and lists and tables where a code host sees them."""
    path = page.file.src_uri
    of_root = {moved: name for name, moved in FROM_ROOT.items()}
    at = of_root.get(path, f"docs/{path}")
    linked = _LINK.sub(lambda link: _site_link(link, at, path), markdown)
    return "\n".join(_as_on_code_hosts(linked.split("\n")))


def _site_link(link: re.Match[str], at: str, path: str) -> str:
    """Return a link of a file of the checkout as the site has it; only the text if it has none."""
    text, target, anchor = link[1], link[2], link[3] or ""
    named = posixpath.normpath(posixpath.join(posixpath.dirname(at), target))
    in_site = FROM_ROOT.get(named) or named.removeprefix("docs/")
    if in_site == named or not in_site.endswith((".md", ".svg", ".png")):
        return text
    return f"[{text}]({posixpath.relpath(in_site, posixpath.dirname(path) or '.')}{anchor})"


def _as_on_code_hosts(lines: list[str]) -> list[str]:
    """Part lists and tables from the paragraph before them; code in a table may have a ``|``."""
    result: list[str] = []
    fenced, before = False, ""
    for line in lines:
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            begins_list = _ITEM.match(line) and not (_ITEM.match(before) or before.startswith(" "))
            begins_table = line.startswith("|") and not before.startswith("|")
            if before and (begins_list or begins_table):
                result.append("")
            if line.startswith("|"):
                line = re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), line)
        result.append(line)
        before = line
    return result


def on_post_build(config: MkDocsConfig) -> None:
    """Cut the theme off from scripts of other hosts, which it would ask for in old browsers."""
    for script in Path(config.site_dir).rglob("*.js"):
        text = script.read_text()
        if _ELSEWHERE.search(text):
            script.write_text(_ELSEWHERE.sub("", text))
    for sources in Path(config.site_dir).rglob("*.map"):
        sources.unlink()
