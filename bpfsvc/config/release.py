"""The release of Kubernetes, as far as the meaning of kube-proxy's file depends on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bpfsvc.config.config import ProxyMode

Release = tuple[int, int]
"""Major and minor number: (1, 37)."""

AskRelease = Callable[[str, str], Release | None]
"""Asks the API server of a kubeconfig (empty: of the pod) and ``--master`` for its release."""

_NFTABLES: Release = (1, 40)
"""From this release on, kube-proxy's mode is nftables where none is given (KEP-5343)."""


def read_release(version: Mapping[str, str]) -> Release | None:
    """Return the release of a server's ``/version``, whose minor number may end with a plus."""
    major, minor = version.get("major", ""), version.get("minor", "").removesuffix("+")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


def release_text(release: Release) -> str:
    """Return a release as people write it: ``1.37``."""
    return "{}.{}".format(*release)


def mode_of_empty(release: Release | None) -> ProxyMode:
    """Return what ``mode: ""`` means to kube-proxy of a release; None: it is not known."""
    return "nftables" if release and release >= _NFTABLES else "iptables"


def empty_mode_text(release: Release | None) -> str:
    """Return what ``mode: ""`` means, and why."""
    mode = mode_of_empty(release)
    if release is None:
        newer = release_text(_NFTABLES)
        return f"{mode} to kube-proxy before {newer}; the release of the API server is not known"
    return f"{mode} to kube-proxy {release_text(release)}, the release of the API server"
