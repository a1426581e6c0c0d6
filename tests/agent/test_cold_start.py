"""A start without the API server: what is served, and what is logged and reported."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bpfsvc.agent.objects.cold_start import ColdStart
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.http.healthz import Health
from bpfsvc.kube.snapshot import SnapshotFile
from bpfsvc.kube.source import Batch, ParseError
from bpfsvc.metrics.observer import Observer
from bpfsvc.model import ObjectKey, read_object
from bpfsvc.services.cache import Cache
from tests.services.objects import service

WEB = ("default", "web")
COMPLETE = Batch((), (), True, ())


class Start:
    """A cold start of an agent whose file may hold a Service."""

    def __init__(self, path: Path) -> None:
        self.cache = Cache("here")
        self.health = Health()
        self.cold_start = ColdStart(SnapshotFile(path, "here"), self.cache, self.health, Observer())

    @property
    def note(self) -> Any:
        notes: Any = self.health.healthz()[1].get("notes", {})
        return notes.get("source")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "snapshot"


@pytest.fixture
def saved(file: Path) -> str:
    """Save a Service; return when, as it is shown."""
    writer = SnapshotFile(file, "here", settle=0)
    writer.changed()
    writer.save([service()])
    wait(lambda: file.exists(), "the file")
    writer.finish([service()])
    snapshot = SnapshotFile(file, "here").load()
    assert snapshot
    return datetime.fromtimestamp(snapshot.saved, UTC).isoformat(timespec="seconds")


def test_an_empty_kernel_gets_the_services_of_the_snapshot(
    file: Path, saved: str, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(file)
    assert start.cold_start.begin(0)
    assert start.cache.service_keys() == [WEB]
    text = f"the API server has not answered since the start: serving the snapshot saved at {saved}"
    assert caplog.messages == [text]
    assert start.note == text


@pytest.mark.parametrize(
    ("held", "text"),
    [(1, "1 Service stays as an earlier agent left it"), (7, "7 Services stay as")],
)
@pytest.mark.usefixtures("saved")
def test_entries_of_an_earlier_agent_are_preferred_to_the_snapshot(
    file: Path, held: int, text: str
) -> None:
    start = Start(file)
    assert not start.cold_start.begin(held), "the snapshot is not to be programmed"
    assert start.cache.service_keys() == [WEB], "but it is known"
    assert text in start.note


@pytest.mark.parametrize(
    ("held", "text"),
    [
        (0, "and there is no snapshot: nothing is served"),
        (2, "and there is no snapshot: 2 Services stay as an earlier agent left them"),
    ],
)
def test_without_a_snapshot_nothing_is_known(file: Path, held: int, text: str) -> None:
    start = Start(file)
    assert not start.cold_start.begin(held)
    assert start.cache.service_keys() == []
    assert start.note.endswith(text)


@pytest.mark.usefixtures("saved")
def test_the_answer_of_the_source_ends_the_cold_start(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start = Start(file)
    start.cold_start.begin(0)
    caplog.clear()
    with caplog.at_level(logging.INFO):
        start.cold_start.end(COMPLETE._replace(complete=False))
        assert start.note is not None
        start.cold_start.end(COMPLETE)
        start.cold_start.end(COMPLETE)
    assert caplog.messages == ["initial sync complete"]
    assert start.note is None


def broken(kind: str = "Service", namespace: str = "default") -> Batch:
    """Return a batch with an object ``web`` that cannot be read."""
    key = ObjectKey(kind, namespace, "web")
    return COMPLETE._replace(problems=(ParseError("web", 0, "no port", key),))


@pytest.mark.usefixtures("saved")
def test_an_object_that_cannot_be_read_is_recalled_with_the_first_batch(file: Path) -> None:
    """Later ones need not: what the agent has known since is newer."""
    start = Start(file)
    assert start.cold_start.end(broken()._replace(complete=False)) == []
    assert start.cold_start.end(broken()) == [service()]
    assert start.cold_start.end(broken()) == []


@pytest.mark.parametrize("first", [COMPLETE, broken(namespace="shop"), broken("EndpointSlice")])
@pytest.mark.usefixtures("saved")
def test_no_other_object_is_recalled(file: Path, first: Batch) -> None:
    start = Start(file)
    assert start.cold_start.end(first) == []
    assert start.cold_start.end(broken()) == []


def test_parts_of_classic_endpoints_are_recalled_by_the_name_of_the_whole(file: Path) -> None:
    whole = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "web"},
        "subsets": [{"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}],
    }
    parts = list(read_object(whole))
    writer = SnapshotFile(file, "here", settle=0)
    writer.changed()
    writer.finish(parts)
    assert len(parts) == 2
    assert Start(file).cold_start.end(broken("Endpoints")) == parts


def test_a_source_that_answers_in_time_causes_no_log_line(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        Start(file).cold_start.end(COMPLETE)
    assert caplog.messages == []
