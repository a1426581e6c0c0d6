"""Refusals: the answers of a server to requests that it does not carry out.

Each one has a ``Status`` object with a machine-readable reason ("API conventions", Response Status
Kind). The texts are real servers' texts, because some clients read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from bpfsvc.devtools.lab.apiserver.resources import ApiPath

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
    """A request is answered with a Status; ``body`` is that object, ``headers`` go with it.

    Without ``reason``, the code gives the reason; None leaves the reason out.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str | None = "",
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
        }
        if reason is not None:
            self.body["reason"] = reason or REASONS.get(code, "Unknown")
        if details is not None:
            self.body["details"] = dict(details)
        self.body["code"] = code


def unauthorized() -> Refusal:
    """Return the refusal of a missing, wrong or expired token."""
    return Refusal(401, "Unauthorized")


def too_old(version: int, oldest: int) -> Refusal:
    """Return the refusal of a watch from a version with deleted history."""
    return Refusal(410, f"too old resource version: {version} ({oldest})")


def list_too_old(token: str = "") -> Refusal:
    """Return the refusal of a page of a list, or an exact list, of a deleted version.

    ``token`` continues at the same key in the present objects (an inconsistent list).
    """
    if token:
        return Refusal(410, _OLD_CONTINUE, metadata={"continue": token})
    return Refusal(410, "The resourceVersion for the provided list is too old.")


def too_large(version: int, current: int) -> Refusal:
    """Return the refusal of a list at a version that is too new: this server is behind another.

    A real server waits 3 seconds for the version first.
    """
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    return Refusal(
        504,
        f"Timeout: Too large resource version: {version}, current: {current}",
        details={"causes": [cause], "retryAfterSeconds": 1},
        headers={"Retry-After": "1"},
    )


class Mistake(NamedTuple):
    """A mistake in a field. ``reason`` is the reason of the cause: ``FieldValueRequired``."""

    field: str
    reason: str
    message: str


def forbidden_field(field: str, why: str) -> Mistake:
    """Return the mistake of a field that may not be there."""
    return Mistake(field, "FieldValueForbidden", f"Forbidden: {why}")


def unsupported_value(field: str, value: str, supported: Iterable[str]) -> Mistake:
    """Return the mistake of a value that is not supported."""
    known = ", ".join(f'"{value}"' for value in supported)
    text = f'Unsupported value: "{value}": supported values: {known}'
    return Mistake(field, "FieldValueNotSupported", text)


def invalid(what: str, which: Mapping[str, Any], mistakes: Sequence[Mistake]) -> Refusal:
    """Return the refusal (422) of an object or of options with mistakes."""
    # As Go joins errors: the same text is said once, and only the causes have it twice.
    said = list(dict.fromkeys(f"{mistake.field}: {mistake.message}" for mistake in mistakes))
    causes = [
        {"reason": mistake.reason, "message": mistake.message, "field": mistake.field}
        for mistake in mistakes
    ]
    text = said[0] if len(said) == 1 else f"[{', '.join(said)}]"
    return Refusal(422, f"{what} is invalid: {text}", details={**which, "causes": causes})


def wrong_options(*mistakes: Mistake) -> Refusal:
    """Return the refusal of options of a list or watch."""
    which = {"group": "meta.k8s.io", "kind": "ListOptions"}
    return invalid('ListOptions.meta.k8s.io ""', which, mistakes)


def forbidden_option(field: str, why: str) -> Refusal:
    """Return the refusal of an option that may not be there."""
    return wrong_options(forbidden_field(field, why))


def not_found(target: ApiPath) -> Refusal:
    """Return the refusal of an object that does not exist."""
    return Refusal(
        404, f'{target.resource.described} "{target.name}" not found', details=_which(target)
    )


def unknown_resource() -> Refusal:
    """Return the refusal of a path below a known group."""
    return Refusal(404, "the server could not find the requested resource", details={})


def wrong_method() -> Refusal:
    """Return the refusal of a method that the path does not have."""
    return Refusal(
        405, "the server does not allow this method on the requested resource", details={}
    )


def forbidden(target: ApiPath, user: str, verb: str, below: str = "") -> Refusal:
    """Return the refusal of a user without a role for a verb; ``below``: a subresource."""
    resource = target.resource
    named = f' "{target.name}"' if target.name else ""
    scope = f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
    return Refusal(
        403,
        f'{resource.described}{named} is forbidden: User "{user}" cannot {verb} resource '
        f'"{resource.plural}{below and f"/{below}"}" in API group "{resource.group}" {scope}',
        details=_which(target),
    )


def _which(target: ApiPath) -> dict[str, str]:
    named = {"name": target.name} if target.name else {}
    group = {"group": target.resource.group} if target.resource.group else {}
    return named | group | {"kind": target.resource.plural}


def of_code(code: int, *, retry_after: int | None = None, path: str = "") -> Refusal:
    """Return the refusal of a server under load, in trouble, or without permission."""
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
