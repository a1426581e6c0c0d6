"""What of the source cannot be read at present: told once, and remembered.

As long as a file is broken, nobody knows which Services it held. A Service in an API server is
known by its name, and of a slice at least the namespace is known.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from bpfsvc.cluster import ServiceKey
from bpfsvc.sources import Problem

_log = logging.getLogger("bpfsvc")


class Problems:
    """All that is broken now; true if anything is."""

    def __init__(self) -> None:
        self._known: dict[str, Problem] = {}

    def __len__(self) -> int:
        return len(self._known)

    def note(self, found: Iterable[Problem]) -> None:
        """Log everything that is broken since the last time, and what is mended."""
        now = {str(problem): problem for problem in found}
        for text in sorted(now.keys() - self._known.keys()):
            _log.error("%s; the last good state stays in force", text)
        for text in sorted(self._known.keys() - now.keys()):
            _log.info("mended: %s", text)
        self._known = now

    def hidden(self, services: Iterable[ServiceKey]) -> set[ServiceKey]:
        """Give those of some Services of which nobody knows whether they still exist."""
        every = set(services)
        hidden: set[ServiceKey] = set()
        for problem in self._known.values():
            if problem.key is None:
                return every
            kind, namespace, name = problem.key
            if kind == "Service":
                hidden |= every & {(namespace, name)}
            else:
                hidden |= {key for key in every if key[0] == namespace}
        return hidden
