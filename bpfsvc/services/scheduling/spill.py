"""Locality overflow: from near endpoints to all that serve (``bpfsvc.io/zone-overload``).

Near endpoints are the endpoints that topology leaves to the clients of a node: in its zone, or on
the node itself. With an overload of 1.5, a new connection chooses among all serving endpoints while
the near endpoints have on average more than 1.5 times as many connections as all have. The programs
decide that by two sums of connections (bpf/path/schedule/spill.h): of the near endpoints, and of
the others. The factors of these sums are calculated here.
"""

from __future__ import annotations

import re
from math import gcd
from typing import NamedTuple

from bpfsvc.services.scheduling.extra import SPILL_COMPARED
from bpfsvc.services.scheduling.numbers import shortened

THOUSAND = 1000
"""An overload is kept in thousandths."""

_MOST = 100
_NUMBER = re.compile(r"(\d{1,3})(?:\.(\d{1,3}))?", re.ASCII)


def parse_overload(text: str) -> int:
    """Return the thousandths that ``1.5`` stands for. Raises ``ValueError`` with one line."""
    match = _NUMBER.fullmatch(text.strip())
    number = int(match[1]) * THOUSAND + int((match[2] or "").ljust(3, "0")) if match else 0
    if not THOUSAND <= number <= _MOST * THOUSAND:
        raise ValueError(
            f"{shortened(text)} must be a number from 1 to {_MOST} with at most three decimals"
        )
    return number


def overload_text(overload: int) -> str:
    """Return an overload as people write it."""
    return f"{overload / THOUSAND:g}"


def can_spill(overload: int, near: int, total: int) -> bool:
    """True if ``near`` of ``total`` endpoints can ever carry too much.

    If all connections there are were at the near ones, these would have on average ``total / near``
    times as many as all have.
    """
    return overload * near < THOUSAND * total


class Sample(NamedTuple):
    """The endpoints in the two sums of connections, and the factors of the sums.

    ``near`` and ``far`` have the indexes of these endpoints among the near ones and the others. A
    connection overflows if the sum of the near endpoints times ``near_factor`` is larger than the
    sum of the others times ``far_factor``.
    """

    near: tuple[int, ...]
    far: tuple[int, ...]
    near_factor: int
    far_factor: int


def sample(overload: int, near: int, far: int) -> Sample:
    """Return the sample of so many near endpoints and others, if connections can overflow.

    Up to 64 endpoints are all in it, else 64: of either kind a share, at equal distances.
    """
    total = near + far
    of_near = near
    if total > SPILL_COMPARED:
        of_near = max(SPILL_COMPARED * near // total, 1)
    of_far = min(far, SPILL_COMPARED - of_near)
    # mean(near) > overload * mean(all), each sum taken as many times as its share stands for.
    near_factor = of_far * (THOUSAND * total - overload * near)
    far_factor = overload * far * of_near
    common = gcd(near_factor, far_factor)
    near_factor, far_factor = near_factor // common, far_factor // common
    surplus = max(max(near_factor, far_factor).bit_length() - 32, 0)
    return Sample(
        tuple(at * near // of_near for at in range(of_near)),
        tuple(at * far // of_far for at in range(of_far)),
        near_factor >> surplus,
        far_factor >> surplus,
    )
