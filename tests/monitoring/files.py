"""The alerts, dashboards and runbooks of this repository, and the names of metrics in queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
RUNBOOKS = ROOT / "docs" / "runbooks"
PROGRAMS = ROOT / "build" / "prometheus" / "usr" / "bin"
"""Where ``make build/prometheus/usr/bin/prometheus`` unpacks Prometheus."""

METRIC = re.compile(r"\b(?:bpfsvc|kubeproxy|rest_client|process|kubernetes)_\w+\b")
"""All metrics of an agent; no label begins like that."""


DURATION = re.compile(r"\b(\d+)(ms|[smhdwy])\b")
"""A duration in a rule. A number without a unit, such as a threshold, is none."""

_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Query(NamedTuple):
    """A query of a panel."""

    dashboard: str
    panel: str
    expression: str
    legend: str


def rules() -> dict[str, Any]:
    """Return what a file of Prometheus's own would hold."""
    (rule,) = yaml.safe_load_all((MONITORING / "rules" / "prometheus-rule.yaml").read_text())
    spec: dict[str, Any] = rule["spec"]
    return spec


def shortened(given: dict[str, Any], factor: int) -> dict[str, Any]:
    """Return rules with every duration divided by a factor.

    ``for`` and the windows of ``increase()``, ``rate()``, ``changes()`` and ``last_over_time()``
    keep their proportions to each other. What an alert asks for is kept as it is: metrics, labels,
    thresholds, annotations. So a threshold of a rate or of an age means the same, while a threshold
    of an increase has to be passed within a window that is shorter by the factor.
    """

    def divided(text: str) -> str:
        return DURATION.sub(lambda told: f"{_shortened(told[1], told[2], factor)}ms", text)

    return {
        "groups": [
            group
            | {
                "rules": [
                    rule
                    | {"expr": divided(rule["expr"])}
                    | {key: divided(rule[key]) for key in ("for",) if key in rule}
                    for rule in group["rules"]
                ]
            }
            for group in given["groups"]
        ]
    }


def _shortened(number: str, unit: str, factor: int) -> int:
    """Return milliseconds; ``ValueError`` if a part of one would be lost."""
    whole, lost = divmod(int(number) * _MILLISECONDS[unit], factor)
    if lost:
        raise ValueError(f"{number}{unit} cannot be divided by {factor}")
    return whole


def alerts() -> dict[str, dict[str, Any]]:
    """Return all alerts by name."""
    return {rule["alert"]: rule for group in rules()["groups"] for rule in group["rules"]}


def dashboards() -> dict[str, dict[str, Any]]:
    """Return all dashboards by the names of their files."""
    return {
        file.name: json.loads(file.read_text())
        for file in sorted((MONITORING / "dashboards").glob("*.json"))
    }


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries() -> Iterator[Query]:
    """Yield the queries of all panels."""
    for name, dashboard in dashboards().items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield Query(name, panel["title"], target["expr"], target["legendFormat"])
