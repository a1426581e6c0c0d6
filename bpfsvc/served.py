"""Who serves which frontends of UDP: whether a client's backend is still a good place for it.

A flow or a socket may be older than the service port that has its frontend today: the port was
given another name, or the Service deleted and made anew. So what is asked is where the client sent
to, as kube-proxy asks it of the original destination of conntrack's entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from socket import IPPROTO_UDP

from bpfsvc.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, family
from bpfsvc.rows import Frontend, Place

_ANY = {4: ANY_NODE_ADDRESS_V4, 6: ANY_NODE_ADDRESS_V6}


class Served:
    """Frontends that are looked at, and who serves them.

    ``serving``: by address and port, those of NodePorts under the wildcard address;
    ``is_taken(frontend)``: whether any Service at all has exactly this frontend;
    ``takes_nodeports(address)``: whether NodePorts are accepted at an address.
    """

    def __init__(
        self,
        serving: Mapping[Place, frozenset[Place]],
        is_taken: Callable[[Frontend], bool],
        takes_nodeports: Callable[[bytes], bool],
    ) -> None:
        self._serving = serving
        self._is_taken = is_taken
        self._takes_nodeports = takes_nodeports
        self._node: dict[bytes, bool] = {}
        self.ports = frozenset(port for _, port in serving)
        """Of all frontends that are looked at."""

    def is_astray(self, frontend: Place, backend: Place) -> bool:
        """Whether who sent to a frontend and was led to a backend should be led elsewhere."""
        serving = self._serving.get(frontend)
        if serving is None:
            serving = self._serving_nodeport(*frontend)
        return serving is not None and backend not in serving

    def _serving_nodeport(self, address: bytes, port: int) -> frozenset[Place] | None:
        serving = self._serving.get((_ANY[family(address)], port))
        if serving is None or self._is_taken(Frontend(address, port, IPPROTO_UDP)):
            return None
        if address not in self._node:
            self._node[address] = self._takes_nodeports(address)
        return serving if self._node[address] else None
