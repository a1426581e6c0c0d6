"""What e2e tests report is read, and held against what is expected of them."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.e2e.chunks import CHUNKS
from tests.cluster.e2e.expected import Expectation, Fault, faults, load, load_limits, measured, save
from tests.cluster.e2e.junit import Outcome, read
from tests.cluster.report import FAILED, PASSED, SKIPPED
from tests.cluster.suites import SUITES

REPORT = """\
<testsuites><testsuite name="Kubernetes e2e suite">
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="2"/>
<testcase name="[It] [sig-network] Services should serve [Conformance]" status="passed" time="1.5"/>
<testcase name="[It] [sig-network] Services should wait" status="timedout" time="60">
 <failure message="no answer"/></testcase>
<testcase name="[It] [sig-network] Services should rest" status="skipped" time="0">
 <skipped message="skipped"/></testcase>
<testcase name="[It] [sig-network] Services should want zones" status="skipped" time="0.1">
 <skipped message="skipped - wants three zones"/></testcase>
<testcase name="[It] [sig-apps] Others" status="pending" time="0"/>
</testsuite></testsuites>
"""


def test_outcomes_are_those_of_the_specs_that_were_selected(tmp_path: Path) -> None:
    file = tmp_path / "junit_01.xml"
    file.write_text(REPORT)
    assert read([file]) == {
        "Services should serve [Conformance]": Outcome(
            "Services should serve [Conformance]", PASSED, 1.5
        ),
        "Services should wait": Outcome("Services should wait", FAILED, 60, "no answer"),
        "Services should want zones": Outcome(
            "Services should want zones", SKIPPED, 0.1, "wants three zones"
        ),
    }


def test_a_failed_set_up_of_the_suite_counts(tmp_path: Path) -> None:
    file = tmp_path / "junit_01.xml"
    file.write_text(
        '<testsuite><testcase name="[SynchronizedBeforeSuite]" status="failed" time="2">'
        "<failure>no nodes</failure></testcase></testsuite>"
    )
    assert read([file]) == {
        "[SynchronizedBeforeSuite]": Outcome("[SynchronizedBeforeSuite]", FAILED, 2, "no nodes")
    }


def test_the_last_of_several_reports_counts(tmp_path: Path) -> None:
    files = []
    for number, status in enumerate(("failed", "passed")):
        files.append(tmp_path / f"junit_{number}.xml")
        files[-1].write_text(f'<a><testcase name="[It] One" status="{status}" time="1"/></a>')
    assert read(files)["One"].status == PASSED


def test_a_table_that_was_written_is_read_again(tmp_path: Path) -> None:
    table = {
        "a [LinuxOnly]": Expectation("a [LinuxOnly]", PASSED, PASSED),
        "b": Expectation("b", FAILED, FAILED, "the test asks an IPv6 address\tof an IPv4 Service"),
    }
    save(reversed(table.values()), tmp_path / "table")
    assert load(tmp_path / "table") == table


def test_worse_than_kube_proxy_is_a_fault() -> None:
    expected = {
        spec: Expectation(spec, kube_proxy, bpfsvc)
        for spec, kube_proxy, bpfsvc in (
            ("both", PASSED, PASSED),
            ("neither", FAILED, FAILED),
            ("kube-proxy only", PASSED, FAILED),
            ("bpfsvc only", SKIPPED, PASSED),
            ("no zones", SKIPPED, SKIPPED),
        )
    }
    bad = {spec: Outcome(spec, FAILED, 1, "why") for spec in (*expected, "new")}
    assert faults(bad, expected) == [
        Fault("both", "failed, and kube-proxy passed: why"),
        Fault("bpfsvc only", "failed, and bpfsvc before passed: why"),
        Fault("kube-proxy only", "failed, and kube-proxy passed: why"),
        Fault("new", "failed: why"),
    ]
    assert faults({spec: Outcome(spec, PASSED, 1) for spec in bad}, expected) == []


def test_what_is_beyond_a_setting_may_fail_and_may_not_pass() -> None:
    expected = {spec: Expectation(spec, PASSED, PASSED) for spec in ("cannot", "can")}
    failing = [Outcome("cannot", FAILED, 1, "time-out"), Outcome("can", FAILED, 1, "time-out")]
    assert faults({one.spec: one for one in failing}, expected, ["cannot"]) == [
        Fault("can", "failed, and kube-proxy passed: time-out")
    ]
    assert faults({"cannot": Outcome("cannot", PASSED, 1)}, expected, ["cannot"]) == [
        Fault("cannot", "passed: take it out of limits.tsv")
    ]


def test_only_a_suite_has_limits_that_has_a_setting() -> None:
    specs = load().keys()
    assert {name: load_limits(name).keys() <= specs for name in SUITES} == dict.fromkeys(
        SUITES, True
    )
    assert [name for name in SUITES if load_limits(name)] == ["socket-lb-off"]


def test_what_once_passed_may_not_be_skipped() -> None:
    expected = {"a": Expectation("a", PASSED, PASSED), "b": Expectation("b", SKIPPED, SKIPPED)}
    outcomes = {spec: Outcome(spec, SKIPPED, 0, "no zones") for spec in (*expected, "new")}
    assert faults(outcomes, expected) == [Fault("a", "skipped, and kube-proxy passed: no zones")]


def test_the_table_has_what_was_measured_last() -> None:
    table = {
        "better": Expectation("better", PASSED, FAILED, "a bug"),
        "neither": Expectation("neither", FAILED, FAILED, "the test's own fault"),
        "not run": Expectation("not run", PASSED, PASSED),
    }
    outcomes = [
        Outcome("better", PASSED, 1),
        Outcome("neither", FAILED, 1, "no answer"),
        Outcome("new", SKIPPED, 0, "wants\nthree zones"),
    ]
    assert measured(table, {outcome.spec: outcome for outcome in outcomes}, "bpfsvc") == table | {
        "better": Expectation("better", PASSED, PASSED),
        "new": Expectation("new", "unknown", SKIPPED, "wants three zones"),
    }


def test_names_of_chunks_are_unique() -> None:
    assert len({chunk.name for chunk in CHUNKS}) == len(CHUNKS)
