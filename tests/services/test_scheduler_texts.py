"""The text that names a scheduler and its flags, as annotations and settings have it."""

from __future__ import annotations

import pytest

from bpfsvc.services.scheduling.schedulers import (
    RANDOM,
    Scheduler,
    parse_scheduler,
    scheduler_text,
)


@pytest.mark.parametrize(
    ("text", "scheduler"),
    [
        ("random", RANDOM),
        ("wrr", Scheduler("wrr")),
        ("sh,sh-port,sh-fallback", Scheduler("sh", ("sh-fallback", "sh-port"))),
        (" mh , mh-port,mh-port ", Scheduler("mh", ("mh-port",))),
    ],
)
def test_a_scheduler_is_read_with_its_flags(text: str, scheduler: Scheduler) -> None:
    assert parse_scheduler(text) == scheduler
    assert parse_scheduler(str(scheduler)) == scheduler


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "scheduler '': unknown; use one of random, rr, wrr, sh, dh, mh, lc"),
        ("RR", "scheduler 'RR': unknown; use one of random, rr, wrr, sh, dh, mh, lc"),
        ("lblc,x", "scheduler 'lblc': unknown flag 'x'; it has no flags"),
        ("sh,mh-port", "scheduler 'sh': unknown flag 'mh-port'; it has sh-fallback and sh-port"),
        ("rr,sh-port", "scheduler 'rr': unknown flag 'sh-port'; it has no flags"),
        ("mh,", "scheduler 'mh': unknown flag ''; it has mh-fallback and mh-port"),
        ("a\nb", r"scheduler 'a\nb': unknown"),
    ],
)
def test_an_error_is_one_line_that_names_what_is_known(text: str, error: str) -> None:
    with pytest.raises(ValueError) as raised:  # noqa: PT011  the text is compared
        parse_scheduler(text)
    assert str(raised.value).startswith(error)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["x" * 100_000, "sh," + "x" * 100_000])
def test_an_error_of_a_long_text_is_short(text: str) -> None:
    with pytest.raises(ValueError, match="unknown") as raised:
        parse_scheduler(text)
    assert len(str(raised.value)) < 150


@pytest.mark.parametrize(
    ("kind", "places", "text"),
    [
        ("random", 0, "random"),
        ("random", 1, "fo"),
        ("random", 2, "random"),
        ("round", 0, "rr"),
        ("round", 1, "wrr"),
        ("source", 1, "sh"),
        ("maglev_port", 1, "mh,mh-port"),
        ("lc", 1, "lc"),
    ],
)
def test_a_schedule_of_the_kernel_is_named_as_ip_vs_names_it(
    kind: str, places: int, text: str
) -> None:
    """One place of a table is what ``fo`` leaves of a random choice, and of nothing else."""
    assert scheduler_text(kind, places) == text
