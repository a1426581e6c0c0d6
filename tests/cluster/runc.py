#!/usr/bin/python3 -IS
"""runc on a node with a unified hierarchy whose controllers are elsewhere.

Where controllers belong to the first version's hierarchies, as on hybrid machines, cgroup2 has
cgroups but neither ``cpu.weight`` nor ``memory.max``, and runc refuses containers with limits. This
program takes the limits out, the rules for devices excepted, and goes on as runc.

containerd calls it in the place of runc: it is a file of its own, without other modules of this
package, so that a call costs 15 ms.
"""

import json
import os
import sys
from pathlib import Path

_CONTROLLERS = Path("/sys/fs/cgroup/cgroup.controllers")
_NEEDED = {"cpu", "memory", "pids"}


def without_limits(config: dict[str, dict[str, dict[str, object]]]) -> None:
    """Take the limits out of the configuration of a container (``config.json`` of OCI)."""
    resources = config.get("linux", {}).get("resources", {})
    for name in resources.keys() - {"devices"}:
        del resources[name]


def main(words: list[str]) -> None:
    """Become runc."""
    if not set(_CONTROLLERS.read_text().split()) >= _NEEDED:
        if "update" in words:  # of limits, and of nothing else
            return
        if "--bundle" in words:
            file = Path(words[words.index("--bundle") + 1], "config.json")
            config = json.loads(file.read_text())
            without_limits(config)
            file.write_text(json.dumps(config))
    os.execvp("runc", ["runc", *words])


if __name__ == "__main__":
    main(sys.argv[1:])
