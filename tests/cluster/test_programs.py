"""Programs are found as files, in archives, by one file with many names, or named as missing."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tests.cluster.errors import ClusterError
from tests.cluster.programs import NEEDED, collect


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A folder with all programs as single files."""
    folder = tmp_path / "release"
    folder.mkdir()
    for name in NEEDED:
        (folder / name).write_text(name)
    return folder


def archive(file: Path, members: dict[str, str], kind: str = "w:gz") -> None:
    """Write a compressed tar file of small files."""
    with tarfile.open(file, kind) as written:  # type: ignore[call-overload]
        for name, text in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            written.addfile(entry, io.BytesIO(text.encode()))


def test_single_programs_are_linked(release: Path, tmp_path: Path) -> None:
    collect(release, tmp_path / "bin")
    assert {each.name for each in (tmp_path / "bin").iterdir()} == set(NEEDED)
    assert (tmp_path / "bin" / "kubelet").resolve() == release / "kubelet"


def test_programs_are_taken_out_of_archives_as_they_are_downloaded(
    release: Path, tmp_path: Path
) -> None:
    for name in ("kubelet", "agnhost"):
        (release / name).unlink()
    archive(
        release / "kubernetes-server-linux-amd64.tar.gz",
        {"kubernetes/server/bin/kubelet": "server", "kubernetes/server/bin/kubelet.tar": "image"},
    )
    archive(release / "agnhost.tar.xz", {"agnhost": "exported", "etc/passwd": ""}, "w:xz")
    collect(release, tmp_path / "bin")
    assert (tmp_path / "bin" / "kubelet").read_text() == "server"
    assert (tmp_path / "bin" / "kubelet").stat().st_mode & 0o111
    assert (tmp_path / "bin" / "agnhost").read_text() == "exported"
    assert not (tmp_path / "bin" / "passwd").exists()


def test_a_changed_archive_is_unpacked_again(release: Path, tmp_path: Path) -> None:
    (release / "kubelet").unlink()
    archive(release / "server.tar", {"kubelet": "old"}, "w")
    collect(release, tmp_path / "bin")
    archive(release / "server.tar", {"kubelet": "newer", "kubectl": "x" * 20_000}, "w")
    collect(release, tmp_path / "bin")
    assert (tmp_path / "bin" / "kubelet").read_text() == "newer"


def test_one_program_with_many_names_stands_for_what_is_missing(
    release: Path, tmp_path: Path
) -> None:
    for name in ("kube-proxy", "kubectl"):
        (release / name).unlink()
    (release / "kubernetes").write_text("all")
    collect(release, tmp_path / "bin")
    assert (tmp_path / "bin" / "kube-proxy").read_text() == "all"
    assert (tmp_path / "bin" / "kubelet").read_text() == "kubelet"


def test_etcd_may_come_from_the_package(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (release / "etcd").unlink()
    packaged = tmp_path / "packaged"
    packaged.write_text("packaged")
    monkeypatch.setattr("tests.cluster.programs._packaged_etcd", lambda: packaged)
    collect(release, tmp_path / "bin")
    assert (tmp_path / "bin" / "etcd").read_text() == "packaged"


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_a_missing_program_is_named_with_its_origin(
    name: str, release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.cluster.programs._packaged_etcd", lambda: None)
    (release / name).unlink()
    with pytest.raises(ClusterError) as raised:
        collect(release, tmp_path / "bin")
    assert raised.value.message == f"{release} has no {name}"
    assert NEEDED[name] in raised.value.hint


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="is no folder"):
        collect(tmp_path / "none", tmp_path / "bin")
