"""What can go wrong, for people."""

from __future__ import annotations

from bpfsvc.base.errors import BpfsvcError


class ClusterError(BpfsvcError):
    """The cluster cannot do what was requested."""
