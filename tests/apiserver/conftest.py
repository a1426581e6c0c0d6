"""API servers on this sandbox's loopback."""

from __future__ import annotations

from tests.apiserver.fixtures import api, certificates, tls_api
from tests.apiserver.pair_fixtures import pair, servers

__all__ = ["api", "certificates", "pair", "servers", "tls_api"]
