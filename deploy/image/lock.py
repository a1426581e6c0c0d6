"""``python deploy/image/lock.py`` writes down what the image installs, for both architectures.

``requirements.txt``: the newest versions that ``setup.cfg`` allows, and setuptools, which builds
the package, with the hash of each wheel. ``packages.lock``: the Debian packages of the Dockerfile's
stages and all that these need, with version and hash. It installs nothing; only apt's lists are
read, into a directory of its own.
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
PACKAGES = HERE / "packages.lock"
DEBIAN_ARCHITECTURES = ("amd64", "arm64")
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

_PACKAGES_HEAD = """\
# What apt installs while the image is built: architecture, name, version, SHA256 of the file.
# Written by: python deploy/image/lock.py
"""

_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SOURCES = "".join(
    f"Types: deb\nURIs: http://deb.debian.org/{archive}\nSuites: {suites}\nComponents: main\n"
    f"Signed-By: {_KEYS}\n\n"
    for archive, suites in (
        ("debian", "bookworm bookworm-updates"),
        ("debian-security", "bookworm-security"),
    )
)
"""Those of Debian's own base image."""


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


def installed_by_stages(dockerfile: Path = HERE.parents[1] / "Dockerfile") -> list[str]:
    """Return the names of Debian packages that stages of the Dockerfile ask for."""
    text = dockerfile.read_text().replace("\\\n", " ")
    return sorted({name for words in _INSTALL.findall(text) for name in words.split()})


_INSTALL = re.compile(r"^RUN /install\.sh ([a-z0-9 .+-]+)$", re.MULTILINE)


class Apt:
    """apt for an architecture, with lists in a directory of its own and nothing installed."""

    def __init__(self, directory: Path, architecture: str) -> None:
        for name in ("state/lists/partial", "cache/archives/partial", "etc"):
            (directory / name).mkdir(parents=True)
        (directory / "status").touch()
        (directory / "debian.sources").write_text(_SOURCES)
        settings = {
            "Dir::State": directory / "state",
            "Dir::State::status": directory / "status",
            "Dir::Cache": directory / "cache",
            "Dir::Etc::sourcelist": directory / "debian.sources",
            "Dir::Etc::sourceparts": directory / "etc",
            "Dir::Etc::preferencesparts": directory / "etc",
            "APT::Architecture": architecture,
            "APT::Architectures": architecture,
            "APT::Sandbox::User": "root",
        }
        self._options = [f"-o{name}={value}" for name, value in settings.items()]

    def ask(self, command: str, *words: str) -> str:
        """Return what a command of apt prints."""
        asked = [command, *self._options, *words]
        return subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout

    def stanzas(self, *words: str) -> list[dict[str, str]]:
        """Return descriptions of packages, each by the names of its one-line fields."""
        texts = self.ask("apt-cache", *words).split("\n\n")
        return [dict(_FIELD.findall(text)) for text in texts if text.strip()]


_FIELD = re.compile(r"^([A-Za-z0-9-]+): (.+)$", re.MULTILINE)


def packages(architecture: str) -> list[str]:
    """Return the lines of ``packages.lock`` for an architecture."""
    with TemporaryDirectory() as directory:
        apt = Apt(Path(directory), architecture)
        apt.ask("apt-get", "-qq", "update")
        base = {
            stanza["Package"]
            for stanza in apt.stanzas("dumpavail")
            if stanza.get("Essential") == "yes" or stanza.get("Priority") == "required"
        }
        wanted = sorted({*base, "apt", *installed_by_stages()})
        simulated = apt.ask("apt-get", "-s", "--no-install-recommends", "install", *wanted)
        chosen = [
            "=".join(words) for words in re.findall(r"^Inst (\S+) \((\S+)", simulated, re.MULTILINE)
        ]
        stanzas = apt.stanzas("show", "--no-all-versions", *chosen)
    return sorted(
        {
            f"{architecture} {stanza['Package']} {stanza['Version']} {stanza['SHA256']}\n"
            for stanza in stanzas
        }
    )


def main() -> None:
    """Write the files."""
    lines = [line for name in DEBIAN_ARCHITECTURES for line in packages(name)]
    PACKAGES.write_text(_PACKAGES_HEAD + "".join(lines))
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
