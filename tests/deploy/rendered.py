"""What is in ``deploy/``, rendered."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.kustomize import Object, build

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

OVERLAYS = ("kubeadm", "k3s", "plain")


def overlay(name: str) -> list[Object]:
    """Return the objects of an overlay."""
    return build(DEPLOY / "overlays" / name)


def only(objects: list[Object], kind: str) -> Object:
    """Return the one object of a kind."""
    (found,) = (manifest for manifest in objects if manifest["kind"] == kind)
    return found


def pod(objects: list[Object]) -> Object:
    """Return the spec of the pods of the one DaemonSet."""
    spec: Object = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    return spec
