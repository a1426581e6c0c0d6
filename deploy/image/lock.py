"""``python deploy/image/lock.py`` writes ``requirements.txt``: what pip installs into the image.

It asks pip for the newest versions that ``setup.cfg`` allows, and for setuptools, which builds the
package, and notes the hash of each wheel; for each architecture of the image, because wheels
differ. It installs nothing.
"""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
LOCK = HERE / "requirements.txt"
ARCHITECTURES = ("x86_64", "aarch64")
PYTHON = "3.11"  # Debian 12's
LIBC = (*(f"manylinux_2_{minor}" for minor in range(36, 16, -1)), "manylinux2014")
"""What Debian 12's pip takes, the best first: its glibc is 2.36."""

BUILD = ("setuptools>=70.1",)
"""From that version on it makes wheels by itself."""

_HEAD = f"""\
# What pip installs into the image, by name, version and hash: the newest versions that setup.cfg
# allows. Written by: python deploy/image/lock.py
# Wheels for Python {PYTHON} on {" and ".join(ARCHITECTURES)}.
"""


def required(setup: Path = HERE.parents[1] / "setup.cfg") -> list[str]:
    """Return the requirements of the package, as ``setup.cfg`` has them."""
    parser = configparser.ConfigParser()
    parser.read(setup)
    lines = parser["options"]["install_requires"].splitlines()
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


def resolved(architecture: str) -> dict[str, set[str]]:
    """Return the hashes of the wheels for an architecture, by ``name==version``."""
    platforms = [f"--platform={libc}_{architecture}" for libc in LIBC]
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report"
        options = ["--quiet", "--dry-run", "--ignore-installed", f"--target={directory}"]
        wheels = ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
        pip = [sys.executable, "-m", "pip", "install", *options, *wheels, *platforms]
        subprocess.run([*pip, f"--report={report}", *required(), *BUILD], check=True)
        installed = json.loads(report.read_text())["install"]
    return {
        f"{_normal(item['metadata']['name'])}=={item['metadata']['version']}": {
            item["download_info"]["archive_info"]["hash"].replace("=", ":", 1)
        }
        for item in installed
    }


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> None:
    """Write the file."""
    hashes: dict[str, set[str]] = {}
    for architecture in ARCHITECTURES:
        for name, of_wheels in resolved(architecture).items():
            hashes.setdefault(name, set()).update(of_wheels)
    entries = (
        " \\\n    ".join([name, *(f"--hash={text}" for text in sorted(hashes[name]))])
        for name in sorted(hashes)
    )
    LOCK.write_text(_HEAD + "".join(f"{entry}\n" for entry in entries))


if __name__ == "__main__":
    main()
