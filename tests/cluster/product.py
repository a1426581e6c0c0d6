"""bpfsvc on the cluster: its image, built from the checkout, and its DaemonSet by the overlays.

The overlays are used as their comments and docs/operations.md say: what an operator would have to
change for this cluster is changed here, and nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

import bpfsvc
from tests.cluster.addresses import POD_CIDRS
from tests.cluster.control_plane import URL
from tests.cluster.errors import ClusterError
from tests.cluster.settings import CHECKOUT, Overlay, Settings

ARCHIVE = "bpfsvc.oci.tar"
NAME = f"bpfsvc:{bpfsvc.__version__}"

_BUILD = CHECKOUT / "build" / "image"
UNIFIED = "/sys/fs/cgroup/unified"
_EXAMPLE_CIDRS = {"plain": "10.244.0.0/16", "k3s": "10.42.0.0/16"}
_EXAMPLE_SERVER = "https://control-plane.example:6443"


def build_image(settings: Settings) -> Path:
    """Build the image from the checkout, as ``make image`` does; return its archive."""
    archive = settings.folder / ARCHIVE
    log = settings.folder / "bpfsvc-image.log"
    stores = [f"--root={_BUILD / 'storage'}", f"--runroot={_BUILD / 'run'}"]
    push = ["buildah", "--storage-driver=vfs", *stores, "push", "--quiet", f"localhost/{NAME}"]
    with log.open("w") as output:
        for command in (
            [CHECKOUT / "tests/image/build.sh", _BUILD],
            [*push, f"oci-archive:{archive}.part:docker.io/library/{NAME}"],
        ):
            done = subprocess.run(
                command,
                env={**os.environ, "PYTHON": sys.executable},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                check=False,
            )
            if done.returncode != 0:
                last = log.read_text().strip().rpartition("\n")[2]
                raise ClusterError(f"the image of bpfsvc cannot be built: {last}", f"see {log}")
    Path(f"{archive}.part").replace(archive)
    return archive


def overlay_folder(
    settings: Settings, overlay: Overlay, flags: Sequence[str] = (), like_kube_proxy: bool = False
) -> Path:
    """Write the overlay, adapted to this cluster, and return its folder for kustomize.

    ``flags``: more of them for the agent. ``like_kube_proxy``: its pods have kube-proxy's label, by
    which e2e tests find the pods that they restart.
    """
    folder = settings.state / f"overlay-{overlay}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(CHECKOUT / "deploy", folder / "deploy")
    if overlay in _EXAMPLE_CIDRS:
        _change_config(folder / "deploy" / "overlays" / overlay / "config.yaml", overlay)
    patches = [_cgroup_patch()] if settings.cgroups == "hybrid" else []
    patches += [_patch("add", "/spec/template/spec/containers/0/args/-", flag) for flag in flags]
    if like_kube_proxy:
        patches.append(_patch("add", "/spec/template/metadata/labels/k8s-app", "kube-proxy"))
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump({"resources": [f"deploy/overlays/{overlay}"], "patches": patches})
    )
    return folder


def _change_config(file: Path, overlay: Overlay) -> None:
    """Change the lines that are made for another cluster, in the overlay's own text."""
    changes = {f"clusterCIDR: {_EXAMPLE_CIDRS[overlay]}": f"clusterCIDR: {','.join(POD_CIDRS)}"}
    if overlay == "plain":  # k3s has it on every node
        changes[f"server: {_EXAMPLE_SERVER}"] = f"server: {URL}"
    text = file.read_text()
    for example, ours in changes.items():
        if text.count(example) != 1:
            raise ClusterError(f"{file} does not have the line {example!r} once")
        text = text.replace(example, ours)
    file.write_text(text)


def _cgroup_patch() -> dict[str, Any]:
    """Return the change that docs/operations.md asks for on hybrid hierarchies."""
    host_path = {"path": UNIFIED, "type": "Directory"}
    change = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "bpfsvc"},
        "spec": {"template": {"spec": {"volumes": [{"name": "cgroup", "hostPath": host_path}]}}},
    }
    return {"target": {"kind": "DaemonSet", "name": "bpfsvc"}, "patch": yaml.safe_dump(change)}


def _patch(operation: str, path: str, value: str) -> dict[str, Any]:
    """Return a JSON patch of the DaemonSet."""
    change = [{"op": operation, "path": path, "value": value}]
    return {"target": {"kind": "DaemonSet", "name": "bpfsvc"}, "patch": yaml.safe_dump(change)}
