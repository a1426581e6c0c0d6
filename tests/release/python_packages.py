"""The wheel and the source distribution."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bpfsvc.base.errors import BpfsvcError
from tests.release.archives import below, write_tar
from tests.release.checkout import Release


def build_packages(sources: Path, release: Release, target: Path) -> None:
    """Build both from exported sources. setuptools dates the files of the wheel only."""
    with TemporaryDirectory() as name:
        built = Path(name)
        done = subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", f"--outdir={built}", sources],
            env={**os.environ, "SOURCE_DATE_EPOCH": str(release.seconds)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            last = (done.stderr or done.stdout).strip().splitlines()[-1]
            raise BpfsvcError(
                f"the Python packages cannot be built: {last}", "see pip and setuptools"
            )
        (wheel,) = built.glob("*.whl")
        wheel.replace(target / wheel.name)
        (packed,) = built.glob("*.tar.gz")
        sdist = built / "sdist"
        sdist.mkdir()
        subprocess.run(["tar", "-xzf", packed, "-C", sdist], check=True)
        write_tar(target / packed.name, below(sdist), release.seconds)
