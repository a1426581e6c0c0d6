"""``python -m tests.cluster.dns KUBECONFIG ADDRESS``: the cluster's DNS server."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from dnslib import DNSRecord
from dnslib.server import DNSLogger, DNSServer

from tests.cluster.dns_answers import Zone
from tests.cluster.watching import Object, Watched, connect

_PORT = 53
_SERVICE = "kubernetes.io/service-name"


class Resolver:
    """Answers from the Services and EndpointSlices of the API server."""

    def __init__(self, kubeconfig: Path) -> None:
        kinds = connect(kubeconfig).resources
        self.services = Watched(kinds.get(api_version="v1", kind="Service"))
        slices = kinds.get(api_version="discovery.k8s.io/v1", kind="EndpointSlice")
        self.slices = Watched(slices)
        self.zone = Zone(lambda *key: self.services.get(key), self._slices_of)

    def _slices_of(self, namespace: str, service: str) -> list[Object]:
        return [
            made
            for (each_namespace, _), made in self.slices.objects().items()
            if each_namespace == namespace
            and made["metadata"].get("labels", {}).get(_SERVICE) == service
        ]

    def resolve(self, query: DNSRecord, _handler: object) -> DNSRecord:
        """Return the reply; called by the server, in a thread for each query."""
        return self.zone.reply(query)


def main(kubeconfig: str, address: str) -> None:
    """Serve on UDP and TCP until killed."""
    logging.basicConfig(format="%(asctime)s %(message)s")
    resolver = Resolver(Path(kubeconfig))
    resolver.services.objects()
    resolver.slices.objects()
    quiet = DNSLogger("-request,-reply,-recv,-send,-truncated,-data")
    servers = [
        DNSServer(resolver, address=address, port=_PORT, tcp=tcp, logger=quiet)
        for tcp in (True, False)
    ]
    servers[0].start_thread()
    servers[1].start()


if __name__ == "__main__":
    main(*sys.argv[1:])
