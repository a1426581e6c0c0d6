"""The documents as one book: its chapters, its table of contents, and the site made of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest

from bpfsvc.cli.main import COMMANDS
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.services.scheduling.annotations import ANNOTATIONS
from tests.docs.site import families, messages
from tests.docs.site.chapters import CONTENTS, chapters, listed
from tests.docs.site.hooks import FROM_CODE
from tests.docs.site.kept import SHARE, files
from tests.docs.test_documents import ROOT
from tests.page.browser import Browser, running_browser

DOCS = ROOT / "docs"
_ASSET = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?([^\s\">]+)|<link[^>]*\shref=\"?([^\s\">]+)"
)
_HOST = re.compile(r"(?:https?:)?//[\w.-]+\.[a-z]{2,}")


def test_every_page_is_in_a_chapter() -> None:
    paths = {chapter.path for chapter in chapters()} | {CONTENTS}
    lost = sorted({str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - paths)
    assert lost == [], (
        f"in no chapter: add {', '.join(lost)} to the nav of mkdocs.yml and to docs/README.md"
    )


def test_the_table_of_contents_lists_the_chapters_of_the_site() -> None:
    """The same pages in the same order below the same headings, by the titles of the pages."""
    for of_site, of_contents in zip(chapters(), listed(), strict=False):
        assert of_site == of_contents, "mkdocs.yml and docs/README.md differ here"
    assert len(chapters()) == len(listed())


def test_no_two_pages_have_the_same_title_or_chapter() -> None:
    titles = Counter(chapter.title.lower() for chapter in chapters())
    paths = Counter(chapter.path for chapter in chapters())
    assert [name for name, times in (titles | paths).items() if times > 1] == []


@pytest.mark.parametrize("file", files(), ids=lambda path: path.name)
def test_what_is_made_of_the_commands_is_up_to_date(file: Path) -> None:
    assert file.exists(), "type: make reference"
    assert file.read_text() == files()[file], "type: make reference"


def test_nothing_is_kept_of_commands_that_are_gone() -> None:
    assert {file for file in SHARE.rglob("*") if file.is_file()} == {
        file for file in files() if SHARE in file.parents
    }


def test_every_command_has_a_man_page_that_troff_reads_as_text() -> None:
    pages = {file.stem: text for file, text in files().items() if file.suffix == ".1"}
    assert {"bpfsvc", *(f"bpfsvc-{name}" for name in COMMANDS)} <= pages.keys()
    requests = {
        line.split()[0]
        for text in pages.values()
        for line in text.splitlines()
        if line[:1] in (".", "'")
    }
    assert requests == {".TH", ".SH", ".B", ".TP", ".PP"}
    for name in COMMANDS:
        assert f"See \\fBbpfsvc-{name}(1)\\fP" in pages["bpfsvc"]


def test_the_handbook_has_every_reason_of_an_event_that_asks_for_something() -> None:
    handbook = (DOCS / "operations.md").read_text()
    reasons = messages.event_reasons().keys() - {"Starting", "EndpointBack"}
    assert len(reasons) > 8
    assert {reason for reason in reasons if f"`{reason}`" not in handbook} == set()


def test_the_page_of_metrics_has_every_family_that_is_recorded() -> None:
    page = (DOCS / "metrics.md").read_text()
    ours = [name for name, *_ in families.recorded() if name.startswith("bpfsvc_")]
    assert len(ours) > 15
    assert [name for name in ours if name not in page] == []


@pytest.mark.slow
def test_pages_from_the_code_have_what_the_code_says() -> None:
    pages = {path.removeprefix("reference/"): page.text() for path, page in FROM_CODE.items()}

    assert "| `there is no map …` | `the maps are: …` |" in pages["errors.md"]
    assert "| `… has no effect without …`" not in pages["errors.md"]
    assert "`; the last good state stays in force`" not in pages["messages.md"]
    assert "| `…; the last good state stays in force` |" in pages["messages.md"]
    assert "| `lastGoodAfter` | `10s` | `--last-good-after` |" in pages["fields.md"]
    assert "`--ipvs-strict-arp` | No effect: bpfsvc does not use ipvs. |" in pages["fields.md"]
    for annotation in ANNOTATIONS:
        assert f"## bpfsvc.io/{annotation.name}\n" in pages["annotations.md"]
    assert "must be keep, drain or reset" in pages["annotations.md"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, made anew."""
    directory = tmp_path_factory.mktemp("site")
    build(ROOT / "mkdocs.yml", directory)
    return directory


