"""A directory of manifests as a source: what is told, when, and what is left alone meanwhile.

A watch runs in a thread of its own, and a test waits for the batch it needs. What must not happen
is shown by what happens instead: a change of another file is told, and nothing came before it.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from bpfsvc.model import ObjectKey
from bpfsvc.sources import Batch, Problem, Source, SourceUnavailable
from bpfsvc.sources import watcher as watcher_module
from bpfsvc.sources.manifests import Manifests

PATIENCE = 10.0
LONG = 2 * PATIENCE
"""A settle time that no test lives to see the end of."""


def node(name: str, zone: str = "z") -> str:
    labels = f"{{topology.kubernetes.io/zone: {zone}}}"
    return f"apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {labels}}}\n"


def key(name: str) -> ObjectKey:
    return ObjectKey("Node", "", name)


def replace(path: Path, text: str) -> None:
    """Write beside and rename, as careful programs do."""
    beside = path.with_name(f".{path.name}.tmp")
    beside.write_text(text)
    beside.rename(path)


class Watch:
    """A watch in a thread. ``state`` is what its batches add up to: name -> zone."""

    def __init__(self, source: Source) -> None:
        self.state: dict[str, str] = {}
        self.batches: list[Batch] = []
        self.stop = threading.Event()
        self._arrived: queue.Queue[Batch] = queue.Queue()
        self._batches = source.watch(self.stop)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for batch in self._batches:
            self._arrived.put(batch)

    def next(self) -> Batch:
        batch = self._arrived.get(timeout=PATIENCE)
        self.batches.append(batch)
        for one in batch.puts:
            self.state[one.key.name] = getattr(one, "zone", "")
        for gone in batch.gone:
            del self.state[gone.name]
        return batch

    def until(self, holds: Callable[[Batch], bool]) -> Batch:
        """Take batches until one fits; time out loudly if none does."""
        while True:
            batch = self.next()
            if holds(batch):
                return batch

    def until_state(self, **state: str) -> Batch:
        return self.until(lambda _: self.state == state)

    def end(self) -> float:
        """Stop; give the seconds that took."""
        started = time.monotonic()
        self.stop.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return time.monotonic() - started


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "manifests"
    path.mkdir()
    return path


class Begin(Protocol):
    def __call__(self, directory: Path, settle: float = ...) -> Watch: ...


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Start watches; end them with the test."""
    begun: list[Watch] = []

    def start(directory: Path, settle: float = 0.1) -> Watch:
        begun.append(Watch(Manifests(directory, settle=settle)))
        return begun[-1]

    yield start
    for watch in begun:
        watch.end()


def words(batch: Batch) -> list[str]:
    return [str(problem) for problem in batch.problems]


def test_a_problem_is_written_with_file_and_line() -> None:
    assert str(Problem("a.yaml", 12, "no")) == "a.yaml:12: no"
    assert str(Problem("a.yaml", 0, "no")) == "a.yaml: no"


def test_the_first_batch_holds_everything_and_is_complete(directory: Path, begin: Begin) -> None:
    """Files of all three suffixes, Lists, many documents and directories below count."""
    (directory / "a.yaml").write_text(node("a") + "---\n" + node("b"))
    (directory / "c.yml").write_text(node("c"))
    item = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "d"}}
    (directory / "d.json").write_text(json.dumps({"kind": "List", "items": [item]}))
    (directory / "below" / "more").mkdir(parents=True)
    (directory / "below" / "more" / "e.yaml").write_text(node("e"))
    watch = begin(directory)
    batch = watch.next()
    assert batch.complete
    assert batch.gone == ()
    assert batch.problems == ()
    assert sorted(watch.state) == ["a", "b", "c", "d", "e"]


def test_an_empty_directory_is_complete_at_once(directory: Path, begin: Begin) -> None:
    assert begin(directory).next() == Batch((), (), complete=True, problems=())


