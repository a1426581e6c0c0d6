"""A cluster for tests of schedulers: Services with annotations, a planner and a kernel."""

from __future__ import annotations

from random import Random
from typing import Any

from bpfsvc.model import ModelObject, ObjectKey, Service
from bpfsvc.services.entries import Policies
from bpfsvc.services.planner import Planner
from tests.services.kernel import Kernel, new_planner, restore_from
from tests.services.objects import frontend, service

VIP, NODE_PORT = frontend("10.96.0.1 80"), frontend("node4 30080")
ONE, TWO, THREE = "10.0.0.1 here", "10.0.0.2 there", "10.0.0.3 there"
LOCAL = {
    "type": "NodePort",
    "externalTrafficPolicy": "Local",
    "ports": [{"name": "http", "port": 80, "nodePort": 30080}],
}
KEY = ("default", "web")


def scheduled(scheduler: str = "", weights: str = "", **spec: Any) -> Service:
    """Return the Service with these annotations, if any."""
    texts = {"bpfsvc.io/scheduler": scheduler, "bpfsvc.io/weights": weights}
    return service(annotations={name: text for name, text in texts.items() if text}, **spec)


class Cluster:
    """A planner and a kernel that checks every write."""

    def __init__(self) -> None:
        self.kernel = Kernel()
        self.planner: Planner = new_planner()

    def apply(self, *puts: ModelObject, gone: tuple[ObjectKey, ...] = ()) -> None:
        self.synced = self.kernel.sync(
            self.planner, self.planner.cache.apply(puts, gone), Random(1)
        )

    def restart(self) -> None:
        """Replace the agent by one that knows the same objects."""
        objects = self.planner.cache.objects()
        self.planner = new_planner()
        self.planner.cache.apply(objects, ())
        restore_from(self.kernel, self.planner)
        self.kernel.sync(self.planner, None, Random(1))

    @property
    def generation(self) -> int:
        return self.kernel.frontends[VIP].generation

    @property
    def policies(self) -> Policies:
        return self.kernel.frontends[VIP].policies