def build(configuration: Path, directory: Path) -> None:
    """Build the site; a warning of MkDocs is an error."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", configuration, "-d", directory],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_site_has_every_page_and_asks_no_other_host_for_anything(site: Path) -> None:
    for chapter in chapters():
        assert (site / chapter.path).with_suffix(".html").exists()
    for page in site.rglob("*.html"):
        assets = [source or link for source, link in _ASSET.findall(page.read_text())]
        assert assets
        assert [asset for asset in assets if _HOST.match(asset)] == []
        missing = [asset for asset in assets if not (page.parent / asset.split("?")[0]).exists()]
        assert page.name == "404.html" or missing == []
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import\s+)[\"']?https?:[^)]*", style.read_text()) == []
    for script in site.rglob("*.js"):
        if "search_index" not in script.name:
            assert not re.search(r"https?://(?:unpkg|cdn|fonts|ajax)", script.read_text())


@pytest.mark.slow
def test_search_knows_every_page_by_its_words(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    texts: dict[str, str] = {}
    for entry in index["docs"]:
        texts.setdefault(entry["location"].partition("#")[0], "")
        texts[entry["location"].partition("#")[0]] += f"{entry['title']} {entry['text']}"

    assert {chapter.path.removesuffix(".md") + ".html" for chapter in chapters()} <= texts.keys()
    assert "max-connections-per-backend" in texts["reference/annotations.html"]
    assert "--last-good" in texts["commands.html"]
    assert "bpfsvc_drift_rows_total" in texts["metrics.html"]


def _finds(browser: Browser, page: str, words: str) -> bool:
    """Open a page and type words into its search; return whether it shows what it has found.

    What is typed before the scripts of the page have begun may be lost: the reader begins again.
    """
    browser.go(page, "The book of bpfsvc")
    field = "document.querySelector('.md-search__input')"
    browser.value(f"{field}.focus()")
    browser.write(words)
    key = f"{field}.dispatchEvent(new Event('keyup'))"
    with suppress(TimeoutError):
        wait(lambda: browser.value(key) and "matching documents" in browser.text(), "matches", 3)
        return True
    return False


@pytest.mark.slow
def test_a_browser_shows_and_searches_the_site_as_files(site: Path) -> None:
    """Without a server; the namespace of the browser has no way out."""
    with closing(Namespace("reader")) as reader, running_browser(reader) as browser:
        browser.look(1200, 900)
        page = f"file://{site}/index.html"
        wait(lambda: _finds(browser, page, "outlier ejection"), "what search finds", 20)
        browser.expect("Endpoints that do not answer")
        browser.go(f"file://{site}/concepts.html", "Rules against maps")
        widths = "[...document.querySelectorAll('article img')].map((image) => image.naturalWidth)"
        pictures = browser.value(widths)
        asked = [event for event in browser.complaints() if "a request to file://" not in event]

    assert len(pictures) == 4
    assert min(pictures) > 0
    assert asked == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "says"),
    [("[x](operations.md#nowhere)", "#nowhere"), ("![x](pictures/none.svg)", "pictures/none.svg")],
)
def test_a_broken_link_is_no_site(tmp_path: Path, fault: str, says: str) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("README.md", "operations.md"):
        (tmp_path / "docs" / name).write_text("# Page\n")
    (tmp_path / "docs/README.md").write_text(f"# Page\n\n{fault}\n")
    text = (ROOT / "mkdocs.yml").read_text().replace("hooks: [", f"hooks: [{ROOT}/")
    (tmp_path / "mkdocs.yml").write_text(
        text[: text.index("\nnav:")] + "\nnav: [README.md, operations.md]\n"
    )

    with pytest.raises(AssertionError, match=re.escape(says)):
        build(tmp_path / "mkdocs.yml", tmp_path / "site")
