"""The image with another layout differs from the first by a header and what is compiled of it."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader.bytecode import Bytecode
from bpfsvc.datapath.loader.source import CSource, load
from tests.cluster.errors import ClusterError
from tests.cluster.load.changed_image import compile_changed, make_changed_image
from tests.cluster.oci import Contents, Image

_SOURCES = Path(__file__).parents[3] / "bpf" / "maps"
_HEADER = "opt/bpfsvc/bpf/maps/connections.h"


def _image(folder: Path, header: Path) -> Path:
    """Write an archive as buildah does it: named by the annotation of the specification."""
    layer = Contents(files={_HEADER: header, "bin/other": header}).write(folder / "layer.tar")
    archive = folder / "first.tar"
    Image(names=["bpfsvc:1"], layers=[layer], entrypoint=["/bpfsvc"]).write(archive)
    return archive


def _read(archive: Path) -> tuple[str, list[dict[str, str]], dict[str, Any]]:
    """Return the name, the files of each layer, and the configuration."""
    with tarfile.open(archive) as source:

        def blob(digest: str) -> bytes:
            file = source.extractfile(f"blobs/{digest.replace(':', '/')}")
            assert file is not None
            return file.read()

        index = source.extractfile("index.json")
        assert index is not None
        (described,) = json.loads(index.read())["manifests"]
        manifest = json.loads(blob(described["digest"]))
        layers = [_files(blob(entry["digest"])) for entry in manifest["layers"]]
        config = json.loads(blob(manifest["config"]["digest"]))
    return described["annotations"]["io.containerd.image.name"], layers, config


def _files(layer: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as content:
        return {
            entry.name: file.read().decode()
            for entry in content.getmembers()
            if (file := content.extractfile(entry)) is not None
        }


def test_a_layer_with_the_header_is_added(tmp_path: Path) -> None:
    first = _image(tmp_path, _SOURCES / "connections.h")
    compiled = tmp_path / "0123.bytecode"
    compiled.write_text("compiled")
    make_changed_image(first, "bpfsvc:2", tmp_path / "second.tar", compiled)
    _, before, _ = _read(first)
    name, layers, config = _read(tmp_path / "second.tar")
    assert name == "bpfsvc:2"
    assert layers[:-1] == before
    assert list(layers[-1]) == [_HEADER, "usr/share/bpfsvc/programs/0123.bytecode"]
    assert "\t__u64 of_a_later_version;\n" in layers[-1][_HEADER]
    assert len(config["rootfs"]["diff_ids"]) == len(layers)
    assert config["config"]["Entrypoint"] == ["/bpfsvc"]


def test_a_header_that_has_changed_since_is_an_error(tmp_path: Path) -> None:
    first = _image(tmp_path, _SOURCES / "backends.h")
    with pytest.raises(ClusterError, match="connections"):
        make_changed_image(first, "bpfsvc:2", tmp_path / "second.tar", first)


@pytest.mark.slow
def test_what_is_compiled_is_that_of_the_changed_header(tmp_path: Path) -> None:
    """So an agent of that image finds it, and finds the field."""
    sources = tmp_path / "made" / "bpf"
    compiled = compile_changed(tmp_path / "made")
    assert "of_a_later_version" in (sources / "maps" / "connections.h").read_text()
    changed = CSource(Sizes(), sources)
    build = Bytecode.decode(compiled.read_bytes(), changed.code_digest)
    assert compiled.stem == changed.code_digest != load(Sizes()).code_digest
    assert "of_a_later_version" in build.layout.maps["connections"].value.names
