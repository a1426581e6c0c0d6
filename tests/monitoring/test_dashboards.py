"""Dashboards that Grafana reads: each panel has a title, a unit and a text, and no two overlap."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest

from tests.deploy.kustomize import build
from tests.deploy.rendered import DEPLOY, only
from tests.monitoring.files import MONITORING, dashboards, panels

every_dashboard = pytest.mark.parametrize("dashboard", dashboards().values(), ids=dashboards())


@every_dashboard
def test_every_panel_says_what_it_shows(dashboard: dict[str, Any]) -> None:
    for panel in panels(dashboard):
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel
        assert panel["targets"]
        if panel["type"] != "table":
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
    rows = [panel for panel in dashboard["panels"] if panel["type"] == "row"]
    assert rows


@every_dashboard
def test_panels_do_not_overlap_and_fit_into_the_width(dashboard: dict[str, Any]) -> None:
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for a, b in combinations(places, 2):
        apart = (
            a["x"] + a["w"] <= b["x"]
            or b["x"] + b["w"] <= a["x"]
            or a["y"] + a["h"] <= b["y"]
            or b["y"] + b["h"] <= a["y"]
        )
        assert apart, (a, b)


@every_dashboard
def test_every_variable_is_used_and_every_used_variable_is_there(
    dashboard: dict[str, Any],
) -> None:
    variables = dashboard["templating"]["list"]
    texts = [target["expr"] for panel in panels(dashboard) for target in panel["targets"]]
    texts += [str(variable["query"]) for variable in variables]
    used = set(re.findall(r"\$(?!__)(\w+)", " ".join(texts)))
    assert used | {"datasource"} == {variable["name"] for variable in variables}
    for panel in panels(dashboard):
        for target in (panel, *panel["targets"]):
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_dashboards_have_names_of_their_own() -> None:
    shown = dashboards()
    assert len({dashboard["uid"] for dashboard in shown.values()}) == len(shown)
    assert len({dashboard["title"] for dashboard in shown.values()}) == len(shown)
    for name, dashboard in shown.items():
        assert name == f"{dashboard['uid']}.json"


def test_the_component_has_all_dashboards_as_one_config_map_under_a_name_that_stays() -> None:
    """Else Grafana would read those of before, too."""
    found = only(build(DEPLOY / "monitoring"), "ConfigMap")
    assert found["metadata"] == {
        "name": "bpfsvc-dashboards",
        "namespace": "kube-system",
        "labels": {"grafana_dashboard": "1"},
    }
    files = {file.name: file.read_text() for file in (MONITORING / "dashboards").glob("*.json")}
    assert found["data"] == files
    assert sum(map(len, files.values())) < 900_000, "a ConfigMap holds 1 MiB"
