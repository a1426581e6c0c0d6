"""Which backends are in quarantine, as the agent has written it for people."""

from __future__ import annotations

from bpfsvc.datapath.maps.backend_outcomes import read_states
from bpfsvc.inspect.reader import Reader

WATCHED = "watched"
"""The field of a frontend, and of connections; not shown."""


def quarantined(reader: Reader) -> dict[int, bool]:
    """Return the backends by the ids of their counters: True for those on trial.

    Builds that know no quarantine have none.
    """
    if "quarantined" not in reader.layout.maps:
        return {}
    return read_states(reader.entries("quarantined"), reader.layout)
