"""Files and objects that cannot be parsed: logged once, and remembered until they are fixed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from bpfsvc.base.texts import list_text
from bpfsvc.kube.source import ParseError

_log = logging.getLogger("bpfsvc")


class ParseErrors:
    """All errors that there are now."""

    def __init__(self) -> None:
        self._known: dict[str, ParseError] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[ParseError]:
        return iter(self._known.values())

    def replace(self, errors: Iterable[ParseError]) -> list[ParseError]:
        """Replace the errors; log new errors and fixed errors; return the new errors."""
        now = {str(error): error for error in errors}
        new = sorted(now.keys() - self._known.keys())
        for text in new:
            _log.error("%s; the last good state stays in force", text)
        for text in sorted(self._known.keys() - now.keys()):
            _log.info("fixed: %s", text)
        self._known = now
        return [now[text] for text in new]

    def texts(self) -> tuple[str, str]:
        """Return a line about broken files and a line about broken objects; "" for none."""
        files = [text for text, error in self._known.items() if error.key is None]
        single = [text for text, error in self._known.items() if error.key is not None]
        return _line(files), _line(single)


def _line(texts: list[str]) -> str:
    """Return the first text, and how many more there are."""
    if not texts:
        return ""
    return f"cannot be read: {list_text(sorted(texts), 1)}; the last good state stays in force"
