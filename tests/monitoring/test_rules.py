"""Every alert fires on what it is for, and is quiet otherwise."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.monitoring.files import PROGRAMS, RUNBOOKS, alerts, rules

AGENT = 'job="kube-proxy",instance="192.0.2.1:10249"'


class Case(NamedTuple):
    """Series by name and labels, with a value a minute, that make an alert fire or not.

    After so many minutes it fires. It is quiet from a minute on.
    """

    bad: dict[str, str]
    good: dict[str, str]
    after: int
    quiet_from: int = 1


def metric(name: str, *labels: str) -> str:
    return f"{name}{{{','.join((AGENT, *labels))}}}"


def constant(value: float, minutes: int = 60) -> str:
    return f"{value}+0x{minutes}"


def growing(step: float, minutes: int = 60) -> str:
    return f"0+{step}x{minutes}"


def buckets(name: str, fast: float, slow: float, *labels: str) -> dict[str, str]:
    """Return a histogram in which so many events a minute take up to a second, or up to 60."""
    counts = {"1": fast, "60": fast + slow, "+Inf": fast + slow}
    return {
        metric(f"{name}_bucket", *labels, f'le="{bound}"'): growing(count)
        for bound, count in counts.items()
    }


BUILD = metric("bpfsvc_build_info", 'version="0.1.0"')
DROPPED = "bpfsvc_dropped_total"
FAILED = "bpfsvc_service_failed_connections_total"
ELSEWHERE = "bpfsvc_service_dropped_elsewhere_total"
CONNECT = "bpfsvc_service_connect_seconds"
OPEN = "bpfsvc_service_open_connections"
DIFFERENCES = "bpfsvc_shadow_differences_total"
DIFFERENT = 'namespace="shop",service="web",kind="other_backend"'
SERVICE = 'namespace="shop",name="web",port="http",protocol="TCP",ip_family="IPv4"'
RARE = SERVICE.replace("web", "rare")

CASES = {
    "BpfsvcAgentUnreachable": Case(
        {metric("up"): "1+0x5 0+0x40", BUILD: "1+0x5 _x40"},
        {metric("up"): constant(1), BUILD: constant(1), 'up{job="node",instance="b"}': constant(0)},
        20,
    ),
    "BpfsvcAgentsMissing": Case({metric("up"): constant(1)}, {BUILD: constant(1)}, 20),
    "BpfsvcAgentRestarts": Case(
        # It has ended once more a minute ago.
        {metric("process_start_time_seconds"): "100+300x38 stale", BUILD: "1+0x38 stale"},
        {
            metric("process_start_time_seconds"): "100+0x20 500+0x40",
            BUILD: constant(1),
            'process_start_time_seconds{job="other",instance="b"}': "100+300x60",
        },
        40,
    ),
    "BpfsvcVersionsDiffer": Case(
        {
            'bpfsvc_build_info{version="0.1.0"}': constant(1, 300),
            'bpfsvc_build_info{version="0.2.0"}': constant(1, 300),
        },
        {'bpfsvc_build_info{version="0.1.0",instance="a"}': constant(1, 300), BUILD: "1+0x300"},
        245,
    ),
    "BpfsvcApiServerLost": Case(
        {metric("bpfsvc_api_connected", 'resource="services"'): constant(0)},
        {metric("bpfsvc_api_connected", 'resource="services"'): "1+0x5 0+0x5 1+0x50"},
        15,
    ),
    "BpfsvcServingLastGood": Case(
        {metric("bpfsvc_last_good_in_use"): constant(1)},
        {metric("bpfsvc_last_good_in_use"): "1+0x5 0+0x50"},
        20,
    ),
    "BpfsvcProgramsRemoved": Case(
        {
            metric("bpfsvc_interfaces_lost_total"): "0+0x5 1+0x50",
            metric("bpfsvc_pins_lost_total"): constant(0),
        },
        {
            metric("bpfsvc_interfaces_lost_total"): constant(3),
            metric("bpfsvc_pins_lost_total"): constant(1),
        },
        10,
    ),
    "BpfsvcDrift": Case(
        {metric("bpfsvc_drift_rows_total"): "0+0x5 2+0x50"},
        {metric("bpfsvc_drift_rows_total"): constant(2)},
        10,
    ),
    "BpfsvcProgrammingStale": Case(
        {metric("bpfsvc_oldest_pending_change_age_seconds"): "0+0x3 30+60x50"},
        {metric("bpfsvc_oldest_pending_change_age_seconds"): "0+0x3 61 0+0x50"},
        10,
    ),
    "BpfsvcProgrammingSlow": Case(
        buckets("kubeproxy_network_programming_duration_seconds", 80, 20),
        buckets("kubeproxy_network_programming_duration_seconds", 1000, 1),
        20,
    ),
    "BpfsvcWatchSlow": Case(
        buckets("bpfsvc_watch_delay_seconds", 80, 20),
        buckets("bpfsvc_watch_delay_seconds", 1000, 1),
        20,
    ),
    "BpfsvcWritesSlow": Case(
        buckets("bpfsvc_write_delay_seconds", 80, 20),
        buckets("bpfsvc_write_delay_seconds", 1000, 1),
        20,
    ),
    "BpfsvcObjectsUnreadable": Case(
        {metric("bpfsvc_objects_unreadable"): constant(1)},
        {metric("bpfsvc_objects_unreadable"): "1+0x5 0+0x50"},
        15,
    ),
    "BpfsvcEndpointsFlap": Case(
        {metric("bpfsvc_endpoints_returned_total"): growing(3)},
        {metric("bpfsvc_endpoints_returned_total"): "0+0x5 8+0x10 16+0x50"},
        20,
    ),
    "BpfsvcServicesRefused": Case(
        {metric("bpfsvc_services_refused"): constant(2)},
        {metric("bpfsvc_services_refused"): constant(0)},
        5,
    ),
    "BpfsvcMapNearlyFull": Case(
        {
            metric("bpfsvc_map_entries", 'map="connections"'): constant(81),
            metric("bpfsvc_map_capacity", 'map="connections"'): constant(100),
        },
        {
            metric("bpfsvc_map_entries", 'map="connections"'): constant(79),
            metric("bpfsvc_map_capacity", 'map="connections"'): constant(100),
            metric("bpfsvc_map_entries", 'map="affinities"'): constant(100),
            metric("bpfsvc_map_capacity", 'map="affinities"'): constant(100),
        },
        15,
    ),
    "BpfsvcConntrackNearlyFull": Case(
        {
            metric("bpfsvc_nf_conntrack_entries"): constant(900),
            metric("bpfsvc_nf_conntrack_entries_limit"): constant(1000),
        },
        {
            metric("bpfsvc_nf_conntrack_entries"): constant(700),
            metric("bpfsvc_nf_conntrack_entries_limit"): constant(1000),
        },
        10,
    ),
    "BpfsvcPortsNearlyExhausted": Case(
        {
            metric("bpfsvc_busiest_source_ports"): constant(17_000),
            metric("bpfsvc_busiest_source_ports_limit"): constant(20_000),
        },
        {
            metric("bpfsvc_busiest_source_ports"): constant(15_000),
            metric("bpfsvc_busiest_source_ports_limit"): constant(20_000),
        },
        10,
    ),
    "BpfsvcPortsExhausted": Case(
        {metric(DROPPED, 'reason="masquerade_ports_exhausted"'): "0+0x5 9+0x50"},
        {
            metric(DROPPED, 'reason="masquerade_ports_exhausted"'): constant(9),
            metric(DROPPED, 'reason="source_range"'): growing(100),
        },
        8,
    ),
    "BpfsvcConnectionsFull": Case(
        {metric(DROPPED, 'reason="connections_full"'): "0+0x5 9+0x50"},
        {
            metric(DROPPED, 'reason="connections_full"'): constant(9),
            metric(DROPPED, 'reason="unknown_connection"'): growing(100),
        },
        8,
    ),
    "BpfsvcPacketsDropped": Case(
        {metric(DROPPED, 'reason="no_masquerade_address"'): growing(120)},
        {
            metric(DROPPED, 'reason="no_masquerade_address"'): growing(30),
            metric(DROPPED, 'reason="source_range"'): growing(6000),
            # Clients of a Service without endpoints, more than may be answered.
            metric(DROPPED, 'reason="icmp_limited"'): growing(6000),
        },
        20,
    ),
    "BpfsvcBackendsFail": Case(
        {
            metric("bpfsvc_service_connections_total", SERVICE): growing(600),
            metric(FAILED, SERVICE, 'reason="refused"'): growing(30),
            metric(FAILED, SERVICE, 'reason="unanswered"'): growing(30),
        },
        {
            metric("bpfsvc_service_connections_total", SERVICE): growing(6000),
            metric(FAILED, SERVICE, 'reason="refused"'): growing(60),
            # Three of four connections, but one in a minute.
            metric("bpfsvc_service_connections_total", RARE): growing(4),
            metric(FAILED, RARE, 'reason="refused"'): growing(3),
        },
        15,
    ),
    "BpfsvcConnectsSlow": Case(
        {
            metric(f"{CONNECT}_bucket", SERVICE, 'le="0.524288"'): growing(540),
            metric(f"{CONNECT}_count", SERVICE): growing(600),
        },
        {
            metric(f"{CONNECT}_bucket", SERVICE, 'le="0.524288"'): growing(580),
            metric(f"{CONNECT}_count", SERVICE): growing(600),
            # Half of the connects, but two in a minute.
            metric(f"{CONNECT}_bucket", RARE, 'le="0.524288"'): growing(1),
            metric(f"{CONNECT}_count", RARE): growing(2),
        },
        15,
    ),
    "BpfsvcConnectionsUneven": Case(
        {
            metric(OPEN, SERVICE): constant(100),
            metric(f"{OPEN}_busiest", SERVICE): constant(95),
            metric(f"{OPEN}_backends", SERVICE): constant(2),
        },
        {
            metric(OPEN, SERVICE): constant(100),
            metric(f"{OPEN}_busiest", SERVICE): constant(85),
            metric(f"{OPEN}_backends", SERVICE): constant(2),
            # All connections, but few.
            metric(OPEN, RARE): constant(20),
            metric(f"{OPEN}_busiest", RARE): constant(20),
            metric(f"{OPEN}_backends", RARE): constant(8),
        },
        45,
    ),
    "BpfsvcDropsElsewhere": Case(
        {metric(ELSEWHERE, SERVICE, 'reason="SKB_DROP_REASON_NETFILTER_DROP"'): growing(120)},
        {
            # Several reasons, each of them rarely.
            metric(ELSEWHERE, SERVICE, 'reason="SKB_DROP_REASON_NETFILTER_DROP"'): growing(50),
            metric(ELSEWHERE, SERVICE, 'reason="SKB_DROP_REASON_SOCKET_RCVBUFF"'): growing(50),
        },
        15,
    ),
    "BpfsvcServiceWithoutEndpoints": Case(
        {
            metric(
                "bpfsvc_service_refused_total", SERVICE, 'action="rejected",reason="no_endpoints"'
            ): growing(120)
        },
        {
            metric(
                "bpfsvc_service_refused_total", SERVICE, 'action="rejected",reason="no_endpoints"'
            ): growing(30),
            metric(
                "bpfsvc_service_refused_total", SERVICE, 'action="dropped",reason="source_range"'
            ): growing(6000),
        },
        15,
    ),
    "BpfsvcEndpointsQuarantined": Case(
        {metric("bpfsvc_endpoints_quarantined"): constant(1)},
        {metric("bpfsvc_endpoints_quarantined"): "1+0x10 0+0x50"},
        20,
    ),
    "BpfsvcShadowDifferences": Case(
        # The first difference begins its series.
        {metric(DIFFERENCES, DIFFERENT): "_x5 1+0x50"},
        {metric(DIFFERENCES, DIFFERENT): constant(4)},
        10,
        quiet_from=16,  # until then these differences may be new, too
    ),
}


def test_every_alert_has_a_case_a_runbook_and_its_name_there() -> None:
    names = alerts().keys()
    assert CASES.keys() == names
    assert {page.stem for page in RUNBOOKS.glob("*.md")} == names
    for name, rule in alerts().items():
        page = (RUNBOOKS / f"{name}.md").read_text()
        assert page.startswith(f"# {name}\n")
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{name}.md"
        for heading in ("## What to type", "## What to do"):
            assert page.count(f"\n{heading}\n") == 1, f"{name}: {heading}"


@pytest.mark.parametrize("name", alerts())
def test_an_alert_says_how_bad_it_is_and_what_happens(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    assert all(text.strip().endswith((".", ".md")) for text in rule["annotations"].values())


@pytest.fixture(scope="module")
def rule_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the rules as Prometheus itself reads them."""
    file = tmp_path_factory.mktemp("rules") / "rules.yaml"
    file.write_text(yaml.safe_dump(rules()))
    return file


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAMS / "promtool", *words], capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_prometheus_accepts_the_rules(rule_file: Path) -> None:
    done = promtool("check", "rules", rule_file)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"SUCCESS: {len(alerts())} rules found" in done.stdout


def firing(name: str, series: dict[str, str], at: list[int], *, fires: bool) -> dict[str, Any]:
    """Return a test of promtool: at these minutes the alert fires, once, or it does not."""
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": value} for key, value in series.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
            }
            for minute in at
        ],
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_on_bad_series_and_not_on_good_ones(
    name: str, rule_file: Path, tmp_path: Path
) -> None:
    bad, good, after, quiet_from = CASES[name]
    # A good series may be bad for a while: it is quiet then and afterwards.
    tests = [
        firing(name, bad, [after], fires=True),
        firing(name, good, [*range(quiet_from, after + 30, 3)], fires=False),
    ]
    file = tmp_path / "test.yaml"
    file.write_text(
        yaml.safe_dump(
            {"rule_files": [str(rule_file)], "evaluation_interval": "1m", "tests": tests}
        )
    )
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr
