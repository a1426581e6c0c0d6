"""The overlays, changed for the cluster as their documents say."""

from __future__ import annotations

import filecmp
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import forwarder
from tests.cluster.addresses import POD_CIDRS
from tests.cluster.cgroups import Cgroups
from tests.cluster.control_plane import URL
from tests.cluster.product import overlay_folder
from tests.cluster.settings import CHECKOUT, OVERLAYS, Overlay, Settings


def folder_of(overlay: Overlay, tmp_path: Path, cgroups: Cgroups = "hybrid") -> Path:
    settings = Settings(kubernetes=tmp_path, folder=tmp_path, cgroups=cgroups)
    return overlay_folder(settings, overlay)


def config(folder: Path, overlay: Overlay) -> dict[str, Any]:
    """Return the data of an overlay's ConfigMap, each file's first document read."""
    data = yaml.safe_load((folder / "deploy/overlays" / overlay / "config.yaml").read_text())[
        "data"
    ]
    return {name: next(yaml.safe_load_all(text)) for name, text in data.items()}


@pytest.mark.parametrize(
    ("overlay", "server"), [("plain", URL), ("k3s", f"https://127.0.0.1:{forwarder.PORT}")]
)
def test_the_range_of_pods_and_the_api_server_are_this_clusters(
    overlay: Overlay, server: str, tmp_path: Path
) -> None:
    read = config(folder_of(overlay, tmp_path), overlay)
    assert read["config.conf"]["clusterCIDR"] == ",".join(POD_CIDRS)
    assert read["kubeconfig.conf"]["clusters"][0]["cluster"]["server"] == server


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_nothing_else_of_deploy_is_changed(overlay: Overlay, tmp_path: Path) -> None:
    copy = folder_of(overlay, tmp_path) / "deploy"
    for original in sorted((CHECKOUT / "deploy").rglob("*.yaml")):
        path = original.relative_to(CHECKOUT / "deploy")
        same = filecmp.cmp(original, copy / path, shallow=False)
        assert same == (path != Path("overlays", overlay, "config.yaml")), path


@pytest.mark.parametrize(("cgroups", "count"), [("hybrid", 1), ("unified", 0)])
def test_only_a_hybrid_hierarchy_changes_the_daemon_set(
    cgroups: Cgroups, count: int, tmp_path: Path
) -> None:
    folder = folder_of("plain", tmp_path, cgroups)
    patches = yaml.safe_load((folder / "kustomization.yaml").read_text())["patches"]
    assert len(patches) == count
