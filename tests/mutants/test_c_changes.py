"""Which changes there are of a line, and what is compiled of a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.build import programs_text
from tests.mutants.c_changes import changes, of_line


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("\tif (a == b)", {"\tif (a != b)"}),
        ("\tif (a < b)", {"\tif (a <= b)", "\tif (a >= b)"}),
        ("\treturn !a &&", {"\treturn !a ||", "\treturn a &&"}),
        ("\tif (a)", set()),
        ("\tint *a = &b;", set()),
        ("\tport = bpf_htons(a);", {"\tport = (a);", "\t;"}),
        ("\ta += 1;", {"\ta -= 1;", "\ta += 2;", "\t;"}),
        ("\treturn false;", {"\treturn true;"}),
        ("\tif (a == 0x10) /* 1 == 2 */", {"\tif (a != 0x10) /* 1 == 2 */"}),
    ],
)
def test_a_line_has_these_changes(line: str, after: set[str]) -> None:
    made = {text for text, kind in of_line(line) if not kind.startswith("a number")}
    numbers = {text for text, kind in of_line(line) if kind.startswith("a number")}
    assert made | (numbers & after) == after


def test_numbers_change_by_one_and_never_to_nothing() -> None:
    assert [text for text, _ in of_line("\tif (x(a, 0x10) || b[1])")] == [
        "\tif (x(a, 0x10) && b[1])",
        "\tif (x(a, 17) || b[1])",
        "\tif (x(a, 15) || b[1])",
        "\tif (x(a, 0x10) || b[2])",
    ]


def test_only_code_of_functions_is_changed(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / "a.h").write_text(
        "enum a {\n\tA = 1,\n};\nint f(int b)\n{\n\t/*\n\t * b == 1\n\t */\n\treturn b == 1;\n}\n"
    )
    assert {(change.file, change.line) for change in changes(tmp_path)} == {("maps/a.h", 9)}


def test_a_program_is_compiled_without_the_others() -> None:
    text = (
        "static int a(void)\n{\n\treturn 1;\n}\nint subprogram_x(void *p)\n{\n\treturn 1;\n}\n"
        "int one(void *p)\n{\n\treturn a();\n}\nint two(void *p)\n{\n\treturn 2;\n}\n"
    )
    assert programs_text(text, {"one"}) == text.replace("int two(void *p)\n{\n\treturn 2;\n}\n", "")
