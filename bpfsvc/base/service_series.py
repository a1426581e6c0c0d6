"""Which Services have metrics of their own: the value of ``--metrics-services``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from functools import cached_property

MOST_SERIES = 1_000_000
"""The largest number that ``top:`` takes."""

DEFAULT_SERIES = "top:200"

_FORM = "all, none, top:NUMBER, or patterns NAMESPACE/NAME,..., such as shop/*,kube-system/kube-dns"


@dataclass(frozen=True)
class ServiceSeries:
    """Which service ports have series of their own; all others are one sum.

    * ``most``: those with the most traffic, so many; None: no limit.
    * ``patterns``: those of Services that match one of these; empty: of all Services.
    """

    most: int | None = None
    patterns: tuple[str, ...] = ()

    @property
    def shows_none(self) -> bool:
        """True if no Service has a series, and there is no sum."""
        return self.most == 0

    @property
    def shows_all(self) -> bool:
        """True if every Service has series, so that there is no sum."""
        return self.most is None and not self.patterns

    def matches(self, namespace: str, name: str) -> bool:
        """Return True if a Service matches one of the patterns."""
        return bool(self._expression.fullmatch(f"{namespace}/{name}"))

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return re.compile("|".join(map(translate, self.patterns)))


ALL, NONE = ServiceSeries(), ServiceSeries(most=0)


def parse_service_series(text: str) -> ServiceSeries:
    """Read the value. Raises ``ValueError`` for anything else."""
    if text in ("all", "none"):
        return ALL if text == "all" else NONE
    kind, colon, number = text.partition(":")
    if colon and kind == "top":
        if not (number.isdecimal() and 1 <= int(number) <= MOST_SERIES):
            raise ValueError(f"must be top:1 to top:{MOST_SERIES}, not {text!r}")
        return ServiceSeries(most=int(number))
    patterns = tuple(pattern.strip() for pattern in text.split(","))
    for pattern in patterns:
        namespace, _, name = pattern.partition("/")
        if not (namespace and name and "/" not in name):
            raise ValueError(f"must be {_FORM}, not {text!r}")
    return ServiceSeries(patterns=patterns)
