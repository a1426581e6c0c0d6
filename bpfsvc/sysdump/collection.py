"""Collect the parts of a sysdump, the most useful first: the last ones are cut if there is no room.

A part that fails is noted in the manifest, and the others follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property, partial
from typing import IO, Any, NamedTuple

from bpfsvc.base import http_client
from bpfsvc.base.errors import BpfsvcError
from bpfsvc.config.config import Config
from bpfsvc.config.loading import Documents
from bpfsvc.datapath.maps.pins import Pinned, PinRoot
from bpfsvc.datapath.maps.registry import Role, map_info
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.doctor.examination import about_settings, check, collect, plan_of
from bpfsvc.doctor.facts import Facts
from bpfsvc.explain.agent_answers import AgentAnswers
from bpfsvc.inspect.maps.dump import READABLE, dump
from bpfsvc.inspect.node_health import NodeFacts, as_object, lines
from bpfsvc.inspect.reader import PinnedReader, Reader, open_pinned
from bpfsvc.inspect.service_names import service_keys
from bpfsvc.inspect.status import collect_status
from bpfsvc.inspect.tables import write_tables
from bpfsvc.model.answers import AgentConfiguration, ChangeRecord, encode
from bpfsvc.model.failures import Failure
from bpfsvc.model.plain import shape_of, to_plain
from bpfsvc.sysdump import host, names
from bpfsvc.sysdump.anonymizer import Anonymizer
from bpfsvc.sysdump.archive import ArchiveWriter, PartResult
from bpfsvc.sysdump.recorded_maps import map_lines
from bpfsvc.sysdump.recorded_objects import names_in, service_lines
from bpfsvc.sysdump.secrets import without_secrets

_METRICS_SECONDS = 10.0

_TRAFFIC = frozenset({"connections", "new_connections", "affinities", "fast_flows", "direct_flows"})
"""Maps with entries by client or connection: they may be large, and come last."""

_SKIPPED = frozenset({"layout", "destinations", "crc32c_steps", "steps"})


class Subject(NamedTuple):
    """The node to record. ``agent``: what the running agent says of its configuration, if any."""

    root: PinRoot
    node_name: str
    documents: Documents
    config: Config
    agent: AgentConfiguration | None


def write_sysdump(
    stream: IO[bytes], subject: Subject, max_bytes: int, *, anonymous: bool = False
) -> list[PartResult]:
    """Write the archive; return what became of each part."""
    anonymizer = Anonymizer([subject.node_name]) if anonymous else None
    node = anonymizer.text(subject.node_name) if anonymizer else subject.node_name
    collection = _Collection(ArchiveWriter(stream, node, max_bytes), subject, anonymizer)
    collection.add_all()
    writer = collection.writer
    writer.finish(anonymized=anonymous, facts_shape=shape_of(Facts))
    return writer.results


class _Collection:
    def __init__(
        self, writer: ArchiveWriter, subject: Subject, anonymizer: Anonymizer | None
    ) -> None:
        self.writer = writer
        self._subject = subject
        self._anonymizer = anonymizer
        self._agent = AgentAnswers(subject.root.path)

    def add_all(self) -> None:
        """Add all parts."""
        try:
            with open_pinned(self._subject.root) as pinned:
                self._add_parts(pinned)
        except BpfsvcError as error:
            self.writer.failed("maps", error.message)
            self._add_parts(None)

    def _add_parts(self, pinned: Pinned | None) -> None:
        reader = PinnedReader(pinned) if pinned else None
        objects = self._objects(reader) if reader else []
        if self._anonymizer:
            self._learn_names(reader, objects)
        self._json("configuration.json", self._configuration)
        self._text("configuration.yaml", self._file)
        self._doctor()
        self._json("status.json", lambda: as_object(self._status))
        self._text("status.txt", lambda: "\n".join(lines(self._status)) + "\n")
        if reader:
            self._maps(reader, objects)
        self._answers()
        self._text("metrics.txt", self._metrics)
        self._text("logs/agent.log", lambda: host.agents_log(self._subject.root))
        self._text("kernel/kernel.txt", lambda: host.kernel_text(self._subject.root))
        for name, command in host.COMMANDS.items():
            self._text(f"{name}.txt", partial(host.output_of, command))
        if reader:
            self._text("maps/dump.txt", lambda: "".join(write_tables(dump(reader))))
            self._records("maps/traffic.jsonl", self._map_lines(reader, traffic=True))

    # -- parts ---------------------------------------------------------------------------------

    def _configuration(self) -> Any:
        subject, agent = self._subject, self._subject.agent
        return {
            "agent": agent and to_plain(agent),
            "node_name": subject.node_name,
            "documents": subject.documents.plain(),
        }

    def _file(self) -> str:
        """Return the file of ``--config``, as it is now."""
        arguments = self._subject.agent.arguments if self._subject.agent else []
        for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
            if word.startswith("--config="):
                return host.file_text(word.partition("=")[2])
            if word == "--config":
                return host.file_text(following)
        raise BpfsvcError("no agent with --config runs here")

    def _doctor(self) -> None:
        try:
            facts = collect(plan_of(self._subject.documents))
        except Exception as error:
            self.writer.failed("doctor/facts.json", _line(error))
            return
        settings = [*about_settings(self._subject.documents, self._subject.agent)]
        self._json("doctor/facts.json", lambda: to_plain(facts))
        self._json("doctor/settings.json", lambda: to_plain(settings))
        self._json("doctor/findings.json", lambda: to_plain([*settings, *check(facts)]))

    @cached_property
    def _status(self) -> NodeFacts:
        return collect_status(self._subject.root, self._subject.config.healthz)

    def _maps(self, reader: Reader, objects: list[str]) -> None:
        self._json("maps/layout.json", lambda: json.loads(reader.layout.to_json()), as_is=True)
        self._json("maps/interfaces.json", _interfaces)
        self._records("maps/entries.jsonl", self._map_lines(reader, traffic=False))
        if objects:
            self._records("objects.jsonl", iter(objects))

    def _map_lines(self, reader: Reader, *, traffic: bool) -> Iterator[str]:
        order = {"services": 0, "frontends": 1, "backends": 2, "settings": 3, "node_addresses": 4}
        for name in sorted(reader.layout.maps, key=lambda name: (order.get(name, 9), name)):
            layout = reader.layout.maps[name]
            is_shown = map_info(name).role is not Role.PER_BUILD or name in _TRAFFIC
            if name in _SKIPPED or layout.type not in READABLE or not is_shown:
                continue
            if (name in _TRAFFIC) is traffic:
                yield from map_lines(reader, name)

    def _objects(self, reader: Reader) -> list[str]:
        """Return what the agent knows of the Services in the kernel, a line each."""
        try:
            return [*service_lines(self._agent, service_keys(reader))]
        except Exception as error:
            self.writer.failed("objects.jsonl", _line(error))
            return []

    def _answers(self) -> None:
        self._json("failures.json", lambda: to_plain(self._agent.failures()))
        self._records("history.jsonl", _encoded(lambda: self._changes))
        self._records("failed.jsonl", _encoded(lambda: self._failed))

    @cached_property
    def _changes(self) -> list[ChangeRecord]:
        return self._agent.history("", "")

    @cached_property
    def _failed(self) -> list[Failure]:
        return self._agent.failed("", "")

    def _metrics(self) -> str:
        address = self._subject.config.metrics
        if address is None:
            raise BpfsvcError("no metrics are served")
        with http_client.connect(address, _METRICS_SECONDS) as client:
            return http_client.get(client, "/metrics").body.decode(errors="replace")

    def _learn_names(self, reader: Reader | None, objects: list[str]) -> None:
        assert self._anonymizer
        self._anonymizer.add_names(names_in(objects))
        if reader:
            self._anonymizer.add_names(name for pair in service_keys(reader) for name in pair)
        with suppress(BpfsvcError):
            self._anonymizer.add_names(names.in_changes(self._changes))
            self._anonymizer.add_names(names.in_failures(self._failed))

    # -- forms ---------------------------------------------------------------------------------

    def _json(self, name: str, make: Callable[[], Any], *, as_is: bool = False) -> None:
        """Add a JSON value as a whole. ``as_is``: it names no object."""

        def whole() -> Iterator[str]:
            yield json.dumps(make() if as_is else self._cleaned(make()), indent=1) + "\n"

        self._add(name, whole, whole=True)

    def _records(self, name: str, records: Iterable[str]) -> None:
        """Add JSON values, one in each line. They are of forms that have no field for a secret."""

        def replaced() -> Iterator[str]:
            for line in records:
                if self._anonymizer:
                    yield json.dumps(self._anonymizer.value(json.loads(line))) + "\n"
                else:
                    yield line

        self._add(name, replaced)

    def _text(self, name: str, make: Callable[[], str]) -> None:
        """Add a text."""

        def cleaned() -> Iterator[str]:
            for line in without_secrets(make()).splitlines(keepends=True):
                yield self._anonymizer.text(line) if self._anonymizer else line

        self._add(name, cleaned)

    def _cleaned(self, value: Any) -> Any:
        value = _without_secrets(value)
        return self._anonymizer.value(value) if self._anonymizer else value

    def _add(self, name: str, make: Callable[[], Iterable[str]], *, whole: bool = False) -> None:
        try:
            self.writer.add(name, make(), whole=whole)
        except Exception as error:
            self.writer.failed(name, _line(error))


def _line(error: Exception) -> str:
    """Return an error as one line; the name of its class, if it is not one for people."""
    if isinstance(error, BpfsvcError):
        return error.message
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"{type(error).__name__}: {error}"


def _encoded(ask: Callable[[], Iterable[Any]]) -> Iterator[str]:
    for record in ask():
        yield encode(record).decode() + "\n"


def _interfaces() -> dict[str, int]:
    return {device.name: device.index for device in read_network().devices}


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, list):
        return [_without_secrets(part) for part in value]
    if isinstance(value, dict):
        return {key: _without_secrets(part) for key, part in value.items()}
    return value
