"""API servers on this sandbox's loopback."""

from __future__ import annotations

from tests.apiserver.fixtures import api, certificates, tls_api

__all__ = ["api", "certificates", "tls_api"]
