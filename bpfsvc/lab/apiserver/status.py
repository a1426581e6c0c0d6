"""Refusals: what a server answers instead of what it was asked for.

Every one carries a ``Status`` object with a machine-readable reason ("API conventions", Response
Status Kind). The texts are those of real servers, for clients have been seen to read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "AlreadyExists",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}

_OLD_CONTINUE = (
    "The provided continue parameter is too old to display a consistent list result. You can start "
    "a new list without the continue parameter, or use the continue token in this response to "
    "retrieve the remainder of the results. Continuing with the provided token results in an "
    "inconsistent list - objects that were created, modified, or deleted between the time the "
    "first chunk was returned and now may show up in the list."
)


class Refusal(Exception):
    """A request is answered with a Status; ``body`` is that object, ``headers`` go with it."""

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
        self.headers = dict(headers or {})
        self.body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": dict(metadata or {}),
            "status": "Failure",
            "message": message,
            "reason": reason or REASONS.get(code, "Unknown"),
        }
        if details:
            self.body["details"] = dict(details)
        self.body["code"] = code


def unauthorized() -> Refusal:
    """A missing, wrong or expired token."""
    return Refusal(401, "Unauthorized")


def too_old(version: int, oldest: int) -> Refusal:
    """A watch from a version whose history is forgotten."""
    return Refusal(410, f"too old resource version: {version} ({oldest})")


def list_too_old(token: str = "") -> Refusal:
    """A page of a list, or an exact list, of a version that is forgotten.

    ``token`` continues at the same place in what is there now (an inconsistent list).
    """
    if token:
        return Refusal(410, _OLD_CONTINUE, metadata={"continue": token})
    return Refusal(410, "The resourceVersion for the provided list is too old.")


def too_large(version: int, current: int) -> Refusal:
    """A list at least as new as a version that is not there (yet): a server behind another.

    A real one waits 3 seconds for it first.
    """
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Refusal(
        504,
        f"Too large resource version: {version}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        headers={"Retry-After": "1"},
    )


def forbidden_option(field: str, why: str) -> Refusal:
    """An option of a list or watch that may not be used so."""
    return Refusal(
        422,
        f'ListOptions.meta.k8s.io "" is invalid: {field}: Forbidden: {why}',
        details={
            "group": "meta.k8s.io",
            "kind": "ListOptions",
            "causes": [
                {"reason": "FieldValueForbidden", "message": f"Forbidden: {why}", "field": field}
            ],
        },
    )


def of_code(code: int, *, retry_after: int | None = None, path: str = "") -> Refusal:
    """A refusal as a server under load, in trouble or without permission sends it."""
    messages = {
        401: "Unauthorized",
        403: f'forbidden: User "system:anonymous" cannot get path "{path}"',
        429: "Too many requests, please try again later.",
        500: "Internal error occurred: etcdserver: request timed out",
        503: "the request has been made before all known HTTP paths have been installed, "
        "please try again",
        504: "Timeout: request did not complete within the allotted timeout",
    }
    details = {"retryAfterSeconds": retry_after} if retry_after is not None else None
    headers = {"Retry-After": str(retry_after)} if retry_after is not None else None
    return Refusal(code, messages.get(code, "refused"), details=details, headers=headers)
