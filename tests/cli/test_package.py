"""What is installed is complete: metadata, C sources, the command; outside any checkout."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import bpfsvc
from bpfsvc.base.map_sizes import Sizes
from bpfsvc.datapath.loader.source import MAIN, load

ROOT = Path(bpfsvc.__file__).parents[1]

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def test_the_c_sources_are_in_the_package() -> None:
    source = load(Sizes())

    assert source.root.parent == Path(bpfsvc.__file__).parent
    assert (source.root / MAIN).is_file()
    assert (source.root / "include" / "linux" / "types.h").is_file()
    assert "int ingress(struct __sk_buff *skb)" in source.text


def test_no_requirement_is_named_bcc_which_on_pypi_is_another_thing() -> None:
    required = importlib.metadata.requires("bpfsvc") or []

    assert not [requirement for requirement in required if requirement.lower().startswith("bcc")]


def test_the_console_script_runs_the_commands() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="bpfsvc")

    assert script.value == "bpfsvc.cli.main:main"
    assert callable(script.load())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy, so that nothing is left in the checkout."""
    directory = tmp_path_factory.mktemp("wheel")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "bpf", "bpfsvc"):
        (directory / name).symlink_to(ROOT / name)
    # The run has no way out: what builds and what is needed are those of this environment.
    _run(*PIP, "wheel", "--no-build-isolation", "--no-deps", ".", "-w", "dist", at=directory)
    (built,) = (directory / "dist").glob("bpfsvc-*.whl")
    return built


@pytest.mark.slow
def test_a_wheel_carries_every_file_that_is_compiled(wheel: Path) -> None:
    sources = {
        f"bpfsvc/{file.relative_to(ROOT)}"
        for kind in ("*.c", "*.h")
        for file in (ROOT / "bpf").rglob(kind)
    }

    assert sources
    assert sources <= set(zipfile.ZipFile(wheel).namelist())


@pytest.mark.slow
def test_an_installed_package_runs_and_finds_its_sources_without_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    _run(*PIP, "install", "--no-deps", "--target", "installed", wheel, at=tmp_path)
    command = tmp_path / "installed" / "bin" / "bpfsvc"
    find = (
        "from bpfsvc.base.map_sizes import Sizes; from bpfsvc.datapath.loader.source import *;"
        " print(load(Sizes()).digest, directory())"
    )

    assert bpfsvc.__version__ in _run(command, "--version", at=tmp_path)
    digest, file = _run(sys.executable, "-c", find, at=tmp_path).split()
    assert digest == load(Sizes()).digest
    assert Path(file).is_relative_to(tmp_path)


def _run(*command: str | Path, at: Path) -> str:
    """Run a command in a directory and give its output; show its errors if it fails.

    What is installed below that directory comes before the checkout.
    """
    environment = os.environ | {"PYTHONPATH": str(at / "installed")}
    done = subprocess.run(
        command, cwd=at, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_installs_man_pages_and_shell_completion(wheel: Path) -> None:
    names = {name.partition("/share/")[2] for name in zipfile.ZipFile(wheel).namelist()}

    assert {
        "man/man1/bpfsvc.1",
        "man/man1/bpfsvc-services.1",
        "bash-completion/completions/bpfsvc",
        "zsh/site-functions/_bpfsvc",
        "fish/vendor_completions.d/bpfsvc.fish",
    } <= names
