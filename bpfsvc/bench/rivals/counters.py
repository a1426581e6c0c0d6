"""Counters of packets by name (nfacct), to which two of kube-proxy's iptables rules refer.

kube-proxy makes them by netlink too; where it cannot, it leaves one of the rules out, and in the
other the reference. A counter belongs to a network namespace.
"""

from __future__ import annotations

import socket
import struct

from bpfsvc.lab.namespace import Namespace

LOCALHOST = "localhost_nps_accepted_pkts"
INVALID = "ct_state_invalid_dropped_pkts"

# linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nfnetlink_acct.h
_NETLINK_NETFILTER = 12
_NEW = 7 << 8  # NFNL_SUBSYS_ACCT, NFNL_MSG_ACCT_NEW
_FLAGS = 0x405  # NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE
_NAME = 1  # NFACCT_NAME
_HEADER = struct.Struct("=IHHII")


def make(place: Namespace) -> None:
    """Make both in a namespace that has none; ``OSError`` if the kernel knows none."""
    with place.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
        for name in (LOCALHOST, INVALID):
            kernel.send(_request(name))
            answer = kernel.recv(4096)
            (error,) = struct.unpack_from("=i", answer, _HEADER.size)
            if error:
                raise OSError(-error, f"the counter {name} could not be made")


def _request(name: str) -> bytes:
    text = name.encode() + b"\0"
    attribute = struct.pack("=HH", 4 + len(text), _NAME) + text + bytes(-len(text) % 4)
    body = struct.pack("=BBH", socket.AF_UNSPEC, 0, 0) + attribute
    return _HEADER.pack(_HEADER.size + len(body), _NEW, _FLAGS, 0, 0) + body
