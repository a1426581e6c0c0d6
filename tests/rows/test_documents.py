"""The text of manifests: where it is cut, what its values are, and which line is to blame."""

from __future__ import annotations

import json
import time

import pytest

from bpfsvc.model import ObjectKey
from bpfsvc.sources import documents, files, yamltext
from bpfsvc.sources.documents import Document
from bpfsvc.sources.files import NOTHING, Contents, Unusable
from bpfsvc.sources.yamltext import YamlError

SERVICE = """\
apiVersion: v1
kind: Service
metadata:
  name: NAME
spec:
  clusterIP: 10.96.0.1
  ports:
  - port: 80
"""

YAML_LIST = """\
apiVersion: v1
items:
- apiVersion: v1
  kind: Service
  metadata: {name: a}
  spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}
- apiVersion: v1
  kind: Service
  metadata:
    name: b
  spec:
    clusterIP: 10.96.0.2
    ports:
    - name: http
      port: 80
kind: List
metadata:
  resourceVersion: ""
"""


def service(name: str) -> str:
    return SERVICE.replace("NAME", name)


def parse(text: str | bytes, name: str = "x.yaml", before: Contents = NOTHING) -> Contents:
    data = text.encode() if isinstance(text, str) else text
    return files.parse(name, data, before)


def names(contents: Contents) -> list[str]:
    return [one.name for one in contents.objects()]


def problems(text: str | bytes, name: str = "x.yaml") -> list[str]:
    with pytest.raises(Unusable) as caught:
        parse(text, name)
    return [str(problem) for problem in caught.value.problems]


def split(text: str) -> list[Document]:
    return list(documents.split(text.encode(), is_json=False))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(service("a"), ["a"], id="a single object"),
        pytest.param(service("a") + "---\n" + service("b"), ["a", "b"], id="two documents"),
        pytest.param("---\n---\n" + service("a") + "---\n", ["a"], id="empty documents"),
        pytest.param("# one\n---\n# two\n" + service("a"), ["a"], id="comments between markers"),
        pytest.param(service("a") + "...\n" + service("b"), ["a", "b"], id="an end marker"),
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
            id="a kind that means nothing here",
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
    value = yamltext.load(service("a").encode())
    assert list(parse(json.dumps(value), "x.json").objects()) == list(parse(service("a")).objects())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("2024-01-01T00:00:00Z", "2024-01-01T00:00:00Z", id="a time stays text"),
        pytest.param("2024-01-01", "2024-01-01", id="a date stays text"),
        pytest.param("22:30", "22:30", id="colons make no number to base sixty"),
        pytest.param("010", 8, id="a leading zero is octal, as for kubectl"),
        pytest.param("0o10", 8, id="octal of YAML 1.2"),
        pytest.param("-0x1F", -31, id="hexadecimal"),
        pytest.param("0b101", 5, id="binary"),
        pytest.param("1_000", 1000, id="underscores in numbers"),
        pytest.param("080", 80.0, id="an impossible octal is a decimal, as for kubectl"),
        pytest.param("1e3", 1000.0, id="an exponent without a point"),
        pytest.param("1.10", 1.1, id="a version is a number unless quoted"),
        pytest.param("'1.10'", "1.10", id="quotes make text"),
        pytest.param('"010"', "010", id="double quotes make text"),
        pytest.param("on", True, id="on is a boolean"),
        pytest.param("No", False, id="No is a boolean"),
        pytest.param("n", "n", id="n is text"),
        pytest.param("~", None, id="a tilde is null"),
        pytest.param("", None, id="nothing is null"),
        pytest.param("!!str 80", "80", id="a tag makes text"),
        pytest.param("!!int '80'", 80, id="a tag makes a number"),
        pytest.param("fd00::1", "fd00::1", id="an IPv6 address is text"),
        pytest.param("10.96.0.1", "10.96.0.1", id="an IPv4 address is text"),
        pytest.param("+", "+", id="a bare sign is text"),
        pytest.param("0x", "0x", id="a bare prefix is text"),
        pytest.param("9" * 5000, "9" * 5000, id="a number too long to be one is text"),
        pytest.param("[a, {b: c}]", ["a", {"b": "c"}], id="flow collections"),
    ],
)
def test_yaml_values(text: str, value: object) -> None:
    loaded = yamltext.load(f"x: {text}\n".encode())
    assert loaded == {"x": value}
    assert isinstance(loaded, dict)
    assert type(loaded["x"]) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("1: a\n", {"1": "a"}, id="a number as a key becomes text"),
        pytest.param("yes: a\n", {"true": "a"}, id="a boolean as a key becomes text"),
        pytest.param("a: &x [1]\nb: *x\n", {"a": [1], "b": [1]}, id="an alias"),
        pytest.param("a: &x 1\nb: *x\n", {"a": 1, "b": 1}, id="an alias of a scalar"),
        pytest.param(
            "a: &x {p: 1, q: 2}\nb:\n  p: 3\n  <<: *x\n",
            {"a": {"p": 1, "q": 2}, "b": {"p": 3, "q": 2}},
            id="a merge, in which what stands there wins",
        ),
        pytest.param(
            "b:\n  <<: [{p: 1}, {p: 2, q: 2}]\n", {"b": {"p": 1, "q": 2}}, id="a merge of several"
        ),
        pytest.param("- <<\n", [None], id="a merge sign where none can be"),
    ],
)
def test_yaml_mappings(text: str, value: object) -> None:
    assert yamltext.load(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param("a: 1\nb: 2\na: 3\n", 2, "duplicate key a", id="a key given twice"),
        pytest.param("a:\n  b: [1\nc: 2\n", 2, "flow sequence", id="a bracket left open"),
        pytest.param("a: [\n\n\n", 0, "flow", id="a bracket open at the end of the text"),
        pytest.param("a:\n\tb: 1\n", 1, "cannot start any token", id="a tab as indentation"),
        pytest.param("a: b: c\n", 0, "not allowed", id="two values on a line"),
        pytest.param("a: 1\nb: *c\n", 1, "names nothing above", id="an alias of nothing"),
        pytest.param("a: &x\n  b: *x\n", 1, "inside what it names", id="an alias of its parent"),
        pytest.param("a: 1\nb: !foo c\n", 1, "!foo", id="an unknown tag on text"),
        pytest.param("a: 1\nb: !foo [c]\n", 1, "unknown tag", id="an unknown tag on a list"),
        pytest.param("a: !!int b\n", 0, "does not fit", id="a tag that does not fit"),
        pytest.param("? [a]\n: 1\n", 0, "plain text", id="a list as a key"),
        pytest.param("b:\n  <<: 1\n", 1, "<< takes", id="a merge of a number"),
        pytest.param("a: 1\nb: \x01\n", 1, "control characters", id="a control character"),
        pytest.param("a: " + "[" * 200_000, 0, "nested deeper", id="200,000 brackets"),
        pytest.param("{a: " * 50_000, 0, "nested deeper", id="50,000 braces"),
    ],
)
def test_yaml_is_refused_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(YamlError) as caught:
        yamltext.load(text.encode())
    assert words in caught.value.reason
    assert caught.value.line == line


