"""Manifests that are broken, half written or contradict each other: what stays in force."""

from __future__ import annotations

import os
from pathlib import Path

from tests.kube.watch import LONG, Begin, key, node, replace, words


def test_a_broken_file_keeps_its_last_good_objects_until_fixed(
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


def test_an_emptied_file_counts_when_it_has_settled(directory: Path, begin: Begin) -> None:
    (directory / "a.yaml").write_text(node("a"))
    watch = begin(directory)
    watch.next()
    (directory / "a.yaml").write_text("# nothing for now\n")
    assert watch.next().gone == (key("a"),)


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
    problems = words(begin(directory).next())
    assert len(problems) == 11
    assert "b.yaml: 40 more objects, from here on, are defined twice" in problems


def test_a_file_that_cannot_be_opened_is_a_problem(directory: Path, begin: Begin) -> None:
    """A link to itself cannot be opened, not even by root."""
    (directory / "a.yaml").symlink_to("a.yaml")
    (directory / "b.yaml").symlink_to("missing.yaml")
    os.mkfifo(directory / "c.yaml")
    assert words(begin(directory).next()) == [
        "a.yaml: cannot be read: Too many levels of symbolic links",
        "b.yaml: is a link to a file that does not exist",
        "c.yaml: is not a regular file",
    ]
