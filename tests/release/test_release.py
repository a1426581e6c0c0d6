"""``make release``: which commits it refuses, what it makes of others, and how users verify it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from bpfsvc import __version__
from bpfsvc.base.errors import BpfsvcError
from tests.deploy.programs import run
from tests.deploy.rendered import only
from tests.release.__main__ import CHECKOUT, NOTES, main
from tests.release.archives import below, write_tar
from tests.release.attachments import CHART, KREW, PROGRAM, krew_manifest, pack_chart
from tests.release.changelog import notes, read_sections
from tests.release.checkout import Release, read_release
from tests.release.signature import SIGNATURE, SUMS, Key, write_sums
from tests.release.twice import differences
from tests.release.version import write_version

TODAY = date(2030, 1, 2)
NEXT = "7.8.9"


def git(checkout: Path, *words: str) -> str:
    """Run git there, as somebody."""
    identity = ("-c", "user.name=releaser", "-c", "user.email=releaser@example.org")
    done = subprocess.run(
        ["git", *identity, *words], cwd=checkout, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The present commit, as a checkout without tags."""
    path = tmp_path_factory.mktemp("clone") / "checkout"
    git(CHECKOUT, "clone", "-q", "--no-tags", "--shared", ".", str(path))
    return path


@pytest.fixture
def checkout(cloned: Path) -> Iterator[Path]:
    """A clean checkout, which is as it was after the test."""
    head = git(cloned, "rev-parse", "HEAD")
    yield cloned
    for tag in git(cloned, "tag").split():
        git(cloned, "tag", "-d", tag)
    git(cloned, "reset", "-q", "--hard", head)
    git(cloned, "clean", "-qfd")


class Keys(NamedTuple):
    """A releaser's key, and the file with the keys that users trust."""

    key: Path
    signers: Path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """A key that users trust."""
    path = tmp_path_factory.mktemp("keys")
    return Keys(make_key(path / "key"), trust(path / "signers", path / "key"))


def make_key(path: Path, kind: str = "ed25519") -> Path:
    """Make a key without a passphrase."""
    asked = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path]
    subprocess.run(asked, check=True)  # type: ignore[arg-type]
    return path


def trust(signers: Path, key: Path) -> Path:
    """Write the file of signers with a key."""
    public = key.with_name(f"{key.name}.pub").read_text()
    signers.write_text(f'# comment\nada@example.org namespaces="bpfsvc-release" {public}')
    return signers


def tagged(checkout: Path, version: str) -> None:
    """Commit a version as RELEASING.md says, and tag it."""
    write_version(checkout, version, TODAY)
    git(checkout, "commit", "-qam", f"version {version}")
    git(checkout, "tag", f"v{version}")


