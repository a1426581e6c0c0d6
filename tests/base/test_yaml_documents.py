"""The YAML that is understood: its values, its mappings, and where it is refused."""

from __future__ import annotations

import time

import pytest
import yaml

from bpfsvc.base import yaml_documents
from bpfsvc.base.yaml_documents import FieldPath, YamlError
from bpfsvc.devtools.lab.patience import stretched


def load(text: str) -> object:
    (document,) = yaml_documents.read(text.encode())
    return document.value


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
    loaded = load(f"x: {text}\n")
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
            "a: &x 1\nb: *x\nc: &x 2\nd: *x\n",
            {"a": 1, "b": 1, "c": 2, "d": 2},
            id="an anchor name that is used again",
        ),
        pytest.param(
            "a: &x {p: 1, q: 2}\nb:\n  p: 3\n  <<: *x\n",
            {"a": {"p": 1, "q": 2}, "b": {"p": 3, "q": 2}},
            id="a merge, in which what stands there wins",
        ),
        pytest.param(
            "b:\n  <<: [{p: 1}, {p: 2, q: 2}]\n", {"b": {"p": 1, "q": 2}}, id="a merge of several"
        ),
        pytest.param("- <<\n", ["<<"], id="a merge sign where none can be is text"),
    ],
)
def test_yaml_mappings(text: str, value: object) -> None:
    assert load(text) == value


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param("a: 1\nb: 2\na: 3\n", 3, "duplicate key a", id="a key given twice"),
        pytest.param("a:\n  b: [1\nc: 2\n", 3, "flow sequence", id="a bracket left open"),
        pytest.param("a: [\n\n\n", 1, "flow", id="a bracket open at the end of the text"),
        pytest.param("a:\n\tb: 1\n", 2, "cannot start any token", id="a tab as indentation"),
        pytest.param("a: b: c\n", 1, "not allowed", id="two values on a line"),
        pytest.param("a: 1\nb: *c\n", 2, "undefined alias", id="an alias of nothing"),
        pytest.param("a: &x\n  b: *x\n", 2, "inside of the node", id="an alias of its parent"),
        pytest.param("a: 1\nb: !foo c\n", 2, "!foo", id="an unknown tag on text"),
        pytest.param("a: 1\nb: !foo [c]\n", 2, "unknown tag", id="an unknown tag on a list"),
        pytest.param("a: !!int b\n", 1, "does not fit", id="a tag that does not fit"),
        pytest.param("? [a]\n: 1\n", 1, "plain text", id="a list as a key"),
        pytest.param("b:\n  <<: 1\n", 2, "<< takes", id="a merge of a number"),
        pytest.param("a: 1\nb: \x01\n", 2, "control characters", id="a control character"),
        pytest.param("a: " + "[" * 200_000, 1, "nested deeper", id="200,000 brackets"),
        pytest.param("{a: " * 50_000, 1, "nested deeper", id="50,000 braces"),
        pytest.param("- " * 50_000, 1, "nested deeper", id="50,000 lists on a line"),
    ],
)
def test_yaml_is_refused_with_its_line(text: str, line: int, words: str) -> None:
    with pytest.raises(YamlError) as caught:
        load(text)
    assert words in caught.value.reason
    assert caught.value.line == line


def test_aliases_of_aliases_take_no_time() -> None:
    """A text of twenty lines that stands for ten to the twentieth values is read at once."""
    lines = ["a0: &a0 [x]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 21)
    ]
    started = time.monotonic()
    load("\n".join(lines))
    assert time.monotonic() - started < stretched(1)


SETTINGS = """\
# settings
kind: A
limits:
  soft: 1
  hard: 2
  soft: 3
list:
- name: x
- name: y
  size: 010
"""


def test_the_last_of_equal_keys_counts_where_the_reader_asks_for_it() -> None:
    (document,) = yaml_documents.read(SETTINGS.encode(), last_wins=True)
    assert document.value["limits"] == {"soft": 3, "hard": 2}
    assert document.repeated == (("limits", "soft"),)
    assert document.line(("limits", "soft")) == 6


@pytest.mark.parametrize(
    ("path", "line"),
    [
        pytest.param((), 2, id="the document begins behind comments"),
        pytest.param(("limits", "hard"), 5, id="a field"),
        pytest.param(("list", 1), 9, id="an item"),
        pytest.param(("list", 1, "size"), 10, id="a field of an item"),
        pytest.param(("limits", "none", "deeper"), 3, id="an absent field: what should hold it"),
        pytest.param(("list", 7), 7, id="an absent item: the list"),
    ],
)
def test_a_field_has_a_line(path: FieldPath, line: int) -> None:
    (document,) = yaml_documents.read(SETTINGS.encode(), last_wins=True)
    assert document.line(path) == line


def test_a_text_may_hold_several_documents_and_lines_count_through() -> None:
    text = b"a: 1\n---\n# nothing\n---\nb: 2\n...\n---\nnull\n--- {c: 3}\n"
    documents = list(yaml_documents.read(text))
    assert [document.value for document in documents] == [{"a": 1}, {"b": 2}, {"c": 3}]
    assert [document.line() for document in documents] == [1, 5, 9]


def test_an_anchor_name_that_is_used_again_reads_no_document_twice() -> None:
    text = b"a: 1\n---\nb: &x 2\nc: &x 3\n---\nd: &x 4\n"
    values = [document.value for document in yaml_documents.read(text)]
    assert values == [{"a": 1}, {"b": 2, "c": 3}, {"d": 4}]


def test_documents_before_an_error_are_read() -> None:
    documents = yaml_documents.read(b"a: 1\n---\nb: [\n")
    assert next(documents).value == {"a": 1}
    with pytest.raises(YamlError, match="line 3: "):
        next(documents)


def test_json_is_yaml() -> None:
    text = b'{\n\t"a": [1, true, null, "x\\/y"],\n\t"b": 2.5\n}\n'
    (document,) = yaml_documents.read(text)
    assert document.value == {"a": [1, True, None, "x/y"], "b": 2.5}
    assert document.line(("b",)) == 3


NUMBERS_AS_NAMES = ["123", "0", "08", "010", "1e3", "12e03", "1e-3", "0x1f", "0o17", "0b1"]


@pytest.mark.parametrize("text", [*NUMBERS_AS_NAMES, "2026-11-26", "1-2", "9a", "on", "null", ""])
def test_text_that_is_written_is_text_for_every_reader(text: str) -> None:
    """Names of Services and nodes may be digits; kubectl's library and PyYAML differ in numbers."""
    written = yaml_documents.write({"name": text, "list": [text]}, {"port": 80, "share": 0.5})
    values = [document.value for document in yaml_documents.read(written.encode())]
    assert values == [{"name": text, "list": [text]}, {"port": 80, "share": 0.5}]
    assert list(yaml.safe_load_all(written)) == values
