"""``python deploy/chart/schema.py`` writes what follows from other files of the chart.

``values.schema.json`` is written by hand, except for the fields of the two configurations, which
are those that the agent reads. ``values.yaml`` and the table of docs/chart.md follow from the
schema, with its defaults and descriptions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any, get_args

import msgspec
import yaml

from bpfsvc.config.bpfsvc_v1alpha1 import MOST_ENTRIES, SIZES, BpfsvcConfiguration
from bpfsvc.config.config import ProxyMode
from bpfsvc.config.durations import Duration
from bpfsvc.config.fields import Shape
from bpfsvc.config.kubeproxy_v1alpha1 import METRICS_PORT, KubeProxyConfiguration
from bpfsvc.config.local_detector import Mode

HERE = Path(__file__).parent
SCHEMA = HERE / "values.schema.json"
VALUES = HERE / "values.yaml"
PAGE = HERE.parents[1] / "docs/chart.md"

Schema = dict[str, Any]

LEFT_OUT = {
    # Set by the pods' flags, by the mount, and by the probes, which ask the usual port.
    *("hostnameOverride", "clientConnection.kubeconfig", "healthzBindAddress"),
    # Windows.
    *("winkernel", "windowsRunAsService"),
}

_DURATION = r"^[-+]?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"
_CIDR = "[0-9a-fA-F.:]+/[0-9]+"
_PORTS = {"type": "string", "pattern": "^[0-9]+-[0-9]+$"}
NARROWER: dict[str, Schema] = {
    "clusterCIDR": {"type": "string", "pattern": f"^{_CIDR}(, *{_CIDR})*$"},
    "metricsBindAddress": {"type": "string", "pattern": f":{METRICS_PORT}$"},
    "mode": {"enum": ["", *get_args(ProxyMode)]},
    "detectLocalMode": {"enum": [*get_args(Mode)]},
    "masqueradePorts": _PORTS,
    "serviceNodePortRange": _PORTS,
    "mapSizes": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"type": "integer", "minimum": 1, "maximum": MOST_ENTRIES} for name in SIZES
        },
    },
}
"""What these fields may hold, which their types do not say."""


def _of_type(kind: type) -> Schema:
    return {"type": "string", "pattern": _DURATION} if kind is Duration else {}


def fields(shape: type[Shape], path: str = "") -> Schema:
    """Return the schema of a configuration."""
    properties: Schema = {}
    for field in msgspec.structs.fields(shape):
        name = path + field.encode_name
        if name in LEFT_OUT:
            continue
        if isinstance(field.type, type) and issubclass(field.type, Shape):
            made = fields(field.type, f"{name}.")
        else:
            made = NARROWER.get(name) or msgspec.json.schema(field.type, schema_hook=_of_type)
        properties[field.encode_name] = made
    return {"type": "object", "additionalProperties": False, "properties": properties}


def schema() -> str:
    """Return the text of the schema, with the fields of today's configurations."""
    document = json.loads(SCHEMA.read_text())
    for shape in (KubeProxyConfiguration, BpfsvcConfiguration):
        document["$defs"][shape.__name__] = fields(shape)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def values(properties: Schema, indent: str = "") -> Iterator[str]:
    """Yield the lines of ``values.yaml``: every value with its description and its default."""
    for name, value in properties.items():
        if name == "global":
            continue
        if "default" not in value:
            yield f"{indent}{name}:"
            yield from values(value["properties"], indent + "  ")
            continue
        yield from (f"{indent}# {line}" for line in wrap(value["description"], 100 - len(indent)))
        yield f"{indent}{name}: {json.dumps(value['default'])}"


def leaves(properties: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every value that has a default, with its path."""
    for name, value in properties.items():
        if "default" in value:
            yield path + name, value
        elif "properties" in value:
            yield from leaves(value["properties"], f"{path}{name}.")


def table(properties: Schema) -> Iterator[str]:
    """Yield the lines of the table for people, at most 120 columns wide."""
    yield "| value | default | |"
    yield "|---|---|---|"
    for path, value in leaves(properties):
        default = json.dumps(value["default"])
        start = f"| `{path}` | `{default}` |"
        width = 117 - len(start)
        first, *rest = wrap(value["description"], width)
        yield f"{start} {first} |"
        yield from (f"| | | {line} |" for line in wrap(" ".join(rest), 110))


def page(properties: Schema) -> str:
    """Return the text of the page, with today's table."""
    rows = "\n".join(table(properties))
    return re.sub(r"(?ms)^\| value \| default \|.*?(?=\n\n)", lambda _: rows, PAGE.read_text())


def written() -> dict[Path, str]:
    """Return the text of each file that follows from others."""
    text = schema()
    properties = json.loads(text)["properties"]
    head = "# Written by deploy/chart/schema.py from values.schema.json.\n\n"
    lines = "\n".join(values(properties)) + "\n"
    assert yaml.safe_load(lines)
    return {SCHEMA: text, VALUES: head + lines, PAGE: page(properties)}


def main() -> None:
    """Write the files."""
    for path, text in written().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
