"""Manifests that are broken, half written or contradict each other: what stays in force."""

from __future__ import annotations

import json
import os
from pathlib import Path

from bpfsvc.model import ObjectKey
from tests.kube.watch import LONG, Begin, key, node, replace, words
from tests.services.objects import raw_slice


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


def test_a_broken_object_keeps_its_last_value_and_the_others_of_its_file_follow(
    directory: Path, begin: Begin
) -> None:
    """As an object of the API server that cannot be read."""
    bad = node("b").replace("{topology", "[{topology").replace("}}", "}]}")
    (directory / "a.yaml").write_text(node("a") + "---\n" + node("b"))
    watch = begin(directory)
    watch.next()
    replace(directory / "a.yaml", bad + "---\n" + node("a", "y") + "---\n" + node("c"))
    batch = watch.until_state(a="y", b="z", c="z")
    (problem,) = batch.problems
    assert (problem.file, problem.line, problem.key) == ("a.yaml", 3, key("b"))
    assert problem.reason == "metadata.labels: expected object | null, got array"
    replace(directory / "a.yaml", bad)
    assert watch.until_state(b="z").problems
    replace(directory / "a.yaml", node("c"))
    assert watch.until_state(c="z").problems == ()


def test_a_broken_object_at_the_start_is_the_only_one_that_is_missing(
    directory: Path, begin: Begin
) -> None:
    other = json.dumps(raw_slice("10.0.0.1 -", of="web", name="web-2"))
    broken = other.replace("10.0.0.1", "10.0.0.300").replace("web-2", "web-1")
    (directory / "a.json").write_text(f"{broken}\n{other}\n")
    (directory / "b.yaml").write_text(node("b"))
    batch = begin(directory).next()
    assert {item.key.name for item in batch.puts} == {"web-2", "b"}
    (problem,) = batch.problems
    assert problem.key == ObjectKey("EndpointSlice", "default", "web-1")
    assert problem.service == ("default", "web")


def test_a_broken_object_without_a_name_may_be_any_that_its_file_had(
    directory: Path, begin: Begin
) -> None:
    (directory / "a.yaml").write_text(node("a") + "---\n" + node("b"))
    watch = begin(directory)
    watch.next()
    unnamed = node("b").replace("name: b, ", "")
    replace(directory / "a.yaml", node("a", "y") + "---\n" + unnamed + "---\n" + node("c"))
    batch = watch.until_state(a="y", b="z", c="z")
    assert [problem.key for problem in batch.problems] == [None]


def test_a_broken_part_of_classic_endpoints_keeps_all_their_parts(
    directory: Path, begin: Begin
) -> None:
    subsets = "- addresses: [{ip: 10.0.0.1}, {ip: 'fd00::1'}]\n  ports: [{port: 80}]\n"
    text = f"apiVersion: v1\nkind: Endpoints\nmetadata: {{name: web}}\nsubsets:\n{subsets}"
    (directory / "a.yaml").write_text(text)
    watch = begin(directory)
    watch.next()
    replace(directory / "a.yaml", text.replace("10.0.0.1", "10.0.0.300"))
    batch = watch.until(lambda batch: batch.problems != ())
    assert (batch.puts, batch.gone) == ((), ())
    assert batch.problems[0].service == ("default", "web")


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


def test_an_object_that_is_defined_twice_hides_none(directory: Path, begin: Begin) -> None:
    """Its first definition is known: nothing has to stay in the kernel for it."""
    (directory / "a.yaml").write_text(node("a") + "---\n" + node("a", "second"))
    assert [problem.hides for problem in begin(directory).next().problems] == [False]


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
