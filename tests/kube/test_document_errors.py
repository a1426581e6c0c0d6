"""The file, line and field that errors of manifests name."""

from __future__ import annotations

import json

import pytest

from tests.kube.manifests import JSON_LIST, SERVICE, YAML_LIST, problems, service


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            service("a") + "---\n" + service("b").replace("port: 80", "port: eighty"),
            "x.yaml:17: spec.ports[0].port: expected int, got str",
            id="a field in the second document",
        ),
        pytest.param(
            service("a") + "---\n" + service("b").replace("ports:", "ports: ["),
            "x.yaml:17: while parsing a flow node",
            id="syntax in the second document",
        ),
        pytest.param(
            YAML_LIST.replace("      port: 80\n", "      port: 70000\n"),
            "x.yaml:15: items[1].spec.ports[0].port: ",
            id="a field of an item of a List",
        ),
        pytest.param(
            YAML_LIST.replace("    name: b\n", "    name: 'b\n"),
            "x.yaml:10: while scanning a quoted scalar",
            id="a quote left open in an item of a List",
        ),
        pytest.param(
            "# head\n\n" + SERVICE.replace("  name: NAME\n", "  labels: {}\n"),
            "x.yaml:5: metadata: object missing required field name",
            id="a missing field is reported at the object that lacks it",
        ),
        pytest.param("# head\n\n---\nfoo: bar\n", "x.yaml:4: ", id="no kind at all"),
        pytest.param("\n\n- a\n- b\n", "x.yaml:3: expected an object, got a list", id="a list"),
        pytest.param("just text\n", "x.yaml:1: expected an object, got text", id="bare text"),
        pytest.param(
            "apiVersion: v1\nkind: List\nitems:\n- 5\n",
            "x.yaml:4: items[0]: expected an object",
            id="an item that is no object",
        ),
        pytest.param(
            "kind: List\nitems:\n- a: 1\nmetadata: {}\nmetadata: {}\n",
            "x.yaml:5: duplicate key metadata",
            id="a duplicate key beside the items",
        ),
        pytest.param(
            "kind: List\nitems:\n- kind: Node\n  apiVersion: v1\n  kind: Node\n",
            "x.yaml:5: duplicate key kind",
            id="a duplicate key in an item",
        ),
    ],
)
def test_yaml_errors_name_file_line_and_field(text: str, problem: str) -> None:
    (reported,) = problems(text)
    assert reported.startswith(problem)


EIGHTY = 1 + JSON_LIST[: JSON_LIST.index("eighty")].count("\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(
            '{\n "apiVersion": "v1",\n "kind": "Node",\n "metadata": {"name": 5}\n}\n',
            "x.json:4: metadata.name: expected str, got int",
            id="a field",
        ),
        pytest.param(
            JSON_LIST, f"x.json:{EIGHTY}: items[2].spec.ports[0].port: ", id="a field of an item"
        ),
        pytest.param('{\n "a": 1,\n "b" 2\n}\n', "x.json:3: malformed JSON: ", id="syntax"),
        pytest.param('{\n "a": [1,\n', "x.json:2: malformed JSON: ", id="an unexpected end"),
        pytest.param('{"a": NaN}', "x.json:1: malformed JSON: ", id="a number JSON has not"),
        pytest.param("[" * 100_000, "x.json:1: malformed JSON: ", id="100,000 brackets"),
        pytest.param(
            '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}\n{"kind": }\n',
            "x.json:2: malformed JSON: ",
            id="syntax in the second object",
        ),
        pytest.param('[{"kind": "Node"}]', "x.json:1: ", id="a bare list"),
    ],
)
def test_json_errors_name_file_line_and_field(text: str, problem: str) -> None:
    (reported,) = problems(text, "x.json")
    assert reported.startswith(problem)


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_text_that_is_not_utf8_is_named_by_its_line(name: str) -> None:
    (reported,) = problems(b"a: 1\nb: \xff\n", name)
    assert reported == f"{name}:2: not UTF-8: byte 0xff (invalid start byte)"


def test_every_broken_document_of_a_file_is_reported_and_ten_with_their_lines() -> None:
    bad = [service(f"s-{number}").replace("port: 80", "port: 0") for number in range(12)]
    reason = "spec.ports[0].port: expected int >= 1, got 0"
    assert problems("---\n".join(bad)) == [
        *(f"x.yaml:{8 + 9 * number}: {reason}" for number in range(10)),
        f"x.yaml: Service default/s-10: {reason}",
        f"x.yaml: Service default/s-11: {reason}",
    ]


def test_every_broken_item_of_a_list_is_reported_with_its_line() -> None:
    bad = "- apiVersion: v1\n  kind: Node\n  metadata: {name: 5}\n"
    assert problems(f"kind: List\nitems:\n{bad * 2}") == [
        "x.yaml:5: items[0].metadata.name: expected str, got int",
        "x.yaml:8: items[1].metadata.name: expected str, got int",
    ]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": 5}}
    inner = {"kind": "List", "items": [node, node]}
    assert problems(json.dumps({"kind": "List", "items": [inner]}, indent=1), "x.json") == [
        "x.json:11: items[0].items[0].metadata.name: expected str, got int",
        "x.json:18: items[0].items[1].metadata.name: expected str, got int",
    ]
