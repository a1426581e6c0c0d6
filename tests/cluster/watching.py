"""The API server's objects of one kind, kept up to date by a watch.

It shares nothing with the product's own watches, which are what the cluster tests.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.resource import Resource
from urllib3.exceptions import HTTPError

Object = dict[str, Any]
Key = tuple[str, str]
"""Namespace and name."""

_RETRY = 1.0  # seconds
_log = logging.getLogger(__name__)


def connect(kubeconfig: Path) -> DynamicClient:
    """Return a client with the credentials of a kubeconfig; it asks the server for its kinds."""
    client = config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]
    return DynamicClient(client)  # type: ignore[no-untyped-call]


def key_of(item: Object) -> Key:
    """Return what an object is stored under."""
    return item["metadata"]["namespace"], item["metadata"]["name"]


class Watched:
    """All objects of a kind, by their key. ``changed`` is set by every change.

    While the API server does not answer, the objects last seen remain.
    """

    def __init__(self, resource: Resource, changed: threading.Event | None = None) -> None:
        self.changed = changed or threading.Event()
        self._resource = resource
        self._objects: dict[Key, Object] = {}
        self._complete = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def objects(self) -> dict[Key, Object]:
        """Return all objects, after the first list has arrived."""
        self._complete.wait()
        return dict(self._objects)

    def get(self, key: Key) -> Object | None:
        """Return one object, or None."""
        self._complete.wait()
        return self._objects.get(key)

    def _follow(self) -> None:
        while True:
            try:
                self._watch_from(self._list())
            except (ApiException, HTTPError, OSError) as error:
                _log.warning("%s: %s", self._resource.kind, str(error).partition("\n")[0])
                threading.Event().wait(_RETRY)

    def _list(self) -> str:
        """Read all objects and return the version of the list."""
        listed = self._resource.get().to_dict()
        self._objects = {key_of(item): item for item in listed["items"]}
        self._complete.set()
        self.changed.set()
        return str(listed["metadata"]["resourceVersion"])

    def _watch_from(self, version: str) -> None:
        for event in self._resource.watch(resource_version=version):
            item: Object = event["raw_object"]
            if event["type"] == "DELETED":
                self._objects.pop(key_of(item), None)
            else:
                self._objects[key_of(item)] = item
            self.changed.set()
