"""Manifests before they are applied: what bpfsvc would refuse, leave out, or ignore.

Annotations are held against the tables that read them. Services are planned as an agent plans them,
so faults are those that it would report. A cluster IP that is not assigned yet is replaced by an
address of a network that no cluster has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from ipaddress import IPv4Network
from typing import Any, NamedTuple

from bpfsvc.model import ModelObject, ObjectError, ObjectKey, path_text, read_object
from bpfsvc.model.reading import OF_PODS, OF_SLICES, PREFIX
from bpfsvc.services.cache import Cache
from bpfsvc.services.contradictions import Path, contradictions
from bpfsvc.services.faults import BAD_SCHEDULER, FaultReport
from bpfsvc.services.planner import Planner
from bpfsvc.services.rules.context import ServiceConfig
from bpfsvc.services.scheduling.annotations import ANNOTATIONS
from bpfsvc.services.scheduling.weights import parse_weight

_MAX_BACKENDS = 1 << 20

_UNUSED = IPv4Network("198.18.0.0/15")
"""A network that no cluster has: it is for measurements (RFC 2544)."""


class Located(NamedTuple):
    """An object of a file as it is written; ``line(path)``: where a field is."""

    file: str
    value: object
    line: Callable[[Path], int]


class Finding(NamedTuple):
    """What is wrong with an object, and where."""

    file: str
    line: int
    object: str
    text: str


def validate(objects: Iterable[Located]) -> list[Finding]:
    """Return what is wrong, in the order of files and lines."""
    findings: list[Finding] = []
    origins: dict[ObjectKey, Located] = {}
    values: list[ModelObject] = []
    for number, located in enumerate(objects):
        if not isinstance(located.value, Mapping):
            text = "expected an object with apiVersion, kind and metadata"
            findings.append(Finding(located.file, located.line(()), "-", text))
            continue
        try:
            read = read_object(_with_cluster_ip(located.value, number))
        except ObjectError as error:
            findings.append(_finding(located, error.path, error.reason))
            continue
        faults = [*_annotation_faults(located.value)]
        if located.value["kind"] == "Service":
            faults += contradictions(located.value)
        for value in read:
            if value.key in origins:
                faults.append((("metadata", "name"), f"is in {origins[value.key].file}, too"))
            origins[value.key] = located
        findings += [_finding(located, *fault) for fault in faults]
        values += read
    findings += _faults_of_all(values, origins)
    return sorted(set(findings))


def _finding(located: Located, path: Path, text: str) -> Finding:
    value = located.value
    assert isinstance(value, Mapping)
    metadata = value.get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    name = "/".join(str(named[part]) for part in ("namespace", "name") if named.get(part))
    what = f"{value.get('kind', 'object')} {name or '-'}"
    if path:
        text = (
            f"{path[-1] if 'annotations' in path or 'labels' in path else path_text(path)}: {text}"
        )
    return Finding(located.file, located.line(path), what, text)


def _faults_of_all(
    values: Iterable[ModelObject], origins: Mapping[ObjectKey, Located]
) -> Iterator[Finding]:
    """Yield what an agent would report of Services, such as an address that two of them name."""
    cache = Cache("")
    touched = cache.apply(values, ())
    planner = Planner(cache, ServiceConfig(), max_backends=_MAX_BACKENDS)
    planner.sync_all(0.0, lambda _plan: None)
    for fault in FaultReport(planner).update(touched):
        located = origins.get(ObjectKey("Service", *fault.service))
        if located and fault.reason != BAD_SCHEDULER:  # each annotation is read by itself
            yield _finding(located, (), fault.text)


def _with_cluster_ip(value: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return a Service with some cluster IP if it has none; any other object as it is."""
    spec = value.get("spec")
    if value.get("kind") != "Service" or not isinstance(spec, Mapping) or spec.get("clusterIP"):
        return value
    address = _UNUSED[number % _UNUSED.num_addresses]
    return {**value, "spec": {**spec, "clusterIP": str(address)}}


# -- annotations ------------------------------------------------------------------------------

_Parse = Callable[[str], object]


def _parse_socket_lb(text: str) -> None:
    if text != "off":
        raise ValueError(f"{text!r} has no effect: the only value is 'off'")


_OF_SERVICES: dict[str, _Parse] = {known.name: known.parse for known in ANNOTATIONS}
_BY_KIND: dict[str, dict[str, _Parse]] = {
    "Service": _OF_SERVICES,
    "EndpointSlice": {OF_SLICES: parse_weight},
    "Endpoints": {OF_SLICES: parse_weight},
    "Pod": {OF_PODS: _parse_socket_lb},
}
_KINDS_OF = {
    **{OF_SLICES: "EndpointSlices", OF_PODS: "Pods"},
    **dict.fromkeys(_OF_SERVICES, "Services"),
}
_TEMPLATES: tuple[Path, ...] = (("spec", "template"), ("spec", "jobTemplate", "spec", "template"))
"""Where objects have Pods of their own."""

_LIKE = 0.75
"""How alike two prefixes are of which one is a mistyped other."""

_Fault = tuple[Path, str]


def _annotation_faults(value: Mapping[str, Any]) -> Iterator[_Fault]:
    yield from _faults_of(value, str(value["kind"]), ("metadata",))
    for path in _TEMPLATES:
        inner: object = value
        for step in path:
            inner = inner.get(step) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping):
            yield from _faults_of(inner, "Pod", (*path, "metadata"))


def _faults_of(value: Mapping[str, Any], kind: str, path: Path) -> Iterator[_Fault]:
    metadata = value.get("metadata")
    if not isinstance(metadata, Mapping):
        return
    for field in ("annotations", "labels"):
        entries = metadata.get(field)
        for name, text in entries.items() if isinstance(entries, Mapping) else ():
            check = _label_fault if field == "labels" else _annotation_fault
            if fault := check(kind, name, text):
                yield (*path, field, name), fault


def _label_fault(_kind: str, name: str, _text: object) -> str:
    if name.startswith(PREFIX) and name.removeprefix(PREFIX) in _KINDS_OF:
        return "without effect as a label: make it an annotation"
    return ""


def _annotation_fault(kind: str, name: str, text: object) -> str:
    prefix, slash, rest = name.rpartition("/")
    if prefix + slash != PREFIX:
        return _prefix_fault(prefix or name, rest)
    known = _BY_KIND.get(kind, {})
    if rest in known:
        try:
            known[rest](str(text))
        except ValueError as error:
            return str(error)
        return ""
    if rest in _KINDS_OF:
        return f"without effect on a {kind}: it is an annotation of {_KINDS_OF[rest]}"
    near = get_close_matches(rest, known or _KINDS_OF, 1)
    if near:
        return f"is not known; did you mean {PREFIX}{near[0]}?"
    return f"is not known; the annotations of a {kind} are: {', '.join(known) or 'none'}"


def _prefix_fault(prefix: str, rest: str) -> str:
    """Return a text for a prefix that is nearly that of bpfsvc."""
    ours = PREFIX.rstrip("/")
    is_near = ours.partition(".")[0] in prefix.lower() or get_close_matches(
        prefix, [ours], 1, _LIKE
    )
    if not is_near:
        return ""
    name = next(iter(get_close_matches(rest.rpartition(".")[2], _KINDS_OF, 1)), "NAME")
    return f"without effect; did you mean {PREFIX}{name}?"
