"""What is taken out of a container's configuration where cgroup2 has no controllers."""

from __future__ import annotations

from typing import Any

from tests.cluster.runc import without_limits


def test_limits_go_and_the_rules_for_devices_stay() -> None:
    devices = [{"allow": False, "access": "rwm"}]
    config: dict[str, Any] = {
        "process": {"args": ["sh"]},
        "linux": {"resources": {"cpu": {"shares": 2}, "memory": {}, "devices": devices}},
    }
    without_limits(config)
    assert config["linux"] == {"resources": {"devices": devices}}
    assert config["process"] == {"args": ["sh"]}


def test_a_container_without_limits_stays_as_it_is() -> None:
    config: dict[str, Any] = {"linux": {"namespaces": []}}
    without_limits(config)
    assert config == {"linux": {"namespaces": []}}