def complaint(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return the line by which ``make release`` refuses to work."""
    assert main(["--images", "none", *options]) != 0
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    return line


# -- what is refused --


def test_a_checkout_with_changes_is_refused(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "README.md").write_text("changed")
    (checkout / "new").touch()
    options = ("--key", "none", "--checkout", str(checkout), "--target", str(tmp_path / "made"))
    line = complaint(capsys, *options)
    assert "changes that are not committed: README.md and 1 more (commit or remove" in line
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_no_checkout_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(capsys, "--key", "none", "--checkout", str(tmp_path))
    assert "a release is made in a git checkout" in line


def test_a_release_without_a_key_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "KEY=FILE, or KEY=none" in complaint(capsys)


def test_a_key_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{tmp_path}/key, is no file" in complaint(capsys, "--key", f"{tmp_path}/key")


@pytest.mark.parametrize("wrong", ["a text", "an RSA key"])
def test_a_file_that_cannot_sign_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    path = tmp_path / "key"
    if wrong == "a text":
        path.write_text("no key\n")
    else:
        make_key(path, "rsa")
    assert f"{path} is no key that can sign a release" in complaint(capsys, "--key", str(path))


def test_a_key_that_users_do_not_trust_is_refused(
    keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even if a comment has it."""
    make_key(tmp_path / "other")
    public = (tmp_path / "other.pub").read_text()
    signers = tmp_path / "signers"
    signers.write_text(f"# {public}{keys.signers.read_text()}")
    line = complaint(capsys, "--key", str(tmp_path / "other"), "--signers", str(signers))
    assert "is not in signers, so users could not verify its signature" in line
    assert public.split()[1] in line


@pytest.mark.parametrize("option", ["--architectures", "--images"])
def test_an_unknown_architecture_or_image_is_refused(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert f"{option}: vax is none of" in complaint(capsys, "--key", "none", option, "vax")


def test_a_tag_of_another_version_is_refused(checkout: Path) -> None:
    git(checkout, "tag", f"v{NEXT}")
    with pytest.raises(BpfsvcError, match=f"the tag v{NEXT} is not that of version {__version__}"):
        read_release(checkout)


def test_a_tag_that_differs_from_the_changelog_is_refused(checkout: Path) -> None:
    tagged(checkout, NEXT)
    path = checkout / "CHANGELOG.md"
    path.write_text(path.read_text().replace(f"[{NEXT}]", "[7.0.0]"))
    with pytest.raises(BpfsvcError, match=rf"v{NEXT}, and the newest version of .* is 7\.0\.0"):
        notes(path, read_release_of(checkout))


def test_a_tag_with_entries_that_are_still_unreleased_is_refused(checkout: Path) -> None:
    tagged(checkout, NEXT)
    path = checkout / "CHANGELOG.md"
    path.write_text(path.read_text().replace("[Unreleased]\n", "[Unreleased]\n\n- late\n", 1))
    with pytest.raises(BpfsvcError, match="entries below"):
        notes(path, read_release_of(checkout))


def read_release_of(checkout: Path) -> Release:
    """Return the release of a checkout whose changes are now committed, under the same tag."""
    git(checkout, "commit", "-qam", "more")
    git(checkout, "tag", "-f", f"v{NEXT}")
    return read_release(checkout)


# -- versions and notes --


def test_a_commit_without_a_tag_is_a_build_after_its_version(checkout: Path) -> None:
    release = read_release(checkout)
    commit = git(checkout, "rev-parse", "HEAD")
    assert release.version == f"{__version__}+g{commit[:9]}"
    assert release.image_tag == f"{__version__}-g{commit[:9]}"
    assert release.seconds == int(git(checkout, "log", "-1", "--format=%ct"))
    assert not release.is_tagged


def test_a_new_version_is_written_wherever_the_old_was(checkout: Path) -> None:
    changed = write_version(checkout, NEXT, TODAY)
    assert {"CHANGELOG.md", "Dockerfile", "bpfsvc/__init__.py"} <= set(changed)
    words = re.compile(rf"(bpfsvc(-compiler)?:|ersion:? ?=? ?\"?){re.escape(__version__)}\b")
    for name in ("deploy", "docs", "Dockerfile", "bpfsvc/__init__.py"):
        for path in (
            (checkout / name).rglob("*") if (checkout / name).is_dir() else [checkout / name]
        ):
            if path.is_file():
                assert not words.search(path.read_text(errors="replace")), path


def test_a_tagged_commit_is_its_version_and_its_notes_are_its_section(checkout: Path) -> None:
    unreleased = read_sections((checkout / "CHANGELOG.md").read_text())["Unreleased"]
    tagged(checkout, NEXT)
    release = read_release(checkout)
    assert (release.version, release.image_tag, release.is_tagged) == (NEXT, NEXT, True)
    text = notes(checkout / "CHANGELOG.md", release)
    assert text == f"# bpfsvc {NEXT}\n\n{unreleased.strip()}\n"
    assert "## [" not in text


@pytest.mark.parametrize("version", ["1", "v1.2.3", "1.2.3 ", __version__])
def test_what_cannot_be_the_next_version_is_refused(checkout: Path, version: str) -> None:
    with pytest.raises(BpfsvcError, match="version"):
        write_version(checkout, version, TODAY)
    assert git(checkout, "status", "--porcelain") == ""


def test_the_changelog_has_a_dated_section_for_this_version() -> None:
    assert __version__ in read_sections((CHECKOUT / "CHANGELOG.md").read_text())
    with pytest.raises(BpfsvcError, match=r"1\.2\.3 has no date"):
        read_sections("## [1.2.3]\n\n- text\n")


# -- files --


def test_the_bytes_of_an_archive_depend_on_the_files_alone(tmp_path: Path) -> None:
    """Not on their dates, their owners, their order, or rights of others."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        for file in ("b", "a") if name == "first" else ("a", "b"):
            (tmp_path / name / file).write_text(file)
            (tmp_path / name / file).chmod(0o744 if name == "first" else 0o755)
        write_tar(tmp_path / f"{name}.tar.gz", below(tmp_path / name, "x/"), seconds=len("date"))
    first, second = ((tmp_path / f"{name}.tar.gz").read_bytes() for name in ("first", "second"))
    assert first == second
    (tmp_path / "second/b").write_text("c")
    write_tar(tmp_path / "second.tar.gz", below(tmp_path / "second", "x/"), seconds=len("date"))
    assert (tmp_path / "second.tar.gz").read_bytes() != first


def test_the_chart_is_packed_with_the_files_that_it_links_to(tmp_path: Path) -> None:
    """Under the version of the build, and without what .helmignore leaves out."""
    chart = tmp_path / "deploy/chart"
    chart.mkdir(parents=True)
    (tmp_path / "deploy/base").mkdir()
    (tmp_path / "deploy/base/a.yaml").write_text("a: 1\n")
    (chart / "manifests").symlink_to("../base")
    (chart / ".helmignore").write_text("# words\nschema.py\n")
    (chart / "schema.py").touch()
    (chart / "Chart.yaml").write_text(f"name: bpfsvc\nversion: {NEXT}\nappVersion: {NEXT}\n")
    pack_chart(tmp_path, Release(f"{NEXT}+gabc", "0" * 40, 0), tmp_path)
    shutil.unpack_archive(tmp_path / f"bpfsvc-{NEXT}+gabc.tgz", tmp_path / "unpacked", "gztar")
    unpacked = tmp_path / "unpacked/bpfsvc"
    assert (unpacked / "manifests/a.yaml").read_text() == "a: 1\n"
    assert not (unpacked / "manifests").is_symlink()
    assert not (unpacked / "schema.py").exists()
    told = yaml.safe_load((unpacked / "Chart.yaml").read_text())
    assert (told["version"], told["appVersion"]) == (f"{NEXT}+gabc", f"{NEXT}-gabc")


def test_a_chart_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "deploy/chart").mkdir(parents=True)
    text = "name: bpfsvc\nversion: 0.0.1\nappVersion: 0.0.1\n"
    (tmp_path / "deploy/chart/Chart.yaml").write_text(text)
    with pytest.raises(BpfsvcError, match=rf"another appVersion and version than {NEXT}"):
        pack_chart(tmp_path, Release(NEXT, "0" * 40, 0), tmp_path)


def test_the_manifest_for_krew_names_the_archive_and_its_hash() -> None:
    release = Release(NEXT, "0" * 40, 0)
    spec = krew_manifest(release, "https://example.org/plugin.tar.gz", "f" * 64)["spec"]
    (platform,) = spec["platforms"]
    assert spec["version"] == f"v{NEXT}"
    assert (platform["uri"], platform["sha256"]) == ("https://example.org/plugin.tar.gz", "f" * 64)
    assert {file["from"] for file in platform["files"]} == {PROGRAM, "LICENSE"}


# -- how users verify --


@pytest.fixture
def signed(keys: Keys, tmp_path: Path) -> Path:
    """A directory with a signed file."""
    path = tmp_path / "release"
    path.mkdir()
    (path / "bpfsvc.tar").write_bytes(b"content")
    Key(keys.key, keys.signers).sign(write_sums(path))
    return path


def verified(directory: Path, signers: Path) -> subprocess.CompletedProcess[str]:
    """Run the commands of RELEASING.md, as a user does."""
    text = (CHECKOUT / "RELEASING.md").read_text()
    (block,) = re.findall(
        r"^<!-- verify -->\n\n```console\n(.*?)```", text, re.MULTILINE | re.DOTALL
    )
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    script = "\n".join(lines).replace("NAME", "ada@example.org").replace("SIGNERS", str(signers))
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_documented_commands_verify_a_release_offline(signed: Path, keys: Keys) -> None:
    """In the sandbox of the tests, which has no network."""
    done = verified(signed, keys.signers)
    assert done.returncode == 0, done.stderr
    assert 'Good "bpfsvc-release" signature for ada@example.org' in done.stdout
    assert "bpfsvc.tar: OK" in done.stdout


@pytest.mark.parametrize("name", ["bpfsvc.tar", SUMS, SIGNATURE])
def test_a_changed_byte_is_refused(signed: Path, keys: Keys, name: str) -> None:
    content = bytearray((signed / name).read_bytes())
    content[len(content) // 2] ^= 1
    (signed / name).write_bytes(content)
    assert verified(signed, keys.signers).returncode != 0


def test_the_signature_of_a_stranger_is_refused(signed: Path, keys: Keys, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    Key(other, trust(tmp_path / "strangers", other)).sign(signed / SUMS)
    assert verified(signed, keys.signers).returncode != 0


def test_a_key_signs_the_same_bytes_in_the_same_way(signed: Path, keys: Keys) -> None:
    first = (signed / SIGNATURE).read_bytes()
    Key(keys.key, keys.signers).sign(signed / SUMS)
    assert (signed / SIGNATURE).read_bytes() == first


# -- whole releases --


@pytest.mark.slow
def test_two_runs_make_the_same_bytes(checkout: Path, tmp_path: Path) -> None:
    """All but the images, whose packages come from the network: ``make release-test`` has them."""
    tagged(checkout, NEXT)
    options = ("--checkout", str(checkout), "--images", "none")
    assert differences(tmp_path, *options) == []
    made = {path.name for path in (tmp_path / "first").iterdir()}
    assert {f"bpfsvc-{NEXT}-py3-none-any.whl", f"bpfsvc-{NEXT}.tar.gz", NOTES, SUMS} <= made
    assert SIGNATURE not in made
    manifest = yaml.safe_load((tmp_path / "first" / KREW).read_text())
    (platform,) = manifest["spec"]["platforms"]
    line = f"{platform['sha256']}  {platform['uri']}\n"
    assert line in (tmp_path / "first" / SUMS).read_text()
    helm = ["helm", "template", "bpfsvc", str(tmp_path / f"first/bpfsvc-{NEXT}.tgz")]
    done = run(*helm, f"--values={checkout / CHART / 'values/kubeadm.yaml'}")
    assert done.returncode == 0, done.stderr
    objects = [document for document in yaml.safe_load_all(done.stdout) if document]
    spec = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert {container["image"] for container in spec["containers"]} == {f"bpfsvc:{NEXT}"}


@pytest.mark.slow
def test_wheel_and_plugin_report_the_version_of_the_build(checkout: Path, tmp_path: Path) -> None:
    options = ["--key", "none", "--images", "none", "--checkout", str(checkout)]
    assert main([*options, "--target", str(tmp_path / "made")]) == 0
    (wheel,) = (tmp_path / "made").glob("*.whl")
    shutil.unpack_archive(wheel, tmp_path / "installed", "zip")
    version = f'__version__ = "{read_release(checkout).version}"'
    assert version in (tmp_path / "installed/bpfsvc/__init__.py").read_text()
    (plugin,) = (tmp_path / "made").glob(f"{PROGRAM}-*.tar.gz")
    shutil.unpack_archive(plugin, tmp_path / "plugin", "gztar")
    assert version in (tmp_path / "plugin" / PROGRAM).read_text()
