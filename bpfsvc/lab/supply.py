"""Where the agents of a lab get their objects from: files, or an API server."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from bpfsvc.lab.apiserver import ApiServer
from bpfsvc.lab.namespace import Namespace
from bpfsvc.lab.objects import Object, manifest, port, service, slices

PORT = 6443

MARK = "10.96.255.254"
"""The cluster IP of a Service that only tells how far an agent has come."""

_NAMESPACE = "bpfsvc-lab"


def mark(number: int) -> tuple[Object, Object]:
    """Give a Service at port ``number`` and its endpoint, with which everything before has come."""
    name = f"m{number}"
    made = service("settled", [MARK], [port(number, name)], namespace=_NAMESPACE)
    endpoint = {"addresses": ["192.0.2.1"], "conditions": {"ready": True}}
    of_it = slices("settled", [], [port(1, name)], namespace=_NAMESPACE)[0]
    return made, of_it | {"endpoints": [endpoint]}


class Supply(Protocol):
    """Objects under names, each of which may stand for several."""

    def put(self, name: str, *objects: Mapping[str, Any]) -> None:
        """Let the objects under a name be these."""
        ...

    def drop(self, name: str) -> None:
        """Let there be none under a name."""
        ...

    def flags(self, node: str) -> list[str]:
        """Give the flags by which the agent of a node finds them."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class Files:
    """A directory of manifests below ``place``."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.directory = place / "manifests"
        self.directory.mkdir()

    def put(self, name: str, *objects: Mapping[str, Any]) -> None:
        """Write a manifest as editors and ``kubectl`` do it: beside its place, then renamed."""
        self.put_text(f"{name}.yaml", manifest(objects))

    def put_text(self, file: str, text: str) -> None:
        """Write any text as a file of the directory."""
        fresh = self._place / file
        fresh.write_text(text)
        fresh.replace(self.directory / file)

    def drop(self, name: str) -> None:
        """Remove a manifest."""
        (self.directory / f"{name}.yaml").unlink()

    def flags(self, node: str) -> list[str]:  # noqa: ARG002
        """Name the directory."""
        return ["--manifests", str(self.directory)]

    def close(self) -> None:
        """Nothing is to be ended."""


class Served:
    """An API server that listens in a namespace, at an address that the nodes reach."""

    def __init__(self, place: Path, namespace: Namespace, address: str) -> None:
        self.server = ApiServer()
        self._names: dict[str, list[Object]] = {}
        listener = namespace.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, PORT))
        self.server.serve(listener)
        self.kubeconfig = place / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(kubeconfig(self.server.url(address))))

    def put(self, name: str, *objects: Mapping[str, Any]) -> None:
        """Bring the server's objects of that name to these."""
        before = {_key(one): one for one in self._names.get(name, ())}
        self._names[name] = list(map(dict, objects))
        for one in objects:
            if before.pop(_key(one), None) != one:
                self.server.put(one)
        for key in before:
            self.server.delete(*key)

    def drop(self, name: str) -> None:
        """Delete the objects of that name."""
        self.put(name)

    def flags(self, node: str) -> list[str]:
        """Name a kubeconfig, and a file of the node's own for the last good state."""
        return ["--kubeconfig", str(self.kubeconfig), "--last-good", str(self.last_good(node))]

    def last_good(self, node: str) -> Path:
        """Give the file of a node."""
        return self.kubeconfig.with_name(f"last-good-{node}")

    def close(self) -> None:
        """End the server."""
        self.server.close()


def kubeconfig(url: str) -> Object:
    """Give a kubeconfig (JSON is YAML) for a server that asks for nothing."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": url}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "users": [{"name": "lab", "user": {}}],
        "current-context": "lab",
    }


def _key(one: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = one["metadata"]
    return one["kind"], metadata.get("namespace", ""), metadata["name"]
