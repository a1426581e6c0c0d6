"""The agents' metrics become the figures of a run."""

from __future__ import annotations

import io
import urllib.request
from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock, patch
from urllib.error import URLError

from tests.cluster.figures import Sample, parse, sample, used

METRICS = """\
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.5e9
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 6.291456e+07
# TYPE process_cpu_seconds counter
process_cpu_seconds_total 4.5
# TYPE kubeproxy_sync_proxy_rules_duration_seconds histogram
kubeproxy_sync_proxy_rules_duration_seconds_bucket{ip_family="IPv4",le="+Inf"} 3.0
kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"} 3.0
kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv4"} 0.1
kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv6"} 4.0
kubeproxy_sync_proxy_rules_duration_seconds_sum{ip_family="IPv6"} 0.1
# TYPE bpfsvc_api_errors counter
bpfsvc_api_errors_total{resource="services"} 1.0
bpfsvc_api_errors_total{resource="nodes"} 1.0
# TYPE bpfsvc_fast_forwarded counter
bpfsvc_fast_forwarded_total 500.0
"""
SAMPLE = Sample(
    started=1.5e9,
    resident_bytes=60 * 2**20,
    cpu_seconds=4.5,
    syncs=7,
    api_errors=2,
    fast_packets=500,
)


def test_metrics_of_all_families_and_resources_are_added() -> None:
    assert parse(METRICS) == SAMPLE


def test_a_run_has_what_was_added_since_its_start() -> None:
    after = {
        "n1": replace(SAMPLE, cpu_seconds=6.5, syncs=9, fast_packets=800),
        "n2": replace(SAMPLE, resident_bytes=70 * 2**20, syncs=20, api_errors=3),
    }
    assert used({"n1": SAMPLE, "n2": SAMPLE}, after) == {
        "MiB": 70,
        "CPU s": 2.0,
        "syncs": 13,
        "API errors": 1,
        "fast packets": 300,
        "restarts": 0,
    }


def test_an_agent_that_started_again_counts_from_its_start() -> None:
    after = {"n1": replace(SAMPLE, started=1.6e9, cpu_seconds=1.0, syncs=1, api_errors=0)}
    figures = used({"n1": SAMPLE}, after)
    assert (figures["CPU s"], figures["syncs"], figures["restarts"]) == (1.0, 1, 1)


def test_an_agent_that_just_starts_is_waited_for() -> None:
    cluster = Mock(nodes=["n1"], inside=lambda _node: nullcontext())
    answers = [URLError("connection refused"), io.BytesIO(METRICS.encode())]
    with patch.object(urllib.request, "urlopen", Mock(side_effect=answers)):
        assert sample(cluster) == {"n1": SAMPLE}


def test_kube_proxy_and_an_agent_without_a_sync_have_figures_too() -> None:
    names = ("kubeproxy_", "bpfsvc_", "# ")
    lines = [line for line in METRICS.splitlines(keepends=True) if not line.startswith(names)]
    assert parse("".join(lines)) == replace(SAMPLE, syncs=0, api_errors=0, fast_packets=0)