def test_without_libyaml_values_and_lines_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(parse(YAML_LIST).objects())
    monkeypatch.setattr(yamltext, "_parser", yamltext._PythonParser)
    assert list(parse(YAML_LIST).objects()) == expected
    (found,) = problems(YAML_LIST.replace("      port: 80\n", "      port: x: y\n"))
    assert found.startswith("x.yaml:15: mapping values are not allowed")


def test_aliases_of_aliases_take_no_time() -> None:
    """A text of twenty lines that stands for ten to the twentieth values is read at once."""
    lines = ["a0: &a0 [x]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 21)
    ]
    started = time.monotonic()
    yamltext.load("\n".join(lines).encode())
    assert time.monotonic() - started < 1


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
            id="a missing field is blamed on what lacks it",
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
    (found,) = problems(text)
    assert found.startswith(problem)


JSON_LIST = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": name},
                "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": port}]},
            }
            for name, port in (("a", 80), ("b", 80), ("c", "eighty"))
        ],
    },
    indent="\t",
)
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
    (found,) = problems(text, "x.json")
    assert found.startswith(problem)


@pytest.mark.parametrize("name", ["x.yaml", "x.json"])
def test_text_that_is_not_utf8_is_named_by_its_line(name: str) -> None:
    (found,) = problems(b"a: 1\nb: \xff\n", name)
    assert found == f"{name}:2: not UTF-8: byte 0xff (invalid start byte)"


def test_every_broken_document_of_a_file_is_reported_up_to_ten() -> None:
    bad = service("a").replace("port: 80", "port: 0")
    assert len(problems("---\n".join([bad] * 3))) == 3
    assert len(problems("---\n".join([bad] * 30))) == 10


def test_a_dash_inside_a_quoted_text_does_not_cut_an_item() -> None:
    text = YAML_LIST.replace("    name: b\n", '    name: b\n    note: "one\n- two"\n')
    assert names(parse(text)) == ["a", "b"]


def test_items_that_share_an_anchor_are_read_together() -> None:
    text = YAML_LIST.replace("{name: a}", "{name: a, labels: &l {x: y}}").replace(
        "    name: b\n", "    name: b\n    labels: *l\n"
    )
    assert names(parse(text)) == ["a", "b"]


def test_a_list_of_two_hundred_items_is_cut_into_as_many_documents() -> None:
    item = "- apiVersion: v1\n  kind: Node\n  metadata: {name: n}\n"
    cut = split("apiVersion: v1\nkind: List\nitems:\n" + item * 200)
    assert [one.item for one in cut] == list(range(200))


def test_a_document_that_did_not_change_is_not_parsed_again() -> None:
    """Its very object is kept, wherever in the file it now stands."""
    first = parse(service("a") + "---\n" + service("b"))
    text = service("c") + "---\n" + service("a") + "---\n" + service("b").replace("80", "81")
    second = parse(text, before=first)
    old = {one.key: one for one in first.objects()}
    new = {one.key: one for one in second.objects()}
    a, b = ObjectKey("Service", "default", "a"), ObjectKey("Service", "default", "b")
    assert new[a] is old[a]
    assert new[b] != old[b]


def test_an_item_of_a_json_list_that_did_not_change_is_not_parsed_again() -> None:
    good = JSON_LIST.replace('"eighty"', "82")
    first = parse(good, "x.json")
    second = parse(good.replace("82", "83"), "x.json", before=first)
    same = [a is b for a, b in zip(first.objects(), second.objects(), strict=True)]
    assert same == [True, True, False]
