"""What can go wrong between the agent and the API server.

::

    ApiError
    ├── Unreachable            no answer, or one that broke off
    │   ├── Silence            an answer that was open, and nothing came for long
    │   └── InvalidResponse    an answer that no API server gives
    └── Refused                an answer with an error code

Every text is one line without what differs from attempt to attempt, so that the log can leave out
what it has already.
"""

from __future__ import annotations

from bpfsvc.base.errors import BpfsvcError

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE = 401, 403, 404, 409, 410
TOO_MANY_REQUESTS = 429

_LONGEST = 300


class ApiError(BpfsvcError):
    """The API server did not do what it was asked for."""


class Unreachable(ApiError):
    """No answer: refused connection, unknown name, failed TLS, timeout, broken connection."""


class Silence(Unreachable):
    """Nothing arrived for the time that was set; the other end may be there or not."""


class InvalidResponse(Unreachable):
    """An answer that no API server gives; it may come from another server."""


class Refused(ApiError):
    """An answer with a code of 400 and above, or an ``ERROR`` in a watch.

    ``retry_after`` is how many seconds the server asks to wait. ``too_large`` is true if the server
    has not yet seen the version it was asked for.
    """

    def __init__(
        self, code: int, message: str, *, retry_after: float = 0.0, too_large: bool = False
    ) -> None:
        super().__init__(f"{one_line(message) or 'refused'} (code {code})")
        self.code = code
        self.retry_after = retry_after
        self.too_large = too_large


def one_line(text: str) -> str:
    """Return a text of another program as one line of bounded length, which a terminal can show."""
    line = " ".join(text.split())[:_LONGEST]
    return line if line.isprintable() else "".join(c if c.isprintable() else "?" for c in line)
