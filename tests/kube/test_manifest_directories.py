"""Links and directories among the manifests: each file counts once, wherever it leads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from bpfsvc.kube.manifests.tree import walk
from tests.kube.watch import Begin, node, replace, words
from tests.services import crowd


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


def test_a_walk_through_many_files_takes_little_room(directory: Path) -> None:
    """It comes back every half minute, for as long as the agent runs."""
    for number in range(500):
        (directory / f"{number}.yaml").touch()
    tree, _, peak = crowd.measured(lambda: walk(directory))
    assert len(tree.files) == 500
    assert peak < 500 * 500
