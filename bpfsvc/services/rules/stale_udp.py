"""Which UDP clients have a backend that no longer serves the frontend that they send to.

A flow or a socket may be older than the service port that has its frontend today: the port was
given another name, or the Service deleted and made anew. So the frontend that the client sent to
decides, as kube-proxy uses the original destination of conntrack's entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from socket import IPPROTO_UDP

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, family
from bpfsvc.services.entries import Frontend, Place

_ANY = {4: ANY_NODE_ADDRESS_V4, 6: ANY_NODE_ADDRESS_V6}


class StaleUdp:
    """The frontends to check, and the endpoints that serve them.

    ``serving``: by address and port of the frontend; NodePorts are under the wildcard address;
    ``has_owner(frontend)``: True if any Service at all has exactly this frontend;
    ``has_nodeports(address)``: True if NodePorts are accepted at an address.
    """

    def __init__(
        self,
        serving: Mapping[Place, frozenset[Place]],
        has_owner: Callable[[Frontend], bool],
        has_nodeports: Callable[[bytes], bool],
    ) -> None:
        self._serving = serving
        self._has_owner = has_owner
        self._has_nodeports = has_nodeports
        self._nodeports_at: dict[bytes, bool] = {}
        self.ports = frozenset(port for _, port in serving)
        """Of all frontends to check."""

    def is_stale(self, frontend: Place, backend: Place) -> bool:
        """True if this client's backend no longer serves the frontend."""
        serving = self._serving.get(frontend)
        if serving is None:
            serving = self._serving_nodeport(*frontend)
        return serving is not None and backend not in serving

    def _serving_nodeport(self, address: bytes, port: int) -> frozenset[Place] | None:
        serving = self._serving.get((_ANY[family(address)], port))
        if serving is None or self._has_owner(Frontend(address, port, IPPROTO_UDP)):
            return None
        if address not in self._nodeports_at:
            self._nodeports_at[address] = self._has_nodeports(address)
        return serving if self._nodeports_at[address] else None
