"""A directory of manifests as a source: which batches come, and when.

A watch runs in a thread of its own, and a test waits for the batch it needs. What must not happen
is shown by what happens instead: a change of another file arrives, and nothing came before it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bpfsvc.base.address import pack
from bpfsvc.kube.manifests import watcher as watcher_module
from bpfsvc.kube.manifests.directory import ManifestSource
from bpfsvc.kube.source import Batch, ParseError, SourceUnavailable
from bpfsvc.model import PodPlace
from tests.kube.watch import Begin, Watch, key, node, replace


def test_a_problem_is_written_with_file_and_line() -> None:
    assert str(ParseError("a.yaml", 12, "no")) == "a.yaml:12: no"
    assert str(ParseError("a.yaml", 0, "no")) == "a.yaml: no"


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


def test_a_pod_is_found_by_its_name(directory: Path) -> None:
    """One without addresses of its own has those of its node."""
    address = '{"addresses": [{"type": "InternalIP", "address": "192.168.50.11"}]}'
    (directory / "a.yaml").write_text(
        f"{node('a')}status: {address}\n---\n"
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: prod}\n"
        "spec: {nodeName: a}\nstatus: {podIPs: [{ip: 10.244.1.5}]}\n---\n"
        "apiVersion: v1\nkind: Pod\nmetadata: {name: host, namespace: prod}\n"
        "spec: {nodeName: a, hostNetwork: true}\n"
    )
    source = ManifestSource(directory)
    own, nodes = (pack("10.244.1.5"),), (pack("192.168.50.11"),)
    assert source.find_pod("prod", "web") == PodPlace("a", own, on_host_network=False)
    assert source.find_pod("prod", "host") == PodPlace("a", nodes, on_host_network=True)
    assert source.find_pod("prod", "none") is None


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
    assert sorted(item.key.name for item in batch.puts) == ["b", "d"]
    assert batch.gone == (key("c"),)
    assert watch.state == {"a": "z", "b": "y", "d": "z"}


def test_a_file_written_in_place_gives_its_difference(directory: Path, begin: Begin) -> None:
    (directory / "a.yaml").write_text(node("a") + "---\n" + node("b"))
    watch = begin(directory)
    watch.next()
    (directory / "a.yaml").write_text(node("a", "y") + "---\n" + node("b"))
    watch.until_state(a="y", b="z")
    assert all(not batch.gone for batch in watch.batches)


def test_files_can_be_added_moved_and_removed(directory: Path, begin: Begin) -> None:
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
    assert [item.key for item in watch.next().puts] == [key("b")]


def test_a_burst_of_a_thousand_files_makes_few_batches(directory: Path, begin: Begin) -> None:
    for number in range(1000):
        (directory / f"{number}.yaml").write_text(node(f"n{number}"))
    watch = begin(directory)
    watch.next()
    for number in range(1000):
        replace(directory / f"{number}.yaml", node(f"n{number}", "y"))
    watch.until(lambda _: set(watch.state.values()) == {"y"})
    assert len(watch.batches) < 100
    assert sum(len(batch.puts) for batch in watch.batches) == 2000


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
        ManifestSource(tmp_path / "x").watch(threading.Event())
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
    """A file is written after one batch was taken and before the next one is asked for."""
    (directory / "a.yaml").write_text(node("a"))
    stop = threading.Event()
    batches = ManifestSource(directory).watch(stop)
    next(batches)
    (directory / "b.yaml").write_text(node("b"))
    replace(directory / "a.yaml", node("a", "y"))
    zones: dict[str, str] = {}
    while zones != {"a": "y", "b": "z"}:
        zones |= {item.key.name: getattr(item, "zone", "") for item in next(batches).puts}
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


def test_a_watch_ends_soon_after_it_is_stopped(directory: Path, begin: Begin) -> None:
    watch = begin(directory)
    watch.next()
    assert watch.end() < 0.2


def test_a_watch_ends_soon_in_the_middle_of_a_large_file(directory: Path) -> None:
    (directory / "a.yaml").write_text("---\n".join(node(f"n{number}") for number in range(20_000)))
    watch = Watch(ManifestSource(directory))
    assert watch.end() < 0.2
    assert watch.batches == []
