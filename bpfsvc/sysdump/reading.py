"""What a sysdump answers: the findings of ``doctor``, and the kernel that ``explain`` asks."""

from __future__ import annotations

import json
from functools import partial
from typing import NamedTuple

from bpfsvc.base.errors import KernelError, UsageError
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.doctor.examination import check
from bpfsvc.doctor.facts import Facts
from bpfsvc.doctor.finding import Finding, note
from bpfsvc.explain.live_kernel import LiveKernel
from bpfsvc.explain.recorded_decision import RecordedDecision
from bpfsvc.inspect.entries import EntryReader
from bpfsvc.model.plain import from_plain, shape_of
from bpfsvc.sysdump.archive import Archive, damage
from bpfsvc.sysdump.recorded_maps import RecordedReader
from bpfsvc.sysdump.recorded_objects import RecordedAnswers


class RecordedNode(NamedTuple):
    """The kernel and the agent of a node, as they were."""

    kernel: LiveKernel
    agent: RecordedAnswers


def recorded_findings(archive: Archive) -> list[Finding]:
    """Return the findings that follow from the recorded facts.

    Facts of another version may not mean the same: then those that were found then.
    """
    if archive.manifest.get("facts_shape") != shape_of(Facts):
        version = archive.manifest.get("version")
        text = f"its facts are of bpfsvc {version}: these are the findings of that version"
        with damage(archive.path):
            findings = from_plain(archive.json("doctor/findings.json"), list[Finding])
        return [note("sysdump", text), *findings]
    settings, facts = archive.json("doctor/settings.json"), archive.json("doctor/facts.json")
    with damage(archive.path):
        return [*from_plain(settings, list[Finding]), *check(from_plain(facts, Facts))]


def recorded_node(archive: Archive) -> RecordedNode:
    """Return what answers questions about packets. Raises :class:`UsageError`."""
    layout, entries = archive.text("maps/layout.json"), archive.json_lines("maps/entries.jsonl")
    objects = archive.json_lines("objects.jsonl") if archive.has("objects.jsonl") else ()
    failures = archive.json("failures.json") if archive.has("failures.json") else None
    interfaces: dict[str, int] = archive.json("maps/interfaces.json")
    with damage(archive.path):
        reader = RecordedReader(Layout.from_json(layout), entries)
        agent = RecordedAnswers(objects, failures, archive.node)

    def index(name: str) -> int:
        if name not in interfaces:
            names = ", ".join(interfaces)
            raise UsageError(
                f"there was no interface {name!r} on {archive.node}", f"its interfaces: {names}"
            )
        return interfaces[name]

    replaced = bool(archive.manifest.get("anonymized"))
    decider = partial(RecordedDecision, reader, replaced=replaced)
    read = EntryReader(reader).read
    try:
        kernel = LiveKernel(reader, read, agent, decider, index, "when the sysdump was made")
    except (KernelError, KeyError) as error:
        raise UsageError(
            f"{archive.path} is of another version of bpfsvc ({archive.manifest.get('version')}):"
            f" its maps cannot be read ({json.dumps(str(error))})",
            "read it with that version",
        ) from error
    return RecordedNode(kernel, agent)
