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
