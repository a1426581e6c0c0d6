"""Numbers that Python and the C sources share, by their names in C.

This room may not read the layout of the programs, so the numbers stand here.
:class:`bpfsvc.datapath.maps.service_maps.ServiceMaps` compares them with the layout before the
first entry is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from bpfsvc.services.scheduling.extra import COMPARED, MAX_TRIALS, SPILL_COMPARED, TABLE_CHUNK
from bpfsvc.services.scheduling.maps import Among
from bpfsvc.services.scheduling.removal import OnRemoval
from bpfsvc.services.scheduling.schedulers import Schedule

ENUMS: Mapping[str, type[IntEnum]] = {"AMONG_": Among, "REMOVAL_": OnRemoval, "SCHEDULE_": Schedule}
"""The enums, by how the names of their constants begin in C."""

CONSTANTS: Mapping[str, int] = {
    "CANDIDATES": COMPARED,
    "MAX_TRIALS": MAX_TRIALS,
    "SPILL_COMPARED": SPILL_COMPARED,
    "TABLE_CHUNK": TABLE_CHUNK,
    **{prefix + item.name: item.value for prefix, enum in ENUMS.items() for item in enum},
}
