"""Records as JSON and YAML for programs: one object, name of a map -> list of records.

Both are written piece by piece. A record has the names of the table's columns. Times are seconds; a
cell that a table shows as ``-`` is an empty text or list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import yaml

from bpfsvc.inspect.records import Records

_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_WIDTH = 1 << 20
"""Columns before PyYAML breaks a line: never."""

_AT_ONCE = 500
"""Records passed to PyYAML in one call: few enough for memory, enough for speed."""


def write_json(dumped: Iterable[Records]) -> Iterator[str]:
    """Yield the pieces of one JSON object, with one record per line."""
    start = "{"
    for records in dumped:
        yield f"{start}\n{json.dumps(records.name)}: ["
        before = "\n"
        for record in _objects(records):
            yield f"{before}  {json.dumps(record)}"
            before = ",\n"
        yield "\n]" if records.rows else "]"
        start = ","
    yield "\n}\n"


def write_yaml(dumped: Iterable[Records]) -> Iterator[str]:
    """Yield the pieces of one YAML document."""
    for records in dumped:
        yield f"{records.name}:\n" if records.rows else f"{records.name}: []\n"
        objects = _objects(records)
        while some := list(islice(objects, _AT_ONCE)):
            yield yaml_list(some)


def yaml_list(some: list[dict[str, Any]]) -> str:
    """Return objects as the items of a YAML list."""
    text: str = yaml.dump(
        some, Dumper=_Dumper, default_flow_style=False, sort_keys=False, width=_WIDTH
    )
    return text


def _objects(records: Records) -> Iterator[dict[str, object]]:
    for row in records.rows:
        cells = (list(cell) if isinstance(cell, tuple) else cell for cell in row)
        yield dict(zip(records.columns, cells, strict=True))
