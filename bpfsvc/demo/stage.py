"""The stage: the lab with its pods, and a cluster on it, which is manifests and agents."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Literal, Self

from bpfsvc.demo import objects
from bpfsvc.lab.cluster import Cluster
from bpfsvc.lab.node import Node
from bpfsvc.lab.pod import Pod
from bpfsvc.lab.topology import Client, Lab

Layout = Literal["routed", "bridge"]
Overlay = Literal["vxlan"]

_BPFSVC = (sys.executable, "-m", "bpfsvc")


class Stage:
    """A context manager: lab, pods and manifests are there within; agents are started by the demo.

    ``nginx`` are the pods behind all Services but svc-a, one on each node; ``shell`` is a pod of
    the second node that only asks.
    """

    def __init__(self, layout: Layout, overlay: Overlay | None) -> None:
        self.lab = Lab(layout, overlay, pods_per_node=0)
        self.cluster: Cluster
        self.nginx: list[Pod] = []
        self.pod_a: Pod
        self.shell: Pod
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.lab)
            self.cluster = stack.enter_context(Cluster(self.lab))
            self._set()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def nodes(self) -> list[Node]:
        """The two nodes."""
        return self.lab.nodes

    @property
    def client(self) -> Client:
        """The client outside."""
        return self.lab.client

    def _set(self) -> None:
        first, second = self.nodes
        for node, (name, address) in zip(self.nodes, objects.NGINX_PODS.items(), strict=True):
            self.nginx.append(self.add_pod(node, name, address))
        self.pod_a = self.add_pod(first, *objects.SVC_A_POD)
        self.shell = second.add_pod("shell")
        for file, text in objects.services().items():
            self.cluster.put_text(file, text)
        for service in objects.SELECTING:
            self.publish(service, self.nginx)

    def add_pod(self, node: Node, name: str, *addresses: str) -> Pod:
        """Start a pod that answers on every port the Services lead to."""
        pod = node.add_pod(name, addresses)
        pod.serve(objects.HTTP_PORT)
        pod.serve(objects.APP_PORT)
        return pod

    def publish(self, service: str, pods: Sequence[Pod]) -> None:
        """Make these the ready pods of a Service, as the EndpointSlice controller does."""
        self.cluster.put(f"{service}-slices", *objects.endpoints(service, pods))

    def bpfsvc(self, node: Node, *words: str) -> str:
        """Run a bpfsvc command on a node and give its output; ``LabError`` if it fails."""
        return node.run([*_BPFSVC, *words, "--pin-root", str(node.pin_root)]).stdout
