"""The cookie of this process's network namespace, by which programs know the node's own sockets."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from bpfsvc.base.errors import KernelError
from bpfsvc.datapath import syscall
from bpfsvc.datapath.bpf_map import Map
from bpfsvc.datapath.instructions import R0, R1, R2, R3, R4, STACK, Code
from bpfsvc.datapath.loader.creation import create_map, load_program
from bpfsvc.datapath.maps.layout import MapLayout, Record

_SO_NETNS_COOKIE = 71

_SOCK_ADDR, _AT_CONNECT4 = 18, 10
_UPDATE_ELEMENT, _GET_NETNS_COOKIE = 2, 122
_IP4, _PORT = 4, 24
"""Offsets in ``struct bpf_sock_addr``."""
_KEY_AT, _COOKIE_AT = -4, -16


def netns_cookie(cgroup: Callable[[], Path]) -> int:
    """Return the cookie. ``cgroup()``: a directory of a cgroup that this process is in or below.

    Before Linux 5.14 only programs can ask for a cookie, so there a program is attached to the
    cgroup for the time of one call. :class:`KernelError` if it cannot be.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            return int.from_bytes(
                asking.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder
            )
        except OSError as error:
            if error.errno != errno.ENOPROTOOPT:
                raise
    return cookie_by_program(cgroup())


def cookie_by_program(cgroup: Path) -> int:
    """Return the cookie, as a program learns it that sees a socket of this process connect."""
    try:
        cookies = Map(create_map("bpfsvc_cookie", _LAYOUT), "bpfsvc_cookie")
    except OSError as error:
        raise _failed(error) from error
    try:
        _have_noted(cookies, cgroup)
        (_, cookie), *_ = cookies.items()
    except OSError as error:
        raise _failed(error) from error
    finally:
        cookies.close()
    return int.from_bytes(cookie, sys.byteorder)


_LAYOUT = MapLayout("array", Record((("key", "I"),)), Record((("cookie", "Q"),)), 1, 0)


def _have_noted(cookies: Map, cgroup: Path) -> None:
    """Connect a UDP socket, which sends nothing, to an address that no other socket connects to."""
    address = bytes((127, *(1 + secrets.randbelow(126) for _ in range(3))))
    port = 1 + secrets.randbelow(65535)
    program = load_program(
        "bpfsvc_cookie", _SOCK_ADDR, _AT_CONNECT4, _noting(cookies.fd, address, port), "GPL"
    )
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        link = syscall.link_create(program, directory, _AT_CONNECT4)
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connecting:
                connecting.connect((socket.inet_ntoa(address), port))
        finally:
            os.close(link)
    finally:
        os.close(directory)
        os.close(program)


def _noting(cookies: int, address: bytes, port: int) -> bytes:
    """Return the program: it notes the cookie of a socket that connects there, and allows all."""
    code = Code()
    code.load(R2, R1, _IP4, 4)
    code.if_unlike(R2, int.from_bytes(address, sys.byteorder), "allow")
    code.load(R2, R1, _PORT, 4)
    code.if_unlike(R2, socket.htons(port), "allow")
    code.call(_GET_NETNS_COOKIE)
    code.store(STACK, _COOKIE_AT, R0)
    code.calculate(R2, "=", 0)
    code.store(STACK, _KEY_AT, R2, 4)
    code.map(R1, cookies)
    code.move(R2, STACK)
    code.calculate(R2, "+", _KEY_AT)
    code.move(R3, STACK)
    code.calculate(R3, "+", _COOKIE_AT)
    code.calculate(R4, "=", 0)
    code.call(_UPDATE_ELEMENT)
    code.mark("allow")
    code.leave(1)
    return code.finish()


def _failed(error: OSError) -> KernelError:
    return KernelError(f"the cookie of the network namespace cannot be read: {error.strerror}")
