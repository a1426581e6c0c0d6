"""What rows depend on beside the objects: which node this is, and how it is set up."""

from __future__ import annotations

from dataclasses import dataclass

from bpfsvc.address import family, pack

_PLACEHOLDERS = {4: pack("127.0.0.1"), 6: pack("::1")}
"""What kube-proxy takes for the address of a node that it does not know."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What endpoints and clients are compared with.

    ``zone`` is empty when the node names none; ``addresses`` are packed, those of the Node object
    in its order of preference.
    """

    name: str
    zone: str = ""
    addresses: tuple[bytes, ...] = ()

    def primary(self, of_family: int) -> bytes:
        """Give the node's address in family 4 or 6: the first it has, else the loopback one."""
        return primary_address(self.addresses, of_family) or _PLACEHOLDERS[of_family]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """Settings that change rows.

    * ``detector_v4``, ``detector_v6``: whether clients can be told to be pods of this node.
    * ``masquerade_all``: masquerade everything that goes to a cluster IP.
    * ``allow_external_ips``: answer on ``spec.externalIPs``.
    * ``source_ranges_for_all``: ``loadBalancerSourceRanges`` hold for node ports and external IPs
      as well.
    """

    detector_v4: bool = True
    detector_v6: bool = True
    masquerade_all: bool = False
    allow_external_ips: bool = True
    source_ranges_for_all: bool = False

    def has_detector(self, of_family: int) -> bool:
        """Whether pods can be recognised in family 4 or 6."""
        return self.detector_v4 if of_family == 4 else self.detector_v6


def primary_address(addresses: tuple[bytes, ...], of_family: int) -> bytes | None:
    """Give the first address of a family."""
    return next((one for one in addresses if family(one) == of_family), None)
