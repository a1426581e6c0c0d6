"""The tables of what other projects test name tests that exist, and the page is made from them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from tests.docs.other_projects import PAGE, missing, page, read_tables


def test_every_test_that_is_named_exists() -> None:
    named = {test for table in read_tables() for group in table.groups for test in group.tests}
    assert {test for test in named if missing(test)} == set()


def test_what_holds_is_shown_by_a_test() -> None:
    groups = [group for table in read_tables() for group in table.groups]
    assert [group for group in groups if group.result == "holds" and not group.tests] == []


def test_no_case_is_listed_twice() -> None:
    for table in read_tables():
        names = Counter(
            (name, at)
            for group in table.groups
            for name, places in group.cases.items()
            for at in places or [""]
        )
        assert [case for case, times in names.items() if times > 1] == []


def test_each_vector_of_fixtures_is_listed_from_the_first_to_the_last() -> None:
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for table in read_tables():
        for group in table.groups:
            for places in group.cases.values():
                for at in places:
                    vector, number = re.fullmatch(r"(\w+) (\d+)", at).groups()  # type: ignore[union-attr]
                    numbers[vector].append(int(number))
    assert numbers
    assert {v: n for v, n in numbers.items() if sorted(n) != list(range(1, len(n) + 1))} == {}


def test_the_page_is_made_from_the_tables() -> None:
    """``python -m tests.docs.other_projects`` writes it."""
    assert PAGE.read_text() == page(read_tables())
