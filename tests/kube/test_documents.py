"""The text of manifests: the objects in it, and where it is cut."""

from __future__ import annotations

import json

import pytest

from bpfsvc.base import yaml_documents
from tests.kube.manifests import YAML_LIST, names, parse, problems, service


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(service("a"), ["a"], id="a single object"),
        pytest.param(service("a") + "---\n" + service("b"), ["a", "b"], id="two documents"),
        pytest.param("---\n---\n" + service("a") + "---\n", ["a"], id="empty documents"),
        pytest.param("# one\n---\n# two\n" + service("a"), ["a"], id="comments between markers"),
        pytest.param(service("a") + "...\n---\n" + service("b"), ["a", "b"], id="an end marker"),
        pytest.param(
            "%YAML 1.1\n---\n" + service("a") + "...\n%YAML 1.1\n---\n" + service("b"),
            ["a", "b"],
            id="directives before documents",
        ),
        pytest.param("--- # first\n" + service("a"), ["a"], id="a comment behind the marker"),
        pytest.param(
            "--- {apiVersion: v1, kind: Node, metadata: {name: a}}\n--- \n" + service("b"),
            ["a", "b"],
            id="a document on the line of its marker",
        ),
        pytest.param(service("a").replace("\n", "\r\n"), ["a"], id="line ends of Windows"),
        pytest.param(
            YAML_LIST.replace("\n", "\r\n"), ["a", "b"], id="a List with line ends of Windows"
        ),
        pytest.param("\ufeff" + service("a"), ["a"], id="a byte order mark"),
        pytest.param("", [], id="nothing"),
        pytest.param("# soon\n\n---\n", [], id="comments only"),
        pytest.param("null\n", [], id="null"),
        pytest.param(YAML_LIST, ["a", "b"], id="a List as kubectl prints it"),
        pytest.param(
            YAML_LIST.replace("kind: List", "kind: ServiceList")
            .replace("- apiVersion: v1\n  kind: Service\n  ", "- ")
            .replace("  kind: Service\n", ""),
            ["a", "b"],
            id="a ServiceList whose items do not say what they are",
        ),
        pytest.param(
            "kind: List\napiVersion: v1\nitems: [{apiVersion: v1, kind: List, items: "
            "[{apiVersion: v1, kind: Node, metadata: {name: n}}]}]\n",
            ["n"],
            id="a List within a List",
        ),
        pytest.param("kind: List\napiVersion: v1\nitems: []\n", [], id="an empty List"),
        pytest.param("kind: List\napiVersion: v1\nitems:\n", [], id="a List of null"),
        pytest.param(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {mode: 0644}\n",
            [],
            id="a kind that is not used here",
        ),
        pytest.param(
            "kind: PriceList\napiVersion: example.org/v1\nmetadata: {name: p}\n",
            [],
            id="a kind that only sounds like a list",
        ),
    ],
)
def test_objects_are_found_in(text: str, expected: list[str]) -> None:
    assert names(parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param({"kind": "Node", "metadata": {"name": "n"}}, ["n"], id="a single object"),
        pytest.param(
            {
                "kind": "List",
                "items": [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}],
            },
            ["n"],
            id="a List",
        ),
        pytest.param(
            {"kind": "NodeList", "items": [{"metadata": {"name": "n"}}]},
            ["n"],
            id="a NodeList whose items do not say what they are",
        ),
        pytest.param({"kind": "NodeList", "items": None}, [], id="a list of null"),
        pytest.param(
            {"kind": "Widget", "items": {"not": "a list"}}, [], id="items that are something else"
        ),
    ],
)
def test_json_objects_are_found_in(text: dict[str, object], expected: list[str]) -> None:
    data = json.dumps({"apiVersion": "v1"} | text, indent=2)
    assert names(parse(data, "x.json")) == expected


def test_json_objects_may_follow_one_another() -> None:
    node = '{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "%s"}}'
    assert names(parse(f"{node % 'a'}\n{node % 'b'}{node % 'c'}\n", "x.json")) == ["a", "b", "c"]


def test_json_of_nothing_holds_nothing() -> None:
    assert names(parse(" \n", "x.json")) == []


def test_json_and_yaml_of_one_object_give_equal_values() -> None:
    (document,) = yaml_documents.read(service("a").encode())
    assert parse(json.dumps(document.value), "x.json") == parse(service("a"))


def test_a_dash_inside_a_quoted_text_does_not_cut_an_item() -> None:
    text = YAML_LIST.replace("    name: b\n", '    name: b\n    note: "one\n- two"\n')
    assert names(parse(text)) == ["a", "b"]


def test_items_that_share_an_anchor_are_read_together() -> None:
    text = YAML_LIST.replace("{name: a}", "{name: a, labels: &l {x: y}}").replace(
        "    name: b\n", "    name: b\n    labels: *l\n"
    )
    assert names(parse(text)) == ["a", "b"]


def test_without_libyaml_values_and_lines_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = parse(YAML_LIST)
    monkeypatch.setattr(yaml_documents, "_Loader", yaml_documents._PythonLoader)
    assert parse(YAML_LIST) == expected
    (reported,) = problems(YAML_LIST.replace("      port: 80\n", "      port: x: y\n"))
    assert reported.startswith("x.yaml:15: mapping values are not allowed")
