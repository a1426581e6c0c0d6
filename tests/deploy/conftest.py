"""What tests of the manifests share."""

from __future__ import annotations

import pytest

from tests.deploy.kustomize import Object
from tests.deploy.rendered import OVERLAYS, overlay, pod


@pytest.fixture(params=OVERLAYS)
def agent(request: pytest.FixtureRequest) -> Object:
    """The pod of an agent, of each overlay."""
    return pod(overlay(request.param))
