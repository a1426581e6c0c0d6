"""The paths of the metrics server, and what they answer."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bpfsvc import __version__
from bpfsvc.http.metrics_server import AgentInfo, MetricsServer
from bpfsvc.metrics.recorder import Metrics
from tests.http.asking import ask, body

CONFIGURATION = {
    "kubeproxy.config.k8s.io": {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
    }
}


@pytest.fixture(params=[False, True], ids=["without profiling", "with profiling"])
def profiling(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def port(profiling: bool) -> Iterator[int]:
    info = AgentInfo(
        mode="iptables",
        configuration=CONFIGURATION,
        flags={"masquerade-all": True, "hostname-override": "", "devices": ("eth*", "!eth1")},
        checks={"healthz": lambda: False, "livez": lambda: True},
        profiling=profiling,
        started=0,
    )
    server = MetricsServer(("127.0.0.1", 0), Metrics(), info, print)
    server.start()
    yield server.port
    server.stop()


def text(port: int, path: str) -> str:
    answer = ask(port, path)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    return body(answer).decode()


def test_metrics_are_text_of_prometheus(port: int) -> None:
    answer = ask(port, "/metrics", "Accept: application/openmetrics-text;version=1.0.0,*/*;q=0.1")
    assert b"\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in answer
    assert "bpfsvc_build_info" in {family.name for family in parse(body(answer).decode())}


@pytest.mark.parametrize(
    ("accepted", "packed"),
    [
        ("gzip", True),
        ("deflate, gzip;q=0.5", True),
        ("gzip;q=0", False),
        ("identity", False),
        ("", False),
    ],
)
def test_metrics_are_compressed_if_asked(port: int, accepted: str, packed: bool) -> None:
    answer = ask(port, "/metrics", f"Accept-Encoding: {accepted}")
    assert (b"\r\nContent-Encoding: gzip\r\n" in answer) == packed
    plain = gzip.decompress(body(answer)) if packed else body(answer)
    assert list(parse(plain.decode()))


def test_health_checks_show_their_results_and_count_them(port: int) -> None:
    text(port, "/metrics/slis")
    families = {item.name: item for item in parse(text(port, "/metrics/slis"))}
    now = {
        (item.labels["name"], item.labels["type"]): item.value
        for item in families["kubernetes_healthcheck"].samples
    }
    assert now == {("ping", "healthz"): 1, ("proxy", "healthz"): 0, ("proxy", "livez"): 1}
    counts = {
        (item.labels["type"], item.labels["status"]): item.value
        for item in families["kubernetes_healthchecks"].samples
        if item.labels["name"] == "proxy"
    }
    assert counts == {("healthz", "error"): 2, ("livez", "success"): 2}


def test_the_mode_is_returned_exactly(port: int) -> None:
    answer = ask(port, "/proxyMode")
    assert body(answer) == b"iptables"
    assert b"\r\nContent-Type: text/plain; charset=utf-8\r\n" in answer


def test_the_server_is_alive(port: int) -> None:
    assert text(port, "/healthz") == "ok"


def test_the_configuration_is_shown(port: int) -> None:
    answer = ask(port, "/configz")
    assert json.loads(body(answer)) == CONFIGURATION
    assert b"\r\nContent-Type: application/json\r\n" in answer


def test_flags_are_shown(port: int) -> None:
    lines = text(port, "/flagz").splitlines()
    assert lines[0] == "bpfsvc flagz"
    assert lines[3:] == ["devices=eth*,!eth1", "hostname-override=", "masquerade-all=true"]


def test_the_state_is_shown(port: int) -> None:
    page = text(port, "/statusz")
    assert "\nStarted: Thu Jan 01 00:00:00 UTC 1970\n" in page
    assert f"\nBinary version: {__version__}\n" in page
    assert " /metrics " in page


def test_profiles_are_there_only_if_enabled(port: int, profiling: bool) -> None:
    for path in ("/debug/pprof/", "/debug/pprof/goroutine", "/debug/pprof/heap"):
        assert ask(port, path).startswith(b"HTTP/1.1 200 " if profiling else b"HTTP/1.1 404 ")
    if profiling:
        assert "MainThread" in text(port, "/debug/pprof/goroutine")
        assert "Rss:" in text(port, "/debug/pprof/heap")


def test_without_metrics_their_library_is_not_loaded() -> None:
    """prometheus_client is loaded with the metrics server, and not before."""
    script = (
        "import sys, bpfsvc.metrics.observer, bpfsvc.http.healthz\n"
        "import bpfsvc.services.rules.no_local_endpoints\n"
        "before = 'prometheus_client' in sys.modules\n"
        "import bpfsvc.http.metrics_server, bpfsvc.metrics.recorder as recorder\n"
        "recorder.Metrics().scrape()\n"
        "print(before, 'prometheus_client' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["False", "True"]
