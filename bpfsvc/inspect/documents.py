"""Records as JSON and YAML for programs: one object, name of a map -> list of records.

Both are written piece by piece. A record has the names of the table's columns. Times are seconds; a
cell that a table shows as ``-`` is an empty text or list.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from bpfsvc.base import yaml_documents
from bpfsvc.inspect.records import Records

_AT_ONCE = 100
"""Objects passed to PyYAML in one call: few enough for memory, enough for speed."""


def write_json(dumped: Iterable[Records]) -> Iterator[str]:
    """Yield the pieces of one JSON object, with one record per line."""
    start = "{"
    for records in dumped:
        yield f"{start}\n{json.dumps(records.name)}: "
        yield from json_list(_objects(records))
        start = ","
    yield "\n}\n"


def json_list(objects: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the pieces of a JSON list, with one object per line."""
    yield "["
    before, end = "\n", "]"
    for item in objects:
        yield f"{before}  {json.dumps(item)}"
        before, end = ",\n", "\n]"
    yield end


def write_yaml(dumped: Iterable[Records]) -> Iterator[str]:
    """Yield the pieces of one YAML document."""
    for records in dumped:
        yield from yaml_list(records.name, _objects(records))


def yaml_list(name: str, objects: Iterator[dict[str, Any]]) -> Iterator[str]:
    """Yield the pieces of a YAML list under the name ``name``."""
    some = list(islice(objects, _AT_ONCE))
    yield f"{name}:\n" if some else f"{name}: []\n"
    while some:
        yield yaml_documents.write(some)
        some = list(islice(objects, _AT_ONCE))


def _objects(records: Records) -> Iterator[dict[str, object]]:
    for row in records.rows:
        cells = (list(cell) if isinstance(cell, tuple) else cell for cell in row)
        yield dict(zip(records.columns, cells, strict=True))
