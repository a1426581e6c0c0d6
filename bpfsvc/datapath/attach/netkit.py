"""The programs of others at netkit's own hooks (Linux 6.7 and later).

A netkit pair is an alternative to a veth pair: the *primary* device is on the node, its *peer* in
the pod. Each has a hook of its own in the driver, and both hooks are reached by the primary. Our
programs are at the tc hooks of the primary, as on a veth. In the driver (drivers/net/netkit.c of
Linux), a packet of the pod meets the programs of the peer before it meets our ingress, and a packet
to the pod meets those of the primary after our egress. The fast path would bypass the latter, and
the former may send packets elsewhere.
"""

from __future__ import annotations

import errno

from bpfsvc.datapath.attach import links
from bpfsvc.datapath.netlink.hooks import Hook

ATTACH_TYPES = {Hook.INGRESS: 55, Hook.EGRESS: 54}
"""BPF_NETKIT_PEER, BPF_NETKIT_PRIMARY; by the tc hook of the primary that sees the same packets."""

_NONE_FOUND = {
    errno.EINVAL,
    errno.ENXIO,
    errno.ENODEV,
    errno.ENOENT,
    errno.EPERM,
    errno.EACCES,
    errno.EOPNOTSUPP,
}
"""No netkit in this kernel, another kind of interface, no such interface, no program, no
permission or the peer's end, a device without a peer."""


def programs(ifindex: int, hook: Hook) -> tuple[int, ...]:
    """Return the ids of the programs at a hook of netkit; none on other interfaces."""
    return links.programs(ifindex, ATTACH_TYPES[hook], _NONE_FOUND)
