"""As much of ``kustomize build`` as ``deploy/`` makes use of.

What tests need of it is little, and this needs no program. ``test_chart.py`` holds it against the
real one: ``resources``, ``components``, ``namespace``, ``patches`` by file, merged
strategically, and ``configMapGenerator`` with files, whose names get a hash (another one than
kustomize's). Anything else in a kustomization is an error, so that nothing is passed over in
silence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

_FIELDS = {
    *("apiVersion", "kind", "resources", "components", "namespace", "patches"),
    "configMapGenerator",
}

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}
"""Lists whose elements are merged one by one, and what tells them apart; others are replaced."""

_OF_NO_NAMESPACE = {"ClusterRole", "ClusterRoleBinding"}


def build(directory: Path) -> list[Object]:
    """Return the objects of a directory with a ``kustomization.yaml``."""
    return _build(directory, [])


def documents(file: Path) -> list[Object]:
    """Return the objects of a file."""
    return [document for document in yaml.safe_load_all(file.read_text()) if document is not None]


def _build(directory: Path, objects: list[Object]) -> list[Object]:
    (kustomization,) = documents(directory / "kustomization.yaml")
    if unknown := set(kustomization) - _FIELDS:
        raise ValueError(f"{directory}: {', '.join(sorted(unknown))} cannot be rendered here")
    for name in kustomization.get("resources", ()):
        path = directory / name
        objects = objects + (build(path) if path.is_dir() else documents(path))
    for name in kustomization.get("components", ()):
        objects = _build(directory / name, objects)
    for patch in kustomization.get("patches", ()):
        for change in documents(directory / patch["path"]):
            objects = list(_patched(objects, change))
    for document in kustomization.get("configMapGenerator", ()):
        objects = _with_config_map(objects, document, directory)
    if namespace := kustomization.get("namespace"):
        for made in objects:
            if made["kind"] not in _OF_NO_NAMESPACE:
                made["metadata"]["namespace"] = namespace
    return objects


def _with_config_map(objects: list[Object], of: Object, directory: Path) -> list[Object]:
    """Return the objects with a ConfigMap, and its name with a hash wherever a pod names it."""
    data = {name: (directory / name).read_text() for name in of["files"]}
    options, name = dict(of.get("options", {})), of["name"]
    if not options.pop("disableNameSuffixHash", False):
        name = f"{name}-{sha256(json.dumps(data).encode()).hexdigest()[:10]}"
    metadata = {"name": name, "namespace": of["namespace"], **options}
    for document in objects:
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for volume in pod.get("volumes", ()):
            if volume.get("configMap", {}).get("name") == of["name"]:
                volume["configMap"]["name"] = name
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    return [*objects, made]


def _patched(objects: Iterable[Object], change: Object) -> Iterator[Object]:
    is_merged = False
    for made in objects:
        if _identity(made) == _identity(change):
            is_merged = True
            yield merged(made, change)
        else:
            yield made
    if not is_merged:
        raise ValueError(f"there is no {change['kind']} {change['metadata']['name']} to patch")


def _identity(manifest: Object) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def merged(base: Object, change: Object) -> Object:
    """Merge as kubectl's strategic merge does, for fields of pods: null removes a field."""
    result = dict(base)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = merged(result.get(name) or {}, value)
        elif name in MERGE_KEYS and name in result:
            result[name] = _merged_list(result[name], value, MERGE_KEYS[name])
        else:
            result[name] = value
    return result


def _merged_list(base: list[Object], change: list[Object], key: str) -> list[Object]:
    before = {document[key]: document for document in base}
    return [
        *(merged(before.pop(document[key], {}), document) for document in change),
        *before.values(),
    ]
