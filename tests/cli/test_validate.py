"""``bpfsvc validate``: what is wrong with manifests, by file and line."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bpfsvc.cli.main import main
from bpfsvc.services.scheduling.annotations import ANNOTATIONS

SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
{metadata}
spec:
  ports: [{{name: http, port: 80}}]
{spec}
"""


def validate(*words: str, given: str | bytes = "") -> Result:
    return CliRunner().invoke(main, ["validate", *words], input=given)


def service(metadata: str = "", spec: str = "") -> str:
    return SERVICE.format(metadata=metadata, spec=spec)


def annotated(*annotations: str) -> str:
    return service("  annotations: {" + ", ".join(annotations) + "}")


def texts(manifest: str) -> list[str]:
    """Return the findings, without the place and the object."""
    done = validate("-", given=manifest)
    *findings, _ = done.stdout.splitlines()
    assert done.exit_code == bool(findings)
    return [finding.split(": ", 2)[2] for finding in findings]


def test_a_manifest_that_bpfsvc_would_do_has_no_finding() -> None:
    good = annotated(
        *("bpfsvc.io/scheduler: wrr", "bpfsvc.io/on-removal: drain"),
        *('bpfsvc.io/drain-seconds: "30"', "prometheus.io/scrape: yes it is"),
    )
    assert texts(good) == []
    assert validate("-", given=good).stdout == "1 objects, 0 findings\n"


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (
            "bpfsvc.io/shceduler: rr",
            "bpfsvc.io/shceduler: is not known; did you mean bpfsvc.io/scheduler?",
        ),
        (
            "bpfsvc/scheduler: rr",
            "bpfsvc/scheduler: without effect; did you mean bpfsvc.io/scheduler?",
        ),
        (
            "bpfscv.io/quarantine: off",
            "bpfscv.io/quarantine: without effect; did you mean bpfsvc.io/quarantine?",
        ),
        (
            'bpfsvc.io/wieght: "3"',
            "bpfsvc.io/wieght: is not known; did you mean bpfsvc.io/weights?",
        ),
        (
            "bpfsvc.io/x: y",
            "bpfsvc.io/x: is not known; the annotations of a Service are: "
            + ", ".join(known.name for known in ANNOTATIONS),
        ),
        (
            'bpfsvc.io/weight: "3"',
            "bpfsvc.io/weight: without effect on a Service: it is an annotation of EndpointSlices",
        ),
        (
            'bpfsvc.io/drain-seconds: "3"',
            "bpfsvc.io/drain-seconds: without effect: it belongs to bpfsvc.io/on-removal: drain",
        ),
        (
            'bpfsvc.io/zone-overload: "2"',
            "bpfsvc.io/zone-overload: without effect: nothing keeps clients near"
            " (spec.trafficDistribution)",
        ),
    ],
)
def test_an_annotation_without_effect_is_named_and_the_one_that_was_meant(
    annotation: str, text: str
) -> None:
    assert texts(annotated(annotation)) == [text]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("shceduler", "is not known; did you mean bpfsvc.io/scheduler?"),
        ("x", "is not known; the annotations of a ConfigMap are: none"),
    ],
)
def test_an_object_of_a_kind_without_annotations_is_told_of_all_and_has_none(
    name: str, text: str
) -> None:
    given = (
        "apiVersion: v1\nkind: ConfigMap\n"
        f"metadata: {{name: web, annotations: {{bpfsvc.io/{name}: y}}}}\n"
    )
    assert texts(given) == [f"bpfsvc.io/{name}: {text}"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bpfsvc.io/scheduler", "without effect as a label: make it an annotation"),
        ("bpfsvc.io/tier", ""),
        ("scheduler", ""),
    ],
)
def test_a_label_with_the_name_of_an_annotation_is_named(name: str, text: str) -> None:
    findings = texts(service(f"  labels: {{{name}: rr}}"))
    assert findings == [f"{name}: {text}"] * bool(text)


def test_values_of_annotations_are_those_that_the_agent_reads() -> None:
    (text,) = texts(annotated("bpfsvc.io/quarantine: always"))
    assert text == "bpfsvc.io/quarantine: 'always' must be like '5 failures/10s for 30s'"
    (text,) = texts(annotated("bpfsvc.io/drain-seconds: 3", "bpfsvc.io/on-removal: drain"))
    assert text == "bpfsvc.io/drain-seconds: expected str | null, got int"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("  externalTrafficPolicy: Local", "spec.externalTrafficPolicy: without effect: type"),
        ("  externalTrafficPolicy: Lokal", "spec.externalTrafficPolicy: 'Lokal' is unknown here"),
        ("  sessionAffinityConfig: {clientIP: {}}", "spec.sessionAffinityConfig: without effect"),
        ("  externalIPs: [127.0.0.1]", "spec.externalIPs has 127.0.0.1, a loopback address"),
        ("  externalIPs: [1.2.3.444]", "spec.externalIPs[0]: '1.2.3.444' cannot be read"),
        (
            "  loadBalancerSourceRanges: [10.0.0.0/8]",
            "spec.loadBalancerSourceRanges: without effect for type ClusterIP",
        ),
        (
            "  type: NodePort\n  healthCheckNodePort: 31000",
            "spec.healthCheckNodePort: without effect",
        ),
    ],
)
def test_fields_that_contradict_each_other_are_named(spec: str, text: str) -> None:
    (finding,) = texts(service(spec=spec))
    assert finding.startswith(text)