@pytest.mark.parametrize(
    "name",
    [".a.yaml", ".a.yaml.swp", "a.yaml~", "a.yaml.tmp", "#a.yaml#", ".#a.yaml", "~a.yaml", "4913"],
)
def test_files_of_editors_are_not_read(directory: Path, begin: Begin, name: str) -> None:
    (directory / name).write_text("{broken")
    watch = begin(directory)
    assert watch.next().problems == ()
    (directory / name).write_text("{still broken")
    (directory / "b.yaml").write_text(node("b"))
    assert watch.next().problems == ()
    assert watch.state == {"b": "z"}


def test_a_file_replaced_by_a_rename_gives_its_difference(directory: Path, begin: Begin) -> None:
    (directory / "a.yaml").write_text(node("a") + "---\n" + node("b") + "---\n" + node("c"))
    watch = begin(directory)
    watch.next()
    replace(directory / "a.yaml", node("a") + "---\n" + node("b", "y") + "---\n" + node("d"))
    batch = watch.next()
    assert sorted(one.key.name for one in batch.puts) == ["b", "d"]
    assert batch.gone == (key("c"),)
    assert watch.state == {"a": "z", "b": "y", "d": "z"}


def test_a_file_written_in_place_gives_its_difference(directory: Path, begin: Begin) -> None:
    (directory / "a.yaml").write_text(node("a") + "---\n" + node("b"))
    watch = begin(directory)
    watch.next()
    (directory / "a.yaml").write_text(node("a", "y") + "---\n" + node("b"))
    watch.until_state(a="y", b="z")
    assert all(not batch.gone for batch in watch.batches)


def test_files_come_move_and_go(directory: Path, begin: Begin) -> None:
    watch = begin(directory)
    watch.next()
    (directory / "a.yaml").write_text(node("a"))
    watch.until_state(a="z")
    (directory / "a.yaml").rename(directory / "b.yaml")
    (directory / "c.yaml").write_text(node("c"))
    watch.until_state(a="z", c="z")
    (directory / "b.yaml").unlink()
    watch.until_state(c="z")
    assert [batch.gone for batch in watch.batches if batch.gone] == [(key("a"),)]
    assert all(batch.problems == () for batch in watch.batches)


def test_a_rewrite_that_changes_nothing_gives_no_batch(directory: Path, begin: Begin) -> None:
    """Nor do comments, other white space, or the time of the file."""
    (directory / "a.yaml").write_text(node("a"))
    watch = begin(directory)
    watch.next()
    replace(directory / "a.yaml", node("a"))
    replace(directory / "a.yaml", "# for people\n\n" + node("a"))
    os.utime(directory / "a.yaml")
    replace(directory / "b.yaml", node("b"))
    assert [one.key for one in watch.next().puts] == [key("b")]


def test_a_broken_file_keeps_its_last_good_objects_until_mended(
    directory: Path, begin: Begin
) -> None:
    (directory / "a.yaml").write_text(node("a"))
    (directory / "b.yaml").write_text(node("b"))
    watch = begin(directory)
    watch.next()
    replace(directory / "a.yaml", node("a", "y") + "---\nkind: [\n")
    broken = watch.until(lambda batch: batch.problems != ())
    assert (broken.puts, broken.gone) == ((), ())
    assert words(broken)[0].startswith("a.yaml:5: ")
    replace(directory / "b.yaml", node("b", "y"))
    others = watch.until_state(a="z", b="y")
    assert others.problems == broken.problems
    replace(directory / "a.yaml", node("a", "x"))
    assert watch.until_state(a="x", b="y").problems == ()


def test_a_file_broken_at_the_start_is_reported_with_the_first_batch(
    directory: Path, begin: Begin
) -> None:
    (directory / "a.yaml").write_text("kind: [\n")
    (directory / "b.yaml").write_text(node("b"))
    watch = begin(directory)
    batch = watch.next()
    assert batch.complete
    assert watch.state == {"b": "z"}
    assert words(batch)[0].startswith("a.yaml:1: ")


