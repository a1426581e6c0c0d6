"""The testbed of the demonstration: a lab with its pods, and manifests that an agent follows."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

from bpfsvc.devtools.demo import objects
from bpfsvc.devtools.lab.cluster import LabCluster
from bpfsvc.devtools.lab.environment import Environment
from bpfsvc.devtools.lab.node import LabNode
from bpfsvc.devtools.lab.pod import LabPod
from bpfsvc.devtools.lab.topology import Lab, LabClient

Layout = Literal["routed", "bridge"]
Overlay = Literal["vxlan"]

_BPFSVC = (sys.executable, "-m", "bpfsvc")


class DemoTestbed(Environment):
    """A context manager: lab, pods and manifests exist within; ``cluster.start`` starts agents.

    ``nginx`` are the pods behind all Services but svc-a, one on each node; ``shell`` is a pod of
    the second node that is only a client; ``pod_a`` serves svc-a.
    """

    def __init__(self, layout: Layout, overlay: Overlay | None) -> None:
        super().__init__()
        self.lab = Lab(layout, overlay, pods_per_node=0)
        self.cluster: LabCluster
        self.nginx: list[LabPod] = []
        self.pod_a: LabPod
        self.shell: LabPod

    @property
    def nodes(self) -> list[LabNode]:
        """The two nodes."""
        return self.lab.nodes

    @property
    def client(self) -> LabClient:
        """The external client."""
        return self.lab.client

    def _build(self) -> None:
        self._stack.enter_context(self.lab)
        self.cluster = self._stack.enter_context(LabCluster(self.lab))
        first, second = self.nodes
        for node, (name, address) in zip(self.nodes, objects.NGINX_PODS.items(), strict=True):
            self.nginx.append(self.add_pod(node, name, address))
        self.pod_a = self.add_pod(first, *objects.SVC_A_POD)
        self.shell = second.add_pod("shell")
        for file, text in objects.manifests().items():
            self.cluster.put_text(file, text)
        for service in objects.WITH_SLICES:
            self.publish(service, self.nginx)

    def add_pod(self, node: LabNode, name: str, *addresses: str) -> LabPod:
        """Start a pod with a server on every target port of the Services."""
        pod = node.add_pod(name, addresses)
        pod.serve(objects.HTTP_PORT)
        pod.serve(objects.APP_PORT)
        return pod

    def publish(self, service: str, pods: Sequence[LabPod]) -> None:
        """Make these the ready pods of a Service, as the EndpointSlice controller does."""
        self.cluster.put(f"{service}-slices", *objects.endpoint_slices(service, pods))

    def bpfsvc(self, node: LabNode, *words: str) -> str:
        """Run a bpfsvc command on a node and return its output; ``LabError`` if it fails."""
        return node.run([*_BPFSVC, *words, "--pin-root", str(node.pin_root)]).stdout
