"""What becomes of connections to an endpoint that leaves, by a value of map ``frontends``."""

from __future__ import annotations

from collections.abc import Callable

from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.inspect.fields import chooser, lacks

REMOVAL = ("removal",)
"""The field; builds that have none keep connections."""

KEEP = "keep"


def removal_reader(layout: Layout) -> Callable[[bytes], str]:
    """Return a function from a value to ``keep``, ``drain`` or ``reset``."""
    record = layout.maps["frontends"].value
    if lacks(record, REMOVAL):
        return lambda _value: KEEP
    choose, names = chooser(record, REMOVAL), layout.constants_named("REMOVAL_")

    def read(value: bytes) -> str:
        (number,) = choose(value)
        return names.get(number, str(number)) if number else KEEP

    return read