def test_a_broken_file_that_is_removed_takes_its_objects_and_its_problem_along(
    directory: Path, begin: Begin
) -> None:
    (directory / "a.yaml").write_text(node("a"))
    watch = begin(directory)
    watch.next()
    replace(directory / "a.yaml", "{")
    watch.until(lambda batch: batch.problems != ())
    (directory / "a.yaml").unlink()
    batch = watch.next()
    assert (batch.gone, batch.problems) == ((key("a"),), ())


def test_a_file_being_written_slowly_loses_nothing(directory: Path, begin: Begin) -> None:
    """Cut short, empty and malformed for a moment, it is not believed until it has settled."""
    (directory / "a.yaml").write_text(node("a") + "---\n" + node("b"))
    watch = begin(directory, LONG)
    watch.next()
    with (directory / "a.yaml").open("w") as file:
        for round_number, piece in enumerate((node("a", "y"), "---\n", "kind: [", "]\n")):
            file.write(piece)
            file.flush()
            # Another file's change shows that this state has been looked at.
            replace(directory / "m.yaml", node("m", f"m{round_number}"))
            watch.until_state(a="z", b="z", m=f"m{round_number}")
        file.seek(0)
        file.truncate()
        file.write(node("a", "x") + "---\n" + node("b", "x"))
    watch.until_state(a="x", b="x", m="m3")
    assert all((batch.gone, batch.problems) == ((), ()) for batch in watch.batches)


def test_a_value_cut_short_in_place_is_not_taken_for_the_value(
    directory: Path, begin: Begin
) -> None:
    (directory / "a.yaml").write_text(node("a", "zone-10"))
    watch = begin(directory, LONG)
    watch.next()
    text = "apiVersion: v1\nkind: Node\nmetadata:\n  name: a\n  labels:\n"
    with (directory / "a.yaml").open("w") as file:
        file.write(text + "    topology.kubernetes.io/zone: zone-1")
        file.flush()
        replace(directory / "m.yaml", node("m"))
        watch.until(lambda _: "m" in watch.state)
        assert watch.state["a"] == "zone-10"
        file.write("1\n")
    watch.until_state(a="zone-11", m="z")


def test_an_emptied_file_is_believed_when_it_has_settled(directory: Path, begin: Begin) -> None:
    (directory / "a.yaml").write_text(node("a"))
    watch = begin(directory)
    watch.next()
    (directory / "a.yaml").write_text("# nothing for now\n")
    assert watch.next().gone == (key("a"),)


def test_a_burst_of_a_thousand_files_comes_in_few_batches(directory: Path, begin: Begin) -> None:
    for number in range(1000):
        (directory / f"{number}.yaml").write_text(node(f"n{number}"))
    watch = begin(directory)
    watch.next()
    for number in range(1000):
        replace(directory / f"{number}.yaml", node(f"n{number}", "y"))
    watch.until(lambda _: set(watch.state.values()) == {"y"})
    assert len(watch.batches) < 100
    assert sum(len(batch.puts) for batch in watch.batches) == 2000


def test_two_files_with_one_object_are_a_problem_and_the_first_name_wins(
    directory: Path, begin: Begin
) -> None:
    (directory / "a.yaml").write_text(node("a", "first"))
    (directory / "b.yaml").write_text(node("b") + "---\n" + node("a", "second"))
    watch = begin(directory)
    batch = watch.next()
    assert watch.state == {"a": "first", "b": "z"}
    assert words(batch) == ["b.yaml:7: Node a is already defined in a.yaml, which counts"]
    (directory / "a.yaml").unlink()
    assert watch.until_state(a="second", b="z").problems == ()
    replace(directory / "a.yaml", node("a", "third"))
    assert watch.until_state(a="third", b="z").problems == batch.problems
    assert all(batch.gone == () for batch in watch.batches)


