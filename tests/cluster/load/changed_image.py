"""A second image of bpfsvc, whose connections have one more field.

It differs from the first by a layer with a C header and what is compiled of it, so its programs and
the layout of two maps are others: what an upgrade to a newer version may bring. All connections
have to be copied while they are used and while others begin.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any, Final

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader.shipped import ship
from bpfsvc.datapath.loader.source import CSource, directory
from tests.cluster.errors import ClusterError

_HEADERS: Final = {
    "connections.h": ("\t__u32 shortcut;\n", "\t__u32 shortcut;\n\t__u64 of_a_later_version;\n"),
}
"""What is replaced in a header, and by what. (Maps that the agent writes it knows by heart.)"""

_PLACE: Final = "bpfsvc/bpf/maps/"
_PROGRAMS: Final = "usr/share/bpfsvc/programs/"
_NAMES: Final = ("org.opencontainers.image.ref.name", "io.containerd.image.name")


def compile_changed(folder: Path) -> Path:
    """Compile the sources of this checkout with the changed headers; return the file.

    ``folder``: of changed sources and compiled programs; it is emptied.
    """
    shutil.rmtree(folder, ignore_errors=True)
    sources = shutil.copytree(directory(), folder / "bpf")
    for name in _HEADERS:
        header = sources / "maps" / name
        header.write_text(_changed(name, header.read_text()))
    return ship(folder / "programs", CSource(Sizes(), sources))


def make_changed_image(archive: Path, name: str, to: Path, compiled: Path) -> None:
    """Write an archive of the image in ``archive`` with the changed headers, called ``name``.

    ``compiled``: the programs that are compiled of them, for the image has no compiler.
    ``ClusterError`` if the headers are not as this module knows them.
    """
    with tarfile.open(archive) as source:
        index = json.loads(_read(source, "index.json"))
        (described,) = index["manifests"]
        manifest = json.loads(_blob(source, described["digest"]))
        config = json.loads(_blob(source, manifest["config"]["digest"]))
        programs = {f"{_PROGRAMS}{compiled.name}": compiled.read_bytes()}
        layer = _layer(_headers(source, manifest) | programs)
        blobs = {entry["digest"]: _blob(source, entry["digest"]) for entry in manifest["layers"]}
    blobs[_digest(layer)] = layer
    manifest["layers"].append(_entry(layer, manifest["layers"][0]["mediaType"].split("+")[0]))
    config["rootfs"]["diff_ids"].append(_digest(layer))
    config.pop("history", None)
    blobs.update({_digest(text): text for text in (_text(config),)})
    manifest["config"] |= _entry(_text(config))
    blobs[_digest(_text(manifest))] = _text(manifest)
    described |= _entry(_text(manifest)) | {"annotations": dict.fromkeys(_NAMES, name)}
    with tarfile.open(to, "w") as made:
        _add(made, "oci-layout", _text({"imageLayoutVersion": "1.0.0"}))
        _add(made, "index.json", _text(index))
        for digest, content in blobs.items():
            _add(made, _path(digest), content)


def _headers(source: tarfile.TarFile, manifest: dict[str, Any]) -> dict[str, bytes]:
    """Return the changed headers by their path in the image."""
    seen = {}
    for entry in manifest["layers"]:
        content = io.BytesIO(_blob(source, entry["digest"]))
        with tarfile.open(fileobj=content) as layer:
            for path in layer.getnames():
                place, _, file = path.rpartition("/")
                if file in _HEADERS and f"{place}/".endswith(_PLACE):
                    seen[path] = _changed(file, _read(layer, path).decode()).encode()
    if len(seen) != len(_HEADERS):
        raise ClusterError(f"the image has {sorted(seen)} of {sorted(_HEADERS)} in {_PLACE}")
    return seen


def _changed(file: str, text: str) -> str:
    before, after = _HEADERS[file]
    if text.count(before) != 1:
        raise ClusterError(f"{file} does not have the line {before.strip()!r} once")
    return text.replace(before, after)


def _layer(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as layer:
        for path, data in files.items():
            _add(layer, path, data)
    return content.getvalue()


def _add(archive: tarfile.TarFile, path: str, content: bytes) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))


def _read(archive: tarfile.TarFile, path: str) -> bytes:
    file = archive.extractfile(path)
    assert file is not None
    return file.read()


def _blob(archive: tarfile.TarFile, digest: str) -> bytes:
    return _read(archive, _path(digest))


def _path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _text(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def _entry(content: bytes, media_type: str | None = None) -> dict[str, Any]:
    kind = {"mediaType": media_type} if media_type else {}
    return {"digest": _digest(content), "size": len(content), **kind}
