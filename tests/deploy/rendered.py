"""What is in ``deploy/``, rendered."""

from __future__ import annotations

from pathlib import Path

from tests.deploy.kustomize import Object, build

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

OVERLAYS = ("kubeadm", "k3s", "plain")


def check_schema(manifest: Object, version: str) -> None:
    """Raise an error unless the schema of Kubernetes allows an object; no field may be unknown."""
    # It makes grammars, which takes 1.5 s of each process that only collects tests.
    import kubernetes_validate

    kubernetes_validate.validate(manifest, version, strict=True)


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


def allowed(objects: list[Object]) -> frozenset[tuple[str, str, str]]:
    """Return the rules of all roles as (group, resource, verb)."""
    return frozenset(
        (group, resource, verb)
        for role in objects
        if role["kind"] == "ClusterRole"
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    )
