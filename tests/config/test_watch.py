"""A configuration file that changes while an agent runs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bpfsvc.config.documents import digest
from bpfsvc.config.loading import load
from bpfsvc.config.watch import ConfigChanged, ConfigWatch, Reload
from bpfsvc.devtools.lab import patience
from tests.config.settings import KUBEADM, given

NEW = KUBEADM.replace("10.244.0.0/16", "10.245.0.0/16")


class Seen(list[bytes]):
    """A watch on a file, and the changes it reported."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.watch = ConfigWatch(path, digest(path.read_bytes()), self.append)

    def after(self, reads: int) -> list[str]:
        """Read the file some times; return the changes reported since the last call."""
        for _ in range(reads):
            self.watch.read_once()
        reported = [content.decode() for content in self]
        self.clear()
        return reported


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "config.conf"
    path.write_text("old")
    return path


def test_a_file_that_stays_is_not_reported(path: Path) -> None:
    seen = Seen(path)
    assert seen.after(3) == []
    path.write_text("old")
    assert seen.after(3) == []


def test_a_write_is_reported_once_when_it_has_been_read_twice(path: Path) -> None:
    seen = Seen(path)
    path.write_text("ne")
    assert seen.after(1) == []
    path.write_text("new")
    assert seen.after(1) == []
    assert seen.after(1) == ["new"]
    assert seen.after(3) == []


def test_a_rename_is_reported(path: Path) -> None:
    seen = Seen(path)
    other = path.with_name("other")
    other.write_text("new")
    other.rename(path)
    assert seen.after(2) == ["new"]


def test_a_change_that_is_undone_meanwhile_is_not_reported(path: Path) -> None:
    seen = Seen(path)
    path.write_text("new")
    assert seen.after(1) == []
    path.write_text("old")
    assert seen.after(3) == []


def test_a_file_that_gets_its_old_content_back_is_reported(path: Path) -> None:
    seen = Seen(path)
    path.write_text("new")
    assert seen.after(2) == ["new"]
    path.write_text("old")
    assert seen.after(2) == ["old"]


def test_the_swap_of_a_config_map_is_reported(tmp_path: Path) -> None:
    """The file is a link through ``..data``, and that is what changes."""
    for version in ("first", "second"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "config.conf").write_text(version)
    (tmp_path / "..data").symlink_to("first")
    path = tmp_path / "config.conf"
    path.symlink_to("..data/config.conf")
    seen = Seen(path)
    (tmp_path / "..data_tmp").symlink_to("second")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert seen.after(2) == ["second"]


def test_a_file_that_vanishes_is_logged_once_and_changes_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen(path)
    path.unlink()
    assert seen.after(3) == []
    assert [record.message for record in caplog.records] == [
        f"cannot read {path}: No such file or directory; the settings read before stay in effect"
    ]
    path.write_text("new")
    assert seen.after(2) == ["new"]


def test_the_watch_reads_the_file_in_its_own_thread(path: Path) -> None:
    reported: list[bytes] = []
    watch = ConfigWatch(path, digest(path.read_bytes()), reported.append, seconds=0.005)
    watch.start()
    try:
        path.write_text("new")
        patience.wait(lambda: bool(reported), "a change")
        assert reported == [b"new"]
    finally:
        watch.stop()


class Agent:
    """Counts how often it is ended."""

    def __init__(self, path: Path) -> None:
        path.write_text(KUBEADM)
        self.ended = 0
        given_flags = given("--config", str(path))
        self.reload = Reload(given_flags, load(given_flags), self.end)

    def end(self) -> None:
        self.ended += 1


@pytest.fixture
def agent(path: Path) -> Agent:
    return Agent(path)


def test_other_settings_end_the_agent_with_a_clear_line(agent: Agent, path: Path) -> None:
    agent.reload(NEW.encode())
    assert agent.ended == 1
    with pytest.raises(ConfigChanged) as error:
        agent.reload.check()
    assert error.value.exit_code == 1
    assert error.value.message == (
        f"{path} has changed, so this agent ended; what it programmed stays"
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (KUBEADM.replace("10.244.0.0/16", "pods"), "clusterCIDR: must be a CIDR"),
        (KUBEADM[:200] + "[", ":1"),
        ("", "no settings in it"),
    ],
    ids=["a field that is wrong", "half a file", "nothing"],
)
def test_settings_that_cannot_be_used_change_nothing(
    agent: Agent, text: str, named: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent.reload(text.encode())
    assert agent.ended == 0
    agent.reload.check()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert named in record.message
    assert record.message.endswith("; the settings read before stay in effect")


def test_a_comment_changes_nothing(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        agent.reload(b"# for kubeadm\n" + KUBEADM.encode())
    assert agent.ended == 0
    agent.reload.check()
    assert caplog.records[0].message.endswith("has changed, its settings have not")
