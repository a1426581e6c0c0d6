"""The image takes from a registry what the lock file names by hash, and that is what it needs."""

from __future__ import annotations

import re
import runpy

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy.rendered import DEPLOY, ROOT

LOCK = (DEPLOY / "image/requirements.txt").read_text()
ENTRY = re.compile(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)
LOCKED = {canonicalize_name(name): Version(version) for name, version, _ in ENTRY.findall(LOCK)}
SCRIPT = runpy.run_path(str(DEPLOY / "image/lock.py"))
REQUIRED = [Requirement(text) for text in SCRIPT["required"]()]
COMMAND = "python deploy/image/lock.py"


def test_every_line_is_a_version_with_its_hashes() -> None:
    """And no line names a registry, an option or a file."""
    rest = ENTRY.sub("", LOCK)
    assert all(line.startswith("#") for line in rest.splitlines() if line), rest
    assert LOCKED


def test_what_setup_cfg_asks_for_is_there_in_a_version_that_it_allows() -> None:
    assert REQUIRED
    wrong = [
        f"{wanted}: {LOCKED.get(canonicalize_name(wanted.name), 'missing')}; run {COMMAND}"
        for wanted in REQUIRED
        if canonicalize_name(wanted.name) not in LOCKED
        or LOCKED[canonicalize_name(wanted.name)] not in wanted.specifier
    ]
    assert wrong == []


def test_the_image_installs_nothing_else_from_a_registry() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install ([^&\n]*)", text)
    assert len(installs) == 2
    for options in installs:
        by_hash = {"--require-hashes", "--only-binary=:all:"} <= set(options.split())
        of_sources = {"--no-index", "--no-deps", "--no-build-isolation"} <= set(options.split())
        assert by_hash or of_sources, options


PACKAGES = [
    line.split()
    for line in (DEPLOY / "image/packages.lock").read_text().splitlines()
    if not line.startswith("#")
]


def test_every_debian_package_has_a_version_and_a_hash_for_both_architectures() -> None:
    assert all(re.fullmatch(r"[0-9a-f]{64}", sha256) for _, _, _, sha256 in PACKAGES)
    names = [(architecture, name) for architecture, name, _, _ in PACKAGES]
    assert len(set(names)) == len(names)
    wanted = {"apt", "libc6", *SCRIPT["installed_by_stages"]()}
    for architecture in ("amd64", "arm64"):
        assert wanted - {name for of, name in names if of == architecture} == set()


def test_the_image_installs_debian_packages_by_the_lock_alone() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert "apt-get" not in text
    assert text.count("RUN /install.sh ") == 3
