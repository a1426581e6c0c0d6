"""What the agents used in a run: memory, CPU time, syncs, errors of the API."""

from __future__ import annotations

import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from urllib.error import URLError

from prometheus_client.parser import text_string_to_metric_families

from bpfsvc.devtools.lab.patience import wait
from tests.cluster.cluster import Cluster

_METRICS = "http://127.0.0.1:10249/metrics"
_START_SECONDS = 60.0


@dataclass(frozen=True)
class Sample:
    """Of one agent. Totals are since its start, ``started`` in seconds since 1970."""

    started: float
    resident_bytes: float
    cpu_seconds: float
    syncs: float
    api_errors: float
    fast_packets: float


def sample(cluster: Cluster) -> dict[str, Sample]:
    """Return what the agents' metrics say, by node; an agent that just starts is waited for."""
    samples: dict[str, Sample] = {}

    def taken(node: str) -> bool:
        with (
            suppress(URLError),
            cluster.inside(node),
            urllib.request.urlopen(_METRICS, timeout=10) as answer,
        ):
            samples[node] = parse(answer.read().decode())
        return node in samples

    for node in cluster.nodes:
        wait(partial(taken, node), f"metrics of {node} at {_METRICS}", _START_SECONDS)
    return samples


def parse(text: str) -> Sample:
    """Return what one agent's metrics say."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            sums[one.name] = sums.get(one.name, 0.0) + one.value
    return Sample(
        started=sums["process_start_time_seconds"],
        resident_bytes=sums["process_resident_memory_bytes"],
        cpu_seconds=sums["process_cpu_seconds_total"],
        syncs=sums.get("kubeproxy_sync_proxy_rules_duration_seconds_count", 0.0),
        api_errors=sums.get("bpfsvc_api_errors_total", 0.0),
        fast_packets=sums.get("bpfsvc_fast_forwarded_total", 0.0),
    )


def used(before: dict[str, Sample], after: dict[str, Sample]) -> dict[str, object]:
    """Return the figures of a run, for the table: of the agent that used most of each."""
    kept = {node: each for node, each in before.items() if each.started == after[node].started}
    none = Sample(0, 0, 0, 0, 0, 0)
    pairs = [(kept.get(node, none), each) for node, each in after.items()]
    return {
        "MiB": round(max(now.resident_bytes for _, now in pairs) / 2**20),
        "CPU s": round(max(now.cpu_seconds - then.cpu_seconds for then, now in pairs), 1),
        "syncs": round(max(now.syncs - then.syncs for then, now in pairs)),
        "API errors": round(sum(now.api_errors - then.api_errors for then, now in pairs)),
        "fast packets": round(sum(now.fast_packets - then.fast_packets for then, now in pairs)),
        "restarts": len(after) - len(kept),
    }
