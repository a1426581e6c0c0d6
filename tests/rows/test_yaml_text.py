"""The YAML that is understood: its values, its mappings, and where it is refused."""

from __future__ import annotations

import time

import pytest

from bpfsvc.sources import yamltext
from bpfsvc.sources.yamltext import YamlError
from tests.rows.manifests import YAML_LIST, parse, problems


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
