"""Pages of the site about settings: fields of the configuration, and annotations of Services."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bpfsvc.base.yaml_documents import FieldPath
from bpfsvc.cli.bpfsvc_flags import BPFSVC
from bpfsvc.cli.flags import Option
from bpfsvc.cli.kubeproxy_flags import KUBE_PROXY
from bpfsvc.config.bpfsvc_v1alpha1 import BpfsvcConfiguration, complete
from bpfsvc.config.fields import plain_values
from bpfsvc.config.kubeproxy_v1alpha1 import KubeProxyConfiguration
from bpfsvc.config.notes import NO_EFFECT
from bpfsvc.services.scheduling.annotations import ANNOTATIONS, Annotation, Scheduling
from tests.docs.site.markdown import code, prose, table, title

DOCS = Path(__file__).parents[3] / "docs"

_FIELDS = """\
From the code: every field of the two documents that `bpfsvc run --config` reads, with its default
and the flag that sets it. [Configuration](../configuration.md) explains them by subject.

"""

_ANNOTATIONS = """\
From the code: every annotation of a Service that bpfsvc reads. A value that cannot be used is
reported by an Event (`BadScheduler`), and the last good value stays in force. An EndpointSlice may
have `bpfsvc.io/weight`, and a Pod `bpfsvc.io/socket-lb: "off"`.

"""


def fields_page() -> str:
    """Return the page of fields."""
    documents = (
        ("BpfsvcConfiguration", plain_values(complete(BpfsvcConfiguration())), BPFSVC),
        ("KubeProxyConfiguration", plain_values(KubeProxyConfiguration()), KUBE_PROXY),
    )
    return _FIELDS + "\n".join(
        f"## {kind}\n\n" + table(("field", "default", "flag", ""), _rows(values, options))
        for kind, values, options in documents
    )


def _rows(values: Mapping[str, Any], options: tuple[Option, ...]) -> Iterator[tuple[str, ...]]:
    flags = {path: option for option in options for path in option.fields}
    for path, default in _leaves(values):
        option = flags.get(path)
        reason = next(
            (text for known, text in NO_EFFECT.items() if path[: len(known)] == known), ""
        )
        text = option.attributes["help"].partition("  [default")[0] if option else ""
        yield (
            code(".".join(map(str, path))),
            code(_shown(default)),
            code(option.flag if option else ""),
            f"No effect: {prose(reason)}." if reason else prose(text).replace("\\|", "|"),
        )


def _shown(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list):
        return ",".join(map(str, default))
    return "" if default in ("", None, {}) else str(default)


def _leaves(values: Mapping[str, Any], above: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def annotations_page() -> str:
    """Return the page of annotations, each with the chapters that speak of it."""
    meanings = _meanings()
    parts = []
    for annotation in ANNOTATIONS:
        name = f"bpfsvc.io/{annotation.name}"
        meaning = prose(meanings[annotation.field]).replace("None:", "without it:")
        pages = ", ".join(
            f"[{title(page.read_text())}](../{page.name})" for page in _pages_about(name)
        )
        parts.append(
            f"## {name}\n\n{meaning[0].upper()}{meaning[1:]}\n\n"
            f'* about `{name}: "?"` the Event says: {prose(_refusal(annotation))}\n'
            f"* see {pages}\n"
        )
    return _ANNOTATIONS + "\n".join(parts)


def _refusal(annotation: Annotation) -> str:
    """Return what is said about a value that cannot be used: it names those that can."""
    try:
        annotation.parse("?")
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{annotation.name} accepts any text")


def _meanings() -> dict[str, str]:
    """Return what the documentation of ``Scheduling`` says about each field."""
    known: dict[str, str] = {}
    for names, text in re.findall(
        r"^\* ((?:``\w+``(?:, )?)+): ((?:.|\n(?!\* |\n))+)",
        inspect.getdoc(Scheduling) or "",
        re.MULTILINE,
    ):
        known |= dict.fromkeys(re.findall(r"\w+", names), text)
    return {name: re.sub(r" \(:mod:`[^`]*`\)", "", text) for name, text in known.items()}


def _pages_about(name: str) -> list[Path]:
    return [
        page
        for page in sorted(DOCS.glob("*.md"))
        if re.search(rf"{name}(?![\w-])", page.read_text())
    ]
