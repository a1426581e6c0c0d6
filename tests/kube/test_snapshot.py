"""The snapshot of objects that a boot without the API server starts with."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from bpfsvc.base.address import pack, pack_network
from bpfsvc.kube.snapshot import SnapshotFile
from bpfsvc.model import EndpointSlice, ModelObject, Node, Pod, ServiceCIDR
from tests.services.objects import endpoint_slice, service

OBJECTS: list[ModelObject] = [
    service(),
    service("other", labels={"service.kubernetes.io/service-proxy-name": ""}),
    endpoint_slice("10.0.0.1 here", "10.0.0.2 there"),
    Node("here", "zone-a", pod_cidrs=(pack_network("10.244.1.0/24"),)),
    ServiceCIDR("kubernetes", (pack_network("10.96.0.0/12"),)),
    Pod("default", "meshed", "node-1", (pack("10.244.1.9"),), True),
]


def saved(path: Path, objects: list[ModelObject]) -> SnapshotFile:
    """Return the file after it was written to its end."""
    made = SnapshotFile(path, "here", settle=0)
    made.changed()
    assert made.is_due
    made.save(objects)
    made.wait()
    return made


def test_what_was_saved_is_read_again(tmp_path: Path) -> None:
    """Objects of every kind, in any number of frames."""
    many = OBJECTS + [service(f"web-{number}") for number in range(200)]
    snapshot = saved(tmp_path / "new" / "file", many).load()
    assert snapshot is not None
    assert set(snapshot.objects) == set(many)


def test_equal_endpoints_are_one_value_again(tmp_path: Path) -> None:
    """Forty thousand of them must not take more room after a boot than before."""
    slices = [endpoint_slice("10.0.0.1 here", name=f"web-{number}") for number in range(3)]
    snapshot = saved(tmp_path / "file", list(slices)).load()
    assert snapshot is not None
    traits = [item.traits[0] for item in snapshot.objects if isinstance(item, EndpointSlice)]
    assert all(item is traits[0] for item in traits)


def test_other_users_cannot_read_it(tmp_path: Path) -> None:
    saved(tmp_path / "file", OBJECTS)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_without_a_file_there_is_no_snapshot(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert SnapshotFile(tmp_path / "file", "here").load() is None
    assert not caplog.records


DAMAGE = {
    "cut": (lambda data: data[:-5], "damaged"),
    "a bit is turned": (
        lambda data: data[:-50] + bytes([data[-50] ^ 1]) + data[-49:],
        "damaged",
    ),
    "it is empty": (lambda _: b"", "cannot be used"),
    "it is something else": (lambda _: b"[]\n", "cannot be used"),
    "another version wrote it": (
        lambda data: data.replace(b"Service:", b"Service:x", 1),
        "another version",
    ),
    "it is of another node": (
        lambda data: data.replace(b'"node": "here"', b'"node": "away"', 1),
        "node away",
    ),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_file_that_cannot_be_trusted_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: object, words: str
) -> None:
    """The reason is logged, and the agent waits for the API server as if there were none."""
    path = tmp_path / "file"
    made = saved(path, OBJECTS)
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert made.load() is None
    assert words in caplog.text


@pytest.mark.parametrize("which", ["the file", "its directory"])
def test_what_another_user_may_have_written_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    """The checksum is no secret: whoever can write the file could name the endpoints of a boot."""
    path = tmp_path / "state" / "file"
    made = saved(path, OBJECTS)
    assert made.load() is not None
    (path if which == "the file" else path.parent).chmod(0o777)
    assert made.load() is None
    assert "written by others" in caplog.text or "others may write to" in caplog.text
    assert len(caplog.records) == 1


def test_a_path_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").mkdir()
    with caplog.at_level(logging.WARNING):
        made = saved(tmp_path / "file", OBJECTS)
        made.save(OBJECTS)
        made.wait()
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text


def test_many_changes_are_written_once(tmp_path: Path) -> None:
    """Not with every change: a disk is slow, and the file need not be the newest."""
    made = SnapshotFile(tmp_path / "file", "here", settle=0, spacing=3600)
    made.changed()
    made.save(OBJECTS)
    made.wait()
    made.changed()
    assert not made.is_due


def test_at_the_end_what_is_not_yet_written_is_written_at_once(tmp_path: Path) -> None:
    """Nothing is written when nothing has changed."""
    made = SnapshotFile(tmp_path / "file", "here", settle=3600)
    made.finish(OBJECTS)
    assert made.load() is None
    made.changed()
    made.finish(OBJECTS)
    snapshot = made.load()
    assert snapshot is not None
    assert set(snapshot.objects) == set(OBJECTS)
