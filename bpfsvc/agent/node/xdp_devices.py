"""Which interfaces get XDP: those by which external clients reach this node. Pure.

``auto`` chooses interfaces with a driver that may run XDP natively: hardware, and bonds, which hand
the program on to their ports. It never chooses the veth of a pod, a bridge, a VLAN or a tunnel: a
packet is handled where it enters the machine, or by the programs at the tc hooks.

A name without wildcards is always chosen, as with ``--devices``: a veth pair in a lab, for example.
But on a veth pair packets of local sockets have no checksum yet, and frames only arrive where the
other end uses GRO: the user who names a veth is responsible for both.
"""

from __future__ import annotations

from collections.abc import Sequence

from bpfsvc.datapath.netlink.devices import Device, Interfaces, bond_ports, select_by_name

AUTO = "auto"

_NATIVE = frozenset({"", "bond"})
"""Kinds of interfaces; hardware has an empty one."""

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
"""Drivers that send redirected packets, in all kernels from 6.1 on."""

_GLOBAL = 0  # RT_SCOPE_UNIVERSE


def choose(
    network: Interfaces, attached: Sequence[Device], patterns: Sequence[str]
) -> tuple[Device, ...]:
    """Return the interfaces of ``attached`` that get XDP.

    ``attached`` have our programs at their tc hooks, to which XDP passes most first packets.
    ``patterns`` are ``auto`` and patterns of :func:`select_by_name`; without any, no XDP.
    """
    if not patterns:
        return ()
    names = [pattern for pattern in patterns if pattern != AUTO]

    def rule(device: Device) -> bool:
        return _faces_outside(device, network) and not _unsuitable(device, network)

    return tuple(
        device
        for device in select_by_name(attached, names, rule)
        if device.has_ethernet and device.mac
    )


def unsuitable(
    network: Interfaces, attached: Sequence[Device], patterns: Sequence[str]
) -> dict[str, str]:
    """Return why ``auto`` does not choose interfaces of default routes, by name."""
    if AUTO not in patterns:
        return {}
    chosen = choose(network, attached, patterns)
    defaults = {network.default_v4, network.default_v6} - {0}
    return {
        device.name: reason
        for device in attached
        if device not in chosen and {device.index, device.master} & defaults
        if (reason := _unsuitable(device, network))
    }


def by_driver(network: Interfaces, served: Sequence[Device]) -> dict[int, Device]:
    """Return, by index of the interface of a driver, the interface that routes name."""
    routed = {device.index: device for device in served}
    for device in served:
        routed |= {port.index: device for port in bond_ports(network.devices, device)}
    return routed


def takes_redirected_only(device: Device) -> bool:
    """True if XDP_TX would lose packets that it sends by ``device``.

    A veth wakes its other end only if that end runs XDP too (``veth_xdp_flush`` in the kernel's
    ``drivers/net/veth.c``); GRO, with which that end receives frames too, does not count.
    """
    return device.kind == "veth"


def takes_redirected(device: Device, driver: str) -> bool:
    """True if ``device`` sends packets that are redirected to it (``ndo_xdp_xmit``).

    Otherwise the packet is lost. Some drivers run XDP without it, so only listed drivers count.
    """
    return device.kind == "veth" or driver in _SENDING


def _faces_outside(device: Device, network: Interfaces) -> bool:
    return device.index in (network.default_v4, network.default_v6) or any(
        address.scope == _GLOBAL for address in device.addresses
    )


def _unsuitable(device: Device, network: Interfaces) -> str:
    """Return why ``auto`` does not choose an interface; "" if it may."""
    if device.master:
        names = {other.index: other.name for other in network.devices}
        return f"it is part of {names.get(device.master, 'another interface')}"
    if device.kind not in _NATIVE:
        return f"no driver runs XDP for a {device.kind}"
    return "" if device.has_ethernet else "it has no Ethernet header"
