"""One network namespace with a name: its netlink connection, its settings, its interfaces.

The calling thread enters the namespace for a moment (``entered``): a socket, a netlink connection
or a child process made there stays there. That takes microseconds; a helper process for each
namespace would take 20 ms of CPU each.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyroute2 import IPRoute

from bpfsvc.base import syscalls
from bpfsvc.devtools.lab import sandbox

_OWN = "/proc/thread-self/ns/net"
_PROC_SYS = Path("/proc/sys")

SETTINGS = {
    # Addresses are usable at once, and the kernel sends nothing by itself.
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/default/dad_transmits": "0",
    "net/ipv6/conf/default/router_solicitations": "0",
    "net/ipv6/conf/default/accept_ra": "0",
    # Otherwise a full-rate load would use up the client's ports within seconds.
    "net/ipv4/tcp_tw_reuse": "1",
}


class NetworkNamespace:
    """The network namespace at ``/run/netns/<prefix><name>``.

    ``make``: the namespace is made, and ``FileExistsError`` raised if the name is taken. Otherwise
    it exists, and ``FileNotFoundError`` or ``OSError`` is raised if it does not.
    """

    def __init__(self, name: str, *, prefix: str = "", make: bool = False) -> None:
        self.name = name
        self.prefix = prefix
        self.path = sandbox.NETNS_ROOT / (prefix + name)
        self._netlink: IPRoute | None = None
        self.fd = self._made() if make else os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def _made(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch(exist_ok=False)
        with _restored():
            syscalls.unshare(syscalls.CLONE_NEWNET)
            syscalls.mount(_OWN, str(self.path), None, syscalls.MS_BIND)
            sandbox.loopback_up()
            for key, value in SETTINGS.items():
                (_PROC_SYS / key).write_text(value)
            return os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Move the calling thread into the namespace, and back at the end."""
        with _restored():
            syscalls.setns(self.fd, syscalls.CLONE_NEWNET)
            yield

    @property
    def netlink(self) -> IPRoute:
        """The rtnetlink connection, opened when first used; for one thread at a time."""
        if self._netlink is None:
            with self.entered():
                self._netlink = IPRoute()
        return self._netlink

    def sysctl(self, key: str, value: object = None) -> str:
        """Read, after writing ``value`` if given, a setting such as ``net.ipv4.ip_forward``.

        Parts may be separated by ``/`` instead where a name contains a dot.
        """
        file = _PROC_SYS / (key if "/" in key else key.replace(".", "/"))
        with self.entered():
            if value is not None:
                file.write_text(str(value))
            return file.read_text().strip()

    def index(self, interface: str) -> int:
        """Return an interface's index; ``OSError`` if there is none of that name."""
        with self.entered():
            return socket.if_nametoindex(interface)

    def interfaces(self) -> list[str]:
        """Return the names of the interfaces."""
        with self.entered():
            return [name for _, name in socket.if_nameindex()]

    def release(self) -> None:
        """Close the connection and the descriptor; the namespace stays."""
        if self._netlink is not None:
            self._netlink.close()
            self._netlink = None
        os.close(self.fd)

    def close(self) -> None:
        """Remove the name; the namespace ends with its last process."""
        self.release()
        syscalls.unmount(str(self.path))
        self.path.unlink()


@contextmanager
def _restored() -> Iterator[None]:
    original = os.open(_OWN, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        syscalls.setns(original, syscalls.CLONE_NEWNET)
        os.close(original)
