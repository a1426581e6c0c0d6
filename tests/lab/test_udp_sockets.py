"""UDP sockets of other processes: connected anew in place, or closed."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bpfsvc.base.address import pack
from bpfsvc.datapath.netlink.sock_diag import UdpSocket, destroy_udp, udp_sockets
from bpfsvc.datapath.socket_owners import connect_anew
from bpfsvc.devtools.lab.patience import stretched
from bpfsvc.services.entries import Place

OWNER = """
import socket, sys
made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
made.connect(("127.0.0.1", int(sys.argv[1])))
print(made.getsockname()[1], flush=True)
for line in sys.stdin:
    try:
        made.send(b"question")
        print(made.getpeername()[1], flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
"""


# What the agent's container may do, as far as other processes matter.
MOVER = """
import sys
from bpfsvc.datapath.netlink.sock_diag import udp_sockets
from bpfsvc.datapath.socket_owners import connect_anew
peer, port, to = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
found = {each: (peer, to) for each in udp_sockets() if each.peer == (peer, port)}
print(len(found), len(connect_anew(found)))
"""
ALLOWED = ["setpriv", "--bounding-set=-all,+sys_ptrace,+net_admin", "--inh-caps=-all", "--"]
ANOTHER_USER = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]


@pytest.fixture
def servers() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as two,
    ):
        for server_ in (made, two):
            server_.settimeout(stretched(5))
            server_.bind(("127.0.0.1", 0))
        yield made, two


@pytest.fixture
def user() -> list[str]:
    """The command with which the owner is started: here by the same user."""
    return []


@pytest.fixture
def owner(
    servers: tuple[socket.socket, socket.socket], user: list[str]
) -> Iterator[subprocess.Popen[str]]:
    """A process with a socket that is connected to the first server."""
    with subprocess.Popen(
        [*user, "/usr/bin/python3", "-c", OWNER, str(servers[0].getsockname()[1])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process


def its_socket(owner: subprocess.Popen[str], server: socket.socket) -> tuple[UdpSocket, int]:
    """Return the owner's socket, and its port."""
    assert owner.stdout
    port = int(owner.stdout.readline())
    peer = place_of(server)
    return next(socket_ for socket_ in udp_sockets() if socket_.peer == peer), port


def sends(owner: subprocess.Popen[str]) -> str:
    """Let the owner send; return the port of its peer, or the error."""
    assert owner.stdin
    assert owner.stdout
    owner.stdin.write("send\n")
    owner.stdin.flush()
    return owner.stdout.readline().strip()


def place_of(server: socket.socket) -> Place:
    return pack("127.0.0.1"), server.getsockname()[1]


def test_a_socket_of_another_process_is_connected_anew(
    owner: subprocess.Popen[str], servers: tuple[socket.socket, socket.socket]
) -> None:
    first, two = servers
    moved, port = its_socket(owner, first)
    assert connect_anew({moved: place_of(two)}) == {moved}
    assert sends(owner) == str(two.getsockname()[1])
    assert two.recvfrom(100) == (b"question", ("127.0.0.1", port))


@pytest.mark.parametrize("user", [[], ANOTHER_USER], ids=["of root", "of another user"])
def test_the_right_to_debug_is_enough(
    owner: subprocess.Popen[str], servers: tuple[socket.socket, socket.socket]
) -> None:
    """Without the rights to pass over the permissions of files, which list a process' files."""
    first, two = servers
    _, port = its_socket(owner, first)
    peer, number = place_of(first)
    done = subprocess.run(
        [*ALLOWED, sys.executable, "-c", MOVER, peer.hex(), str(number), str(place_of(two)[1])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("1 1\n", "")
    assert sends(owner) == str(two.getsockname()[1])
    assert two.recvfrom(100) == (b"question", ("127.0.0.1", port))


def test_a_socket_whose_number_is_anothers_by_now_stays(
    owner: subprocess.Popen[str], servers: tuple[socket.socket, socket.socket]
) -> None:
    first, two = servers
    moved, _ = its_socket(owner, first)
    former = moved._replace(sockid=moved.sockid[:-8] + bytes(8))
    assert connect_anew({former: place_of(two)}) == set()
    assert sends(owner) == str(first.getsockname()[1])


def test_a_socket_is_closed(
    owner: subprocess.Popen[str], servers: tuple[socket.socket, socket.socket]
) -> None:
    moved, _ = its_socket(owner, servers[0])
    assert destroy_udp([moved]) == 1
    assert sends(owner) == "Destination address required"
