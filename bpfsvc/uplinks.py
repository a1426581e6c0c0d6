"""Which interfaces XDP shall serve: those by which the outside reaches this node. Pure.

``auto`` takes what has a driver that may run XDP natively: hardware, and bonds, which hand the
program on to their ports. Never pods' ends of a cable, bridges, VLANs or tunnels: a packet shall be
taken where it enters the machine, or by the programs at the tc hooks.

A name without wildcards insists, as with ``--devices``: a cable of a lab, say. But a cable shows
packets of local sockets as those left them, whose checksum is not computed yet, and takes frames
only where its other end uses GRO: whoever names one sees to both.
"""

from __future__ import annotations

from collections.abc import Sequence

from bpfsvc.datapath.netlink.devices import Device, Network, bundled, narrowed

AUTO = "auto"

_NATIVE = frozenset({"", "bond"})
"""Kinds of interfaces, of which hardware has none."""

_SENDING = frozenset(
    {
        "bnxt_en",
        "ena",
        "i40e",
        "ice",
        "igb",
        "igc",
        "ixgbe",
        "mlx5_core",
        "qede",
        "sfc",
        "virtio_net",
    }
)
"""Drivers that send what is redirected to them, in all kernels from 6.1 on."""

_GLOBAL = 0  # RT_SCOPE_UNIVERSE


def choose(
    network: Network, attached: Sequence[Device], patterns: Sequence[str]
) -> tuple[Device, ...]:
    """Give the interfaces of ``attached`` that XDP shall serve.

    ``attached`` have our programs at their tc hooks, to which XDP leaves most first packets.
    ``patterns`` are ``auto`` and those of :func:`narrowed`; without any there is no XDP.
    """
    if not patterns:
        return ()
    names = [pattern for pattern in patterns if pattern != AUTO]

    def rule(device: Device) -> bool:
        return _faces_outside(device, network) and not _unfit(device, network)

    return tuple(
        device for device in narrowed(attached, names, rule) if device.has_ethernet and device.mac
    )


def unfit(network: Network, attached: Sequence[Device], patterns: Sequence[str]) -> dict[str, str]:
    """Say why ``auto`` takes an interface of a default route no more than others, by its name."""
    if AUTO not in patterns:
        return {}
    chosen = choose(network, attached, patterns)
    defaults = {network.default_v4, network.default_v6} - {0}
    return {
        device.name: reason
        for device in attached
        if device not in chosen and {device.index, device.master} & defaults
        if (reason := _unfit(device, network))
    }


def rows(network: Network, served: Sequence[Device]) -> dict[int, Device]:
    """Give the interfaces that drivers name, and for each the one that routes know."""
    found = {device.index: device for device in served}
    for device in served:
        found |= {port.index: device for port in bundled(network.devices, device)}
    return found


def takes_redirected_only(device: Device) -> bool:
    """Whether XDP_TX would lose what it sends by ``device``.

    A cable then wakes its other end only if that runs XDP too (``veth_xdp_flush`` in the kernel's
    ``drivers/net/veth.c``); GRO, with which the other end takes frames as well, does not count.
    """
    return device.kind == "veth"


def takes_redirected(device: Device, driver: str) -> bool:
    """Whether ``device`` sends what another interface redirects to it (``ndo_xdp_xmit``).

    Where it does not, the packet is lost. Some drivers run XDP and lack that, so those that are
    known to have it are named.
    """
    return device.kind == "veth" or driver in _SENDING


def _faces_outside(device: Device, network: Network) -> bool:
    return device.index in (network.default_v4, network.default_v6) or any(
        each.scope == _GLOBAL for each in device.addresses
    )


def _unfit(device: Device, network: Network) -> str:
    """Say why ``auto`` leaves an interface alone; "" if it does not."""
    if device.master:
        names = {other.index: other.name for other in network.devices}
        return f"it is part of {names.get(device.master, 'another interface')}"
    if device.kind not in _NATIVE:
        return f"no driver runs XDP for a {device.kind}"
    return "" if device.has_ethernet else "it has no Ethernet header"
