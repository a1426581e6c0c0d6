"""Where the agents of a lab get their objects from: files, or an API server."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bpfsvc.devtools.lab.apiserver import ApiServer
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.objects import Object, manifest, port, service, slices

PORT = 6443

MARK = "10.96.255.254"
"""The cluster IP of a Service that only shows how far an agent has come."""

_NAMESPACE = "bpfsvc-lab"
_SETTLED = "settled"
_FUTURE = 60.0  # seconds


def mark(number: int, service_name: str = _SETTLED) -> tuple[Object, Object]:
    """Return a Service at port ``number`` and its slice, which show that earlier objects are in."""
    name = f"m{number}"
    made = service(service_name, [MARK], [port(number, name)], namespace=_NAMESPACE)
    endpoint = {"addresses": ["192.0.2.1"], "conditions": {"ready": True}}
    of_it = slices(service_name, [], [port(1, name)], namespace=_NAMESPACE)[0]
    return made, of_it | {"endpoints": [endpoint]}


class Files:
    """A directory of manifests below ``parent``."""

    def __init__(self, parent: Path) -> None:
        self._place = parent
        self.directory = parent / "manifests"
        self.directory.mkdir()
        self._keys: dict[str, set[tuple[str, str, str]]] = {}
        self._has_less = False
        """True if an object has gone since the last mark: an agent believes that 0.1 s later."""
        self._marked_by = _SETTLED

    def put(self, name: str, *objects: Mapping[str, Any], written: float | None = None) -> None:
        """Write a manifest as editors do: into another file, which is then renamed.

        ``written`` is the time of the file, in Unix seconds; None: now.
        """
        keys = {_key(item) for item in objects}
        self._has_less |= not self._keys.get(name, set()) <= keys
        self._keys[name] = keys
        self.put_text(f"{name}.yaml", manifest(objects), written)

    def mark(self, number: int) -> None:
        """Put a mark; where an object has gone, agents must not believe the mark any sooner.

        So the mark takes the mark before away, in a file from the future: an agent counts its wait
        from when it sees the file, as for a file that was removed. Without a mark before, the next
        mark does so.
        """
        takes_away = self._has_less and _SETTLED in self._keys
        if takes_away:
            self._marked_by = f"{_SETTLED}-{number}"
        made = mark(number, self._marked_by)
        had_less = self._has_less
        self.put(_SETTLED, *made, written=time.time() + _FUTURE if takes_away else None)
        self._has_less = had_less and not takes_away

    def put_text(self, file: str, text: str, written: float | None = None) -> None:
        """Write any text as a file of the directory; ``written``: its time in Unix seconds."""
        fresh = self._place / file
        fresh.write_text(text)
        if written is not None:
            os.utime(fresh, (written, written))
        fresh.replace(self.directory / file)

    def drop(self, name: str) -> None:
        """Remove a manifest."""
        (self.directory / f"{name}.yaml").unlink()
        self._has_less |= bool(self._keys.pop(name, None))

    def flags(self, node: str) -> list[str]:  # noqa: ARG002
        """Return the flag that names the directory."""
        return ["--manifests", str(self.directory)]

    def close(self) -> None:
        """Do nothing."""


class Served:
    """An API server in a namespace, at an address that the nodes reach."""

    def __init__(self, parent: Path, namespace: Namespace, address: str) -> None:
        self.server = ApiServer()
        self._names: dict[str, list[Object]] = {}
        listener = namespace.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, PORT))
        self.server.serve(listener)
        self.kubeconfig = parent / "kubeconfig"
        self.kubeconfig.write_text(json.dumps(kubeconfig(self.server.url(address))))

    def put(self, name: str, *objects: Mapping[str, Any]) -> None:
        """Make these the server's objects of that name."""
        before = {_key(item): item for item in self._names.get(name, ())}
        self._names[name] = list(map(dict, objects))
        for item in objects:
            if before.pop(_key(item), None) != item:
                self.server.put(item)
        for key in before:
            self.server.delete(*key)

    def mark(self, number: int) -> None:
        """Put a mark."""
        self.put(_SETTLED, *mark(number))

    def drop(self, name: str) -> None:
        """Delete the objects of that name."""
        self.put(name)

    def flags(self, node: str) -> list[str]:
        """Return the flags that name a kubeconfig and the node's snapshot file."""
        return ["--kubeconfig", str(self.kubeconfig), "--last-good", str(self.snapshot_file(node))]

    def snapshot_file(self, node: str) -> Path:
        """Return the snapshot file of a node."""
        return self.kubeconfig.with_name(f"last-good-{node}")

    def close(self) -> None:
        """End the server."""
        self.server.close()


def kubeconfig(url: str) -> Object:
    """Return a kubeconfig (JSON is YAML) for a server without authentication."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": {"server": url}}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab"}}],
        "users": [{"name": "lab", "user": {}}],
        "current-context": "lab",
    }


def _key(item: Mapping[str, Any]) -> tuple[str, str, str]:
    metadata = item["metadata"]
    return item["kind"], metadata.get("namespace", ""), metadata["name"]