def test_ports_of_one_name_or_number_are_named() -> None:
    twice = SERVICE.replace("port: 80}}", "port: 80}}, {{name: http, port: 80}}")
    assert [text.split(": ")[0] for text in texts(twice.format(metadata="", spec=""))] == [
        "spec.ports[1].name",
        "spec.ports[1].port",
    ]


@pytest.mark.parametrize(
    ("metadata", "spec", "reason"),
    [
        ("", "  clusterIP: None", "is headless"),
        ("", "  type: ExternalName", "is of type ExternalName"),
        ("  labels: {service.kubernetes.io/service-proxy-name: x}", "", "is another proxy's"),
    ],
)
def test_annotations_of_a_service_that_is_not_served_have_no_effect(
    metadata: str, spec: str, reason: str
) -> None:
    given = f"{metadata}\n  annotations: {{bpfsvc.io/scheduler: rr}}"
    (text,) = texts(service(given, spec))
    assert f"because the Service {reason}" in text


def test_annotations_of_pods_are_read_where_pods_have_them() -> None:
    template = '{metadata: {annotations: {bpfsvc.io/socket-lb: "false"}}}'
    text = (
        "apiVersion: apps/v1\nkind: Deployment\n"
        'metadata: {name: web, annotations: {bpfsvc.io/socket-lb: "off"}}\n'
        f"spec: {{template: {template}}}\n"
    )
    assert texts(text) == [
        "bpfsvc.io/socket-lb: without effect on a Deployment: it is an annotation of Pods",
        "bpfsvc.io/socket-lb: 'false' has no effect: the only value is 'off'",
    ]


def test_services_of_several_files_are_held_against_each_other(tmp_path: Path) -> None:
    port = "  type: NodePort\n  externalIPs: [192.0.2.7]"
    (tmp_path / "a.yaml").write_text(service(spec=port))
    (tmp_path / "b.yaml").write_text(service(spec=port).replace("name: web", "name: other"))
    (tmp_path / "c.json").write_text('{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}')
    done = validate(str(tmp_path))
    finding, summary = done.stdout.splitlines()
    assert finding.startswith(f"{tmp_path}/a.yaml:1: Service shop/web: 192.0.2.7")
    assert "belongs to shop/other" in finding
    assert summary == "3 objects, 1 findings"


def test_services_without_a_cluster_ip_do_not_share_one() -> None:
    assert texts("---\n".join(service().replace("web", name) for name in ("web", "other"))) == []


def test_an_object_that_is_in_two_files_is_named(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(service())
    finding, summary = validate(str(tmp_path)).stdout.splitlines()
    where = f"{tmp_path}/b.yaml:4: Service shop/web: metadata.name"
    assert finding == f"{where}: is in {tmp_path}/a.yaml, too"
    assert summary == "2 objects, 1 findings"


def test_lines_are_those_of_the_fields_and_json_has_them_apart(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text("# a comment\n---\n" + annotated("bpfsvc.io/scheduler: nonsense"))
    row, other = json.loads(validate(str(file), "-o", "json").stdout)["findings"][0], 8
    assert (row["file"], row["line"], row["object"]) == (str(file), other, "Service shop/web")


def test_files_come_in_an_archive_too() -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as files:
        content = annotated("bpfsvc.io/shceduler: rr").encode()
        entry = tarfile.TarInfo("shop/web.yaml")
        entry.size = len(content)
        files.addfile(entry, io.BytesIO(content))
    done = validate("--tar", given=archive.getvalue())
    assert done.stdout.startswith("shop/web.yaml:6: Service shop/web: bpfsvc.io/shceduler: ")


@pytest.mark.parametrize(
    ("words", "given", "error"),
    [
        ([], "", "Error: no manifests are named"),
        (["/nonexistent"], "", "Error: cannot read /nonexistent: No such file or directory"),
        (["--tar"], "no archive", "Error: standard input is no tar archive"),
    ],
)
def test_what_cannot_be_read_is_one_line(words: list[str], given: str, error: str) -> None:
    done = validate(*words, given=given)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith(error)
    assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("text", ["a: [", "just text", "- a\n- list"])
def test_what_is_no_object_is_a_finding(text: str) -> None:
    done = validate("-", given=text)
    assert done.exit_code == 1
    assert done.stdout.startswith("-:1: ")
