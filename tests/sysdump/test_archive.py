"""Archives: what is read is what was written, and other files are one line."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from bpfsvc.base.errors import UsageError
from bpfsvc.cli.main import main
from bpfsvc.sysdump.archive import FORMAT, ArchiveWriter, read_archive

MEGABYTE = 1 << 20


def written(path: Path, *, lines: int = 3, max_bytes: int = MEGABYTE) -> ArchiveWriter:
    """Write an archive with a part of lines that cannot be compressed well, and another one."""
    with path.open("wb") as file:
        writer = ArchiveWriter(file, "node-1", max_bytes)
        writer.add("maps/entries.jsonl", (f"{json.dumps(number**9)}\n" for number in range(lines)))
        writer.add("status.json", ['{"well": true}\n'], whole=True)
        writer.failed("metrics.txt", "no metrics\nare served")
        writer.finish(anonymized=False)
    return writer


def test_parts_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    written(path)
    archive = read_archive(path)
    assert (archive.node, archive.manifest["format"]) == ("node-1", FORMAT)
    assert archive.json("status.json") == {"well": True}
    assert [*archive.json_lines("maps/entries.jsonl")] == [0, 1, 512]
    assert [*archive.cut()] == []


def test_a_missing_part_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    written(path)
    with pytest.raises(UsageError, match=r"has no metrics.txt: no metrics are served"):
        read_archive(path).text("metrics.txt")


def test_a_part_without_room_loses_lines_and_is_still_read(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    written(path, lines=100_000, max_bytes=100_000)
    assert 40_000 < path.stat().st_size <= 100_000
    archive = read_archive(path)
    numbers = [*archive.json_lines("maps/entries.jsonl")]
    assert numbers == [number**9 for number in range(len(numbers))]
    assert 100 < len(numbers) < 100_000
    (note,) = archive.cut()
    assert note.startswith(f"maps/entries.jsonl is cut after {len(numbers)} lines")
    assert archive.json("status.json") == {"well": True}


@pytest.mark.parametrize("max_bytes", [12_000, 50_000, 300_000])
def test_many_parts_together_are_not_larger_than_the_archive_may_be(
    tmp_path: Path, max_bytes: int
) -> None:
    """Random text, which is compressed least, in small and in large parts."""
    path, random = tmp_path / "dump", Random(1)
    with path.open("wb") as file:
        writer = ArchiveWriter(file, "node-1", max_bytes)
        for part in range(40):
            count = 30 if part % 2 else 3000
            writer.add(f"part-{part}", (f"{random.randbytes(30).hex()}\n" for _ in range(count)))
            writer.add(f"value-{part}", [random.randbytes(500).hex()], whole=True)
        writer.finish()
    assert path.stat().st_size <= max_bytes
    archive = read_archive(path)
    assert all(len(line) == 60 for line in archive.text("part-0").splitlines())
    assert len(writer.results) == 80


def test_a_value_without_room_is_left_out_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    with path.open("wb") as file:
        writer = ArchiveWriter(file, "node-1", 1000)
        writer.add("facts.json", [json.dumps([number**9 for number in range(20_000)])], whole=True)
        writer.finish()
    assert writer.results[0].result == "failed"
    with pytest.raises(UsageError, match="left out: larger than what --max-size leaves"):
        read_archive(path).json("facts.json")


def with_manifest(**fields: object) -> bytes:
    """Return an archive that has only this manifest."""
    data = json.dumps({"kind": "bpfsvc-sysdump", "format": FORMAT, **fields}).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("bpfsvc-sysdump/manifest.json")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def files(path: Path) -> dict[str, tuple[bytes, str]]:
    """Return contents that are no whole sysdump, and the line about each."""
    written(path, lines=20_000)
    whole = path.read_bytes()
    other = io.BytesIO()
    with tarfile.open(fileobj=other, mode="w:gz") as tar:
        tar.add(__file__, "somewhere/file.py")
    newer = with_manifest(format=FORMAT + 1, version="9.0")
    return {
        "text": (b"apiVersion: v1\n", "is no sysdump"),
        "nothing": (b"", "is no sysdump"),
        "another archive": (other.getvalue(), "is no sysdump"),
        "of another kind": (with_manifest(kind="other"), "is no sysdump"),
        "newer": (newer, f"has format {FORMAT + 1}, and this version of bpfsvc reads up to"),
        "cut short": (whole[: len(whole) // 2], "is cut short"),
        "without its last byte": (whole[:-1], "is cut short"),
        "damaged": (with_manifest(format="x"), "is damaged"),
    }


KINDS = (
    *("text", "nothing", "another archive", "of another kind"),
    *("newer", "cut short", "without its last byte", "damaged"),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", ["doctor", "explain"])
def test_another_file_is_one_line(tmp_path: Path, kind: str, command: str) -> None:
    path = tmp_path / "dump.tar.gz"
    content, message = files(path)[kind]
    path.write_bytes(content)
    question = ["--from", "pod", "10.0.0.1", "TCP", "10.0.0.2:80"] if command == "explain" else []
    done = CliRunner().invoke(main, [command, "--from", str(path), *question])
    assert done.exit_code == 2
    error, hint = done.stderr.splitlines()
    assert error.startswith(f"Error: {path} ")
    assert message in error
    assert hint.startswith("Hint: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["doctor", "--from", "/none"], "cannot read /none: No such file or directory"),
        (["doctor", "--from", "/none", "--devices", "eth0"], "has the settings of its node"),
        (["explain", "--from", "/none", "--live"], "--from FILE is about the node of that file"),
        (["explain", "--from", "pods"], "'pods' is no origin"),
        (["explain", "--from", "pod", "--from", "node"], "--from is given twice"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], message: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert message in done.stderr.splitlines()[0]