def test_one_object_twice_in_a_file_is_a_problem_and_the_first_place_wins(
    directory: Path, begin: Begin
) -> None:
    (directory / "a.yaml").write_text(node("a", "first") + "---\n" + node("a", "second"))
    watch = begin(directory)
    assert words(watch.next()) == ["a.yaml:7: Node a is already defined above; the first counts"]
    assert watch.state == {"a": "first"}
    replace(directory / "a.yaml", node("a", "second"))
    assert watch.next().problems == ()
    assert watch.state == {"a": "second"}


def test_a_copy_of_many_objects_is_reported_briefly(directory: Path, begin: Begin) -> None:
    text = "---\n".join(node(f"n{number}") for number in range(50))
    (directory / "a.yaml").write_text(text)
    (directory / "b.yaml").write_text(text)
    found = words(begin(directory).next())
    assert len(found) == 11
    assert "b.yaml: 40 more objects, from here on, are defined twice" in found


def test_a_file_that_cannot_be_opened_is_a_problem(directory: Path, begin: Begin) -> None:
    """A link to itself cannot be opened by anybody, root included."""
    (directory / "a.yaml").symlink_to("a.yaml")
    (directory / "b.yaml").symlink_to("missing.yaml")
    os.mkfifo(directory / "c.yaml")
    assert words(begin(directory).next()) == [
        "a.yaml: cannot be read: Too many levels of symbolic links",
        "b.yaml: is a link that leads nowhere",
        "c.yaml: is not a regular file",
    ]


def test_a_mounted_config_map_is_read_once_and_followed(directory: Path, begin: Begin) -> None:
    """The kubelet keeps the files in a hidden directory and flips one link to replace them all."""

    def mount(version: str, zone: str) -> None:
        (directory / version).mkdir()
        (directory / version / "a.yaml").write_text(node("a", zone))
        (directory / version / "b.yaml").write_text(node("b", zone))
        (directory / "..data_tmp").symlink_to(version)
        (directory / "..data_tmp").rename(directory / "..data")

    mount("..1", "one")
    (directory / "a.yaml").symlink_to("..data/a.yaml")
    (directory / "b.yaml").symlink_to("..data/b.yaml")
    watch = begin(directory)
    assert watch.next().problems == ()
    assert watch.state == {"a": "one", "b": "one"}
    for version in ("two", "three"):
        mount(f"..{version}", version)
        watch.until_state(a=version, b=version)
    assert all((batch.gone, batch.problems) == ((), ()) for batch in watch.batches)


def test_where_a_link_leads_is_followed_too(directory: Path, tmp_path: Path, begin: Begin) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "real.yaml").write_text(node("a"))
    (directory / "a.yaml").symlink_to(elsewhere / "real.yaml")
    watch = begin(directory)
    watch.next()
    (elsewhere / "real.yaml").write_text(node("a", "y"))
    watch.until_state(a="y")


def test_linked_directories_are_read_once_and_followed(
    directory: Path, tmp_path: Path, begin: Begin
) -> None:
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.yaml").write_text(node("a", version))
    (directory / "current").symlink_to(tmp_path / "one")
    (directory / "again").symlink_to(directory)
    watch = begin(directory)
    assert watch.next().problems == ()
    assert watch.state == {"a": "one"}
    (tmp_path / "one" / "b.yaml").write_text(node("b"))
    watch.until_state(a="one", b="z")
    (directory / "next").symlink_to(tmp_path / "two")
    (directory / "next").rename(directory / "current")
    watch.until_state(a="two")


def test_a_file_with_two_names_counts_once(directory: Path, begin: Begin) -> None:
    (directory / "a.yaml").write_text(node("a"))
    (directory / "b.yaml").symlink_to("a.yaml")
    os.link(directory / "a.yaml", directory / "c.yaml")
    watch = begin(directory)
    assert watch.next().problems == ()
    (directory / "a.yaml").write_text(node("a", "y"))
    assert watch.until_state(a="y").problems == ()


