"""``--watch``: changes in the kernel's maps, from now on."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from bpfsvc.base.errors import UsageError
from bpfsvc.inspect.changes import CHANGE_WRITERS, Changes
from bpfsvc.inspect.records import Records

_SECONDS = 1.0
"""Between two comparisons."""


def print_changes(read: Callable[[], Iterable[Records]], output: str) -> None:
    """Print changes until Ctrl-C.

    ``read`` reads all records anew; it opens the pins each time, as a newer build has its own.
    """
    if output not in CHANGE_WRITERS:
        raise UsageError(
            f"--watch does not write {output}", f"use -o {' or -o '.join(CHANGE_WRITERS)}"
        )
    changes = Changes()
    with suppress(KeyboardInterrupt):
        while True:
            sys.stdout.writelines(CHANGE_WRITERS[output](changes.update(read())))
            sys.stdout.flush()
            time.sleep(_SECONDS)
