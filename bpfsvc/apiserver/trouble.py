"""What can go wrong between here and the API server.

::

    ApiError
    ├── Unreachable    no answer, or one that broke off
    │   └── Garbled    an answer that is not what an API server says
    └── Refused        an answer that says no, with its code

Every text is one line without what differs from attempt to attempt: a log that has told it once
need not tell it again.
"""

from __future__ import annotations

from bpfsvc.errors import BpfsvcError

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE = 401, 403, 404, 409, 410
TOO_MANY_REQUESTS = 429

_LONGEST = 300


class ApiError(BpfsvcError):
    """The API server did not do what it was asked for."""


class Unreachable(ApiError):
    """No answer: nobody listens, the name is unknown, TLS fails, it takes too long, it breaks."""


class Garbled(Unreachable):
    """An answer that is not what an API server says; it may be another's."""


class Refused(ApiError):
    """An answer with a code of 400 and above, or an ``ERROR`` in a watch.

    ``retry_after`` is how many seconds the server wants to be left alone. ``too_large`` tells a
    server that has not yet seen the version it was asked for.
    """

    def __init__(
        self, code: int, message: str, *, retry_after: float = 0.0, too_large: bool = False
    ) -> None:
        super().__init__(f"{one_line(message) or 'refused'} (code {code})")
        self.code = code
        self.retry_after = retry_after
        self.too_large = too_large


def one_line(text: str) -> str:
    """Make one line of bounded length of what somebody else said."""
    return " ".join(text.split())[:_LONGEST]