def test_the_directory_itself_may_be_a_link_that_is_flipped(tmp_path: Path, begin: Begin) -> None:
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.yaml").write_text(node("a", version))
    (tmp_path / "link").symlink_to("one")
    watch = begin(tmp_path / "link")
    watch.next()
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").rename(tmp_path / "link")
    watch.until_state(a="two")
    replace(tmp_path / "two" / "a.yaml", node("a", "three"))
    watch.until_state(a="three")


def test_a_directory_made_while_watching_is_watched(directory: Path, begin: Begin) -> None:
    watch = begin(directory)
    watch.next()
    (directory / "below").mkdir()
    (directory / "below" / "a.yaml").write_text(node("a"))
    watch.until_state(a="z")
    replace(directory / "below" / "a.yaml", node("a", "y"))
    watch.until_state(a="y")
    shutil.rmtree(directory / "below")
    watch.until_state()
    (directory / "below").mkdir()
    (directory / "below" / "a.yaml").write_text(node("a"))
    watch.until_state(a="z")


def test_a_directory_that_vanishes_keeps_its_objects_until_it_is_back(
    directory: Path, begin: Begin
) -> None:
    (directory / "a.yaml").write_text(node("a"))
    (directory / "b.yaml").write_text(node("b"))
    watch = begin(directory)
    watch.next()
    directory.rename(directory.with_name("away"))
    batch = watch.next()
    assert words(batch) == [
        f"{directory}: the directory is missing; what it last held stays in force"
    ]
    assert batch.gone == ()
    directory.mkdir()
    (directory / "a.yaml").write_text(node("a", "y"))
    assert watch.until_state(a="y").problems == ()
    replace(directory / "a.yaml", node("a", "x"))
    watch.until_state(a="x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda _: None, "does not exist", id="missing"),
        pytest.param(lambda path: path.write_text(""), "is not a directory", id="a file"),
    ],
)
def test_a_directory_that_cannot_be_watched_is_refused_with_a_hint(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / "x")
    with pytest.raises(SourceUnavailable, match=message) as caught:
        Manifests(tmp_path / "x").watch(threading.Event())
    assert "--manifests" in caught.value.hint


def test_a_relative_directory_is_followed(
    directory: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(directory.parent)
    watch = begin(Path(directory.name))
    watch.next()
    (directory / "a.yaml").write_text(node("a"))
    watch.until_state(a="z")


def test_a_change_during_the_first_reading_is_not_lost(directory: Path) -> None:
    """What is written after a batch was taken from the source, but not yet asked for more."""
    (directory / "a.yaml").write_text(node("a"))
    stop = threading.Event()
    batches = Manifests(directory).watch(stop)
    next(batches)
    (directory / "b.yaml").write_text(node("b"))
    replace(directory / "a.yaml", node("a", "y"))
    found: dict[str, str] = {}
    while found != {"a": "y", "b": "z"}:
        found |= {one.key.name: getattr(one, "zone", "") for one in next(batches).puts}
    stop.set()
    assert list(batches) == []


def test_changes_are_found_without_events_of_the_file_system(
    directory: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A system that has no watches left makes changes come later, not never."""

    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(watcher_module, "RustNotify", refuse)
    watch = begin(directory)
    watch.next()
    replace(directory / "a.yaml", node("a"))
    watch.until_state(a="z")
    assert "fs.inotify.max_user_instances" in caplog.text
    assert len(caplog.records) == 1


def test_a_watch_ends_soon_after_it_is_told_to(directory: Path, begin: Begin) -> None:
    watch = begin(directory)
    watch.next()
    assert watch.end() < 0.2


def test_a_watch_ends_soon_in_the_middle_of_a_large_file(directory: Path) -> None:
    (directory / "a.yaml").write_text("---\n".join(node(f"n{number}") for number in range(20_000)))
    watch = Watch(Manifests(directory))
    assert watch.end() < 0.2
    assert watch.batches == []
