"""What entries depend on beside the objects: which node this is, and how it is configured."""

from __future__ import annotations

from dataclasses import dataclass

from bpfsvc.base.address import family, pack
from bpfsvc.services.scheduling.schedulers import RANDOM, Scheduler

_PLACEHOLDERS = {4: pack("127.0.0.1"), 6: pack("::1")}
"""The address that kube-proxy uses for a node without a known address."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What endpoints and clients are compared with.

    ``zone`` is empty when the node has none; ``addresses`` are packed, in the Node object's order
    of preference.
    """

    name: str
    zone: str = ""
    addresses: tuple[bytes, ...] = ()

    def primary(self, of_family: int) -> bytes:
        """Return the node's first address in family 4 or 6; the loopback one if it has none."""
        return primary_address(self.addresses, of_family) or _PLACEHOLDERS[of_family]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Settings that change entries.

    * ``detector_v4``, ``detector_v6``: pods of this node can be identified in that family.
    * ``masquerade_all``: masquerade everything that goes to a cluster IP.
    * ``allow_external_ips``: answer on ``spec.externalIPs``.
    * ``source_ranges_for_all``: ``loadBalancerSourceRanges`` hold for node ports and external IPs
      as well.
    * ``scheduler``: of Services that name none.
    * ``vip_echo``: echo requests to the addresses of Services with endpoints are answered.
    """

    detector_v4: bool = True
    detector_v6: bool = True
    masquerade_all: bool = False
    allow_external_ips: bool = True
    source_ranges_for_all: bool = False
    scheduler: Scheduler = RANDOM
    vip_echo: bool = False

    def has_detector(self, of_family: int) -> bool:
        """True if pods can be identified in family 4 or 6."""
        return self.detector_v4 if of_family == 4 else self.detector_v6


def primary_address(addresses: tuple[bytes, ...], of_family: int) -> bytes | None:
    """Return the first address of a family; None if there is none."""
    return next((address for address in addresses if family(address) == of_family), None)
