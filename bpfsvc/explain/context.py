"""The node that a question is asked about, and the objects of manifests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bpfsvc.base.errors import BpfsvcError
from bpfsvc.config.config import Config
from bpfsvc.config.local_detector import LocalDetector
from bpfsvc.datapath.netlink.devices import addresses
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.kube.manifests.directory import ManifestSource
from bpfsvc.model import Node, PodPlace, Service
from bpfsvc.services.cache import Cache
from bpfsvc.services.rules.context import NodeContext, ServiceConfig
from bpfsvc.services.rules.nodeport_addresses import NodePortAddresses, resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionContext:
    """The node that a question is asked about, and how its agent is configured.

    * ``addresses``: all addresses of the node but loopback, packed.
    * ``node_ports``: the addresses at which NodePorts are served.
    """

    node: Node
    detection: LocalDetector
    config: ServiceConfig
    addresses: tuple[bytes, ...]
    node_ports: NodePortAddresses

    @property
    def context(self) -> NodeContext:
        """The node, as endpoints and clients are compared with it."""
        return node_context(self.node)


def node_context(node: Node) -> NodeContext:
    """Return the node, as endpoints and clients are compared with it."""
    return NodeContext(node.name, node.zone, node.addresses)


def read_manifests(directory: Path, node_name: str) -> Cache:
    """Return the objects of a directory; raise :class:`BpfsvcError` if a file cannot be used."""
    cache = Cache(node_name)
    batch = ManifestSource(directory).read()
    if batch.problems:
        raise BpfsvcError(
            "; ".join(map(str, batch.problems)),
            "fix the file, or leave out --manifests to ask about the running agent",
        )
    cache.apply(batch.puts, batch.gone)
    return cache


class ManifestObjects:
    """The objects of a directory, by their names."""

    def __init__(self, directory: Path, cache: Cache) -> None:
        self._directory = directory
        self._cache = cache

    @property
    def node_name(self) -> str:
        """The node that is asked about."""
        return self._cache.node.name

    def service(self, namespace: str, name: str) -> Service | None:
        """Return a Service, None if there is none."""
        return self._cache.lookup((namespace, name)).service

    def pod(self, namespace: str, name: str) -> PodPlace | None:
        """Return where a Pod is, None if there is none."""
        return ManifestSource(self._directory).find_pod(namespace, name)

    def services(self) -> list[str]:
        """Return the names of all Services."""
        services = (known.service for known in self._cache.all_known())
        return [f"{service.namespace}/{service.name}" for service in services if service]


def context_of(node: Node, config: Config, *, is_this_machine: bool) -> QuestionContext:
    """Return the context of a Node object; on this machine its interfaces' addresses count too."""
    own = _own_addresses() if is_this_machine else set()
    return QuestionContext(
        node=node,
        detection=config.detection,
        config=config.services(node),
        addresses=tuple(sorted(own | set(node.addresses))),
        node_ports=resolve(config.nodeport_addresses, node, localhost=config.localhost_nodeports),
    )


def _own_addresses() -> set[bytes]:
    return addresses(read_network())
