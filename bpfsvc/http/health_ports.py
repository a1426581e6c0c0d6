"""The ports of health checks: bound to, or steered here by the kernel."""

from __future__ import annotations

import selectors
import socket

from bpfsvc.base.address import ANY_NODE_ADDRESS_V4, ANY_NODE_ADDRESS_V6, unpack
from bpfsvc.base.address import family as family_of
from bpfsvc.http.port_owners import PortOwners
from bpfsvc.http.ports import ListenerKey, bind, destination, is_free
from bpfsvc.http.steered_port import SteeredListeners, port_taken


class BoundPorts:
    """Ports with a listener bound to each of them."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._listeners: dict[ListenerKey, socket.socket] = {}

    def open(self, key: ListenerKey) -> bool:
        """Listen at a port and return True; raise ``OSError`` if it is taken."""
        self._listeners[key] = opened = bind(unpack(key.address), key.port)
        self._selector.register(opened, selectors.EVENT_READ, lambda _: key)
        return True

    def close(self, key: ListenerKey) -> None:
        """Stop listening at a port."""
        closed = self._listeners.pop(key)
        self._selector.unregister(closed)
        closed.close()

    def release(self) -> bool:
        """Return False: a bound port can only be given up with its listener."""
        return False

    def close_all(self) -> None:
        """Close all listeners."""
        for key in list(self._listeners):
            self.close(key)


class SteeredPorts:
    """Ports with the same listeners: the kernel steers all connections there."""

    def __init__(
        self, selector: selectors.BaseSelector, listeners: SteeredListeners, owners: PortOwners
    ) -> None:
        self._listeners = listeners
        self._owners = owners
        self._keys: dict[tuple[bytes, int], ListenerKey] = {}
        for listener in listeners.sockets:
            selector.register(listener, selectors.EVENT_READ, self._find)

    def open(self, key: ListenerKey) -> bool:
        """Steer a port here; return False while the program that has the port is asked.

        Raises ``OSError`` if the port is another Service's, or another program's.
        """
        address = key.address, key.port
        if address in self._keys:
            raise port_taken()
        if not is_free(unpack(key.address), key.port):
            answers_for = self._owners.answers_for(key)
            if answers_for is None:
                return False
            if not answers_for:
                raise port_taken()
        self._keys[address] = key
        self._listeners.add(*address)
        return True

    def close(self, key: ListenerKey) -> None:
        """Steer no more connections to a port here."""
        address = key.address, key.port
        self._listeners.remove(*address)
        del self._keys[address]

    def release(self) -> bool:
        """Leave new connections to the programs that are bound to the ports; return True."""
        self._listeners.remove_all()
        return True

    def close_all(self) -> None:
        """Close the listeners."""
        self._listeners.close()

    def _find(self, client: socket.socket) -> ListenerKey | None:
        """Return the listener that a client connected to: of its address, or of the wildcard."""
        address, port = destination(client)
        anywhere = ANY_NODE_ADDRESS_V4 if family_of(address) == 4 else ANY_NODE_ADDRESS_V6
        return self._keys.get((address, port)) or self._keys.get((anywhere, port))
