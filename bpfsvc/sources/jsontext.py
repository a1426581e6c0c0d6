"""JSON text: taken apart into objects, and the line of what is wrong with it.

The way through here is fast when all is well: msgspec finds the items of a List without decoding
them. Only text it refuses is gone over again, by the standard library, which can say where a
document ends (one object after another is allowed) and on which line it broke.
"""

from __future__ import annotations

import json
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType, field


class _Head(msgspec.Struct, gc=False):
    """As much of an object as tells whether it is a List."""

    kind: object = None
    api_version: object = field(default=None, name="apiVersion")
    items: list[msgspec.Raw] | UnsetType | None = UNSET


_head = msgspec.json.Decoder(_Head).decode
load = msgspec.json.decode


class JsonError(Exception):
    """Text that is not usable JSON; ``line`` counts from 0 within the text."""

    def __init__(self, line: int, reason: str) -> None:
        self.line = line
        self.reason = reason
        super().__init__(f"line {line + 1}: {reason}")


class Items(NamedTuple):
    """A List taken apart: what it says of itself, and the text of each item, not copied."""

    kind: str
    api_version: object
    texts: list[msgspec.Raw]


def unfold(text: bytes) -> Items | None:
    """Take a List apart; ``None`` for anything else, text that is no JSON included."""
    try:
        head = _head(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if isinstance(head.items, UnsetType) or not isinstance(head.kind, str):
        return None
    if not head.kind.endswith("List"):
        return None
    return Items(head.kind, head.api_version, head.items or [])


def split(text: bytes) -> list[bytes]:
    """Split text into its documents; raises :class:`JsonError` for what is no JSON."""
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        refusal = str(error)
    else:
        return [text]
    characters = text.decode()
    documents: list[bytes] = []
    position = _skip_space(characters, 0)
    while position < len(characters):
        try:
            _, end = _DECODER.raw_decode(characters, position)
        except json.JSONDecodeError as error:
            last = characters.rstrip().count("\n")
            raise JsonError(min(error.lineno - 1, last), f"malformed JSON: {error.msg}") from error
        except RecursionError as error:
            raise JsonError(0, "malformed JSON: nested too deeply") from error
        documents.append(characters[position:end].encode())
        position = _skip_space(characters, end)
    if len(documents) == 1:
        # The standard library takes what msgspec does not, NaN for one.
        raise JsonError(0, f"malformed JSON: {refusal}")
    return documents


_DECODER = json.JSONDecoder()


def _skip_space(characters: str, position: int) -> int:
    while position < len(characters) and characters[position] in " \t\r\n":
        position += 1
    return position
