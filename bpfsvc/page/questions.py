"""What the answers of a page have in common: questions, and objects that are not there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bpfsvc.base.errors import BpfsvcError

Query = Mapping[str, str]
Answers = Mapping[str, Callable[[Query], dict[str, Any]]]
"""By path."""


class Busy(BpfsvcError):
    """Another question keeps this one from being answered now."""


class NotHere(BpfsvcError):
    """The object of a question does not exist on this node, or in this cluster."""
