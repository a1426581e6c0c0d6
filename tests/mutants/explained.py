"""Changes that no test can see, with the reason of each."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from tests.mutants.c_changes import Change

_FILE = Path(__file__).with_suffix(".yaml")


@cache
def explained() -> dict[tuple[str, str, str], str]:
    """Return the reasons, by a file, a line as it is, and the line changed."""
    return {
        (file, before, after): group["reason"]
        for file, groups in yaml.safe_load(_FILE.read_text()).items()
        for group in groups
        for before, after in group["changes"]
    }


def reason_of(change: Change) -> str:
    """Return why no test can see a change; nothing if that is not known."""
    return explained().get(place(change), "")


def place(change: Change) -> tuple[str, str, str]:
    """Return a change as the reasons name it."""
    return change.file, change.before.strip(), change.after.strip()
