"""From a file and flags to settings that can be used, or to one error that names all that is wrong.

As in kube-proxy, a file takes the place of the flags: beside it only a few of them count. Flags of
our own are not kube-proxy's to rule on, and beat the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from bpfsvc.errors import UsageError
from bpfsvc.model import path_text
from bpfsvc.settings import defaults, notes, own, reading, shape, validation
from bpfsvc.settings.fitting import Findings, Problem, fit, overlaid, plain_values
from bpfsvc.settings.own import Own
from bpfsvc.settings.shape import KubeProxy
from bpfsvc.sources import yamltext

_BESIDE_A_FILE = ("hostnameOverride", "logging")


class Flag(NamedTuple):
    """A flag that was given, and the field it stands for; an empty path has no field."""

    name: str
    path: yamltext.Path
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the command line says.

    * ``file``: the file of ``--config``.
    * ``proxy``, ``own``: flags for fields of either block.
    * ``idle``: flags that were given and stand for nothing here.
    * ``names``: the flag of every field of kube-proxy's block that has one.
    """

    file: Path | None = None
    master: str = ""
    proxy: tuple[Flag, ...] = ()
    own: tuple[Flag, ...] = ()
    idle: tuple[str, ...] = ()
    names: Mapping[yamltext.Path, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that holds, defaults included.

    * ``digest``: the content of the file that was read.
    * ``warnings``: fields that nobody knows or that stand twice, each with its place.
    * ``notes``: what was given and has no effect, or less than it seems.
    """

    proxy: KubeProxy
    own: Own
    file: Path | None
    digest: str
    master: str
    warnings: tuple[str, ...]
    notes: tuple[str, ...]

    def documents(self) -> list[dict[str, Any]]:
        """Give both blocks as they would stand in a file, kube-proxy's first."""
        return [
            {"apiVersion": shape.API_VERSION, "kind": shape.KIND, **plain_values(self.proxy)},
            {"apiVersion": own.API_VERSION, "kind": own.KIND, **plain_values(self.own)},
        ]


def load(given: Given, read: Callable[[Path], reading.File] = reading.read) -> Settings:
    """Read, complete and check. Raises ``UsageError`` with every field that cannot be used."""
    file = read(given.file) if given.file else reading.NOTHING
    flags, ignored = _counting(given)
    proxy, unknown, problems = _proxy(file.proxy, flags, given.names)
    mine, own_problems = _own(file.own, given.own)
    _refuse([*problems, *own_problems])
    return Settings(
        proxy=defaults.settle_mode(proxy),
        own=mine,
        file=given.file,
        digest=file.digest,
        master=given.master,
        warnings=(
            *(f"{place}: unknown field, passed over" for place in unknown),
            *(f"{place}: stands twice, the last counts" for place in file.repeated),
            *own.doubtful(mine),
        ),
        notes=_notes(proxy, flags, given, ignored),
    )


def _counting(given: Given) -> tuple[list[Flag], list[str]]:
    """Tell the flags that count from those that a file makes void."""
    if given.file is None:
        return [*given.proxy], []
    kept = [flag for flag in given.proxy if flag.path[0] in _BESIDE_A_FILE]
    return kept, sorted({flag.name for flag in given.proxy if flag not in kept})


def _proxy(
    block: reading.Block, flags: list[Flag], names: Mapping[yamltext.Path, str]
) -> tuple[KubeProxy, list[str], list[str]]:
    found, again = Findings(), Findings()
    told = _nested(flags)
    proxy = defaults.complete(fit(overlaid(block.fields, told), KubeProxy, found))
    proxy = fit(overlaid(plain_values(proxy), told), KubeProxy, again)
    validation.check(proxy, found)
    by_flag = {flag.path: flag.name for flag in flags}
    if block.source is None:
        by_flag = {**names, **by_flag}
    unknown = [block.place(path) for path in found.unknown]
    return proxy, unknown, _told(found.problems, block, by_flag)


def _own(block: reading.Block, flags: tuple[Flag, ...]) -> tuple[Own, list[str]]:
    found = Findings()
    mine = fit(overlaid(block.fields, _nested(flags)), Own, found)
    own.check(mine, found)
    for path in found.unknown:
        found.refuse(path, "unknown field")
    problems = _told(found.problems, block, {flag.path: flag.name for flag in flags})
    return own.complete(mine) if not problems else mine, problems


def _nested(flags: Iterable[Flag]) -> dict[str, Any]:
    """Make of flags what a file would hold."""
    fields: dict[str, Any] = {}
    for flag in flags:
        value = flag.value
        for step in reversed(flag.path):
            value = {step: value}
        fields = overlaid(fields, value)
    return fields


def _told(
    problems: list[Problem], block: reading.Block, flags: Mapping[yamltext.Path, str]
) -> list[str]:
    def place(path: yamltext.Path) -> str:
        steps = range(len(path), 0, -1)
        named = (flags[path[:end]] for end in steps if path[:end] in flags)
        return next(named, "") or block.place(path)

    return [f"{place(path)}: {reason}" for path, reason in problems]


def _refuse(problems: list[str]) -> None:
    if problems:
        raise UsageError("; ".join(problems), "docs/configuration.md has every field and flag")


def _notes(
    proxy: KubeProxy, flags: list[Flag], given: Given, ignored: list[str]
) -> tuple[str, ...]:
    by_flag = {flag.path: flag.name for flag in flags}

    def name(path: yamltext.Path) -> str:
        if path[0] == "featureGates":
            return path_text(path)
        return by_flag.get(path, path_text(path))

    settled = defaults.settle_mode(proxy)
    return (
        *notes.sentence("without effect here", [*notes.without_effect(proxy, name), *given.idle]),
        *notes.sentence("ignored beside --config", ignored),
        *notes.doubtful(settled),
    )
