"""The agents of a cluster, as somebody with a kubeconfig reaches them: their Pods and their pages.

Everything is asked with the rights of that kubeconfig: to list Pods and Nodes, and to forward ports
of Pods.
"""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any, NamedTuple

from bpfsvc.kube.client.connection import ApiConnection
from bpfsvc.kube.errors import InvalidResponse, Unreachable, one_line

LABEL = "app.kubernetes.io/name=bpfsvc"
"""What the Pods of the agents have, by the manifests in ``deploy``."""


_SECONDS = 20.0
"""For a part of an answer: the agent starts its page at the first question."""


class AgentPod(NamedTuple):
    """The Pod of an agent; ``trouble``: why it cannot answer, empty if it may."""

    node: str
    name: str
    trouble: str


class AgentPages:
    """The pages of all agents; any thread may ask. Everything raises as ``ApiConnection.get``."""

    def __init__(self, api: ApiConnection, namespace: str, port: int) -> None:
        """``namespace``: of the Pods; ``port``: where an agent serves its page, at 127.0.0.1."""
        self._api = api
        self._namespace = namespace
        self._port = port

    def agents(self) -> list[AgentPod]:
        """Return the Pods of agents by node; of two on a node, the one that works comes first."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        pods = [
            AgentPod(
                item.get("spec", {}).get("nodeName", ""), item["metadata"]["name"], _trouble(item)
            )
            for item in _items(self._api, path, (("labelSelector", LABEL),))
        ]
        return sorted(pods, key=lambda pod: (pod.node, pod.trouble))

    def nodes(self) -> list[str]:
        """Return the names of all Nodes."""
        return [item["metadata"]["name"] for item in _items(self._api, "/api/v1/nodes", ())]

    def ask(self, pod: str, target: str) -> tuple[int, bytes]:
        """Return the status and the body of what the page of an agent answers to a ``GET``."""
        ends = (self._namespace, pod, self._port)
        with self._api.forward(*ends, read_timeout=_SECONDS) as forwarded:
            connection = forwarded.http()
            try:
                connection.request("GET", target, headers={"Connection": "close"})
                response = connection.getresponse()
                return response.status, response.read()
            except HTTPException as error:
                text = f"the page's answer cannot be read: {one_line(str(error))}"
                raise Unreachable(text) from error


def _items(
    api: ApiConnection, path: str, query: tuple[tuple[str, str], ...]
) -> list[dict[str, Any]]:
    response = api.get(path, query)
    try:
        text = b"".join(response.pieces())
    finally:
        response.close()
    try:
        items: list[dict[str, Any]] = json.loads(text)["items"] or []
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidResponse(f"{path} is answered with no list") from error
    return items


def _trouble(pod: dict[str, Any]) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "its Pod is being deleted"
    phase = pod.get("status", {}).get("phase", "")
    return "" if phase in ("Running", "") else f"its Pod is {phase}"
