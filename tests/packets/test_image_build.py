"""What the build of an image compiles, where nobody may call bpf(2), is what is compiled on a node.

``deploy/image/no_kernel.c`` stands in for the kernel there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader.compiler_process import compile_source
from bpfsvc.datapath.loader.source import load
from bpfsvc.devtools.lab import sandbox

CHECKOUT = Path(__file__).parents[2]
NOBODY = 65534


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A directory of the user that compiles."""
    directory = tmp_path / "programs"
    directory.mkdir()
    os.chown(directory, NOBODY, NOBODY)
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == 0 and each.is_relative_to("/tmp/"):
            each.chmod(each.stat().st_mode | 0o011)
    return directory


def ship(directory: Path, *, preload: Path | None) -> subprocess.CompletedProcess[str]:
    """Compile as a user who may not call bpf(2), but may read a checkout in root's home."""
    caps = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *caps]
    environment = {**os.environ, "TMPDIR": str(directory)}
    if preload:
        environment["LD_PRELOAD"] = str(preload)
    return subprocess.run(
        [*user, sys.executable, "-m", "bpfsvc.datapath.loader.shipped", str(directory)],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_programs_compiled_without_a_kernel_are_those_compiled_with_one(
    output: Path, tmp_path: Path
) -> None:
    """Byte for byte. Without the stand-in this user can compile nothing."""
    sandbox.require()
    stand_in = tmp_path / "no_kernel.so"
    source = CHECKOUT / "deploy" / "image" / "no_kernel.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(stand_in), str(source)], check=True)
    assert ship(output, preload=None).returncode != 0
    assert list(output.glob("*.bytecode")) == []
    done = ship(output, preload=stand_in)
    assert done.returncode == 0, done.stderr
    file = Path(done.stdout.strip())
    assert (file.parent, file.stat().st_mode & 0o777) == (output, 0o644)
    assert file.read_bytes() == compile_source(load(Sizes()))
