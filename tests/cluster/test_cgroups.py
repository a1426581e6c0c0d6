"""The hierarchies of a machine, read from its mounts."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.cgroups import Hierarchy, hierarchies

HYBRID = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
32 30 0:28 / /sys/fs/cgroup/systemd rw,nosuid shared:9 - cgroup cgroup rw,name=systemd
33 30 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
34 22 0:29 / /run/other/cgroup rw,relatime - cgroup2 cgroup2 rw
"""
UNIFIED = "30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_a_hybrid_machine_has_controllers_and_cgroup2_beside_them() -> None:
    assert hierarchies(HYBRID) == [
        Hierarchy(Path("/sys/fs/cgroup/cpu"), False, "cpu"),
        Hierarchy(Path("/sys/fs/cgroup/systemd"), False, "none,name=systemd"),
        Hierarchy(Path("/sys/fs/cgroup/unified"), True),
    ]


def test_a_unified_machine_has_one() -> None:
    assert hierarchies(UNIFIED) == [Hierarchy(Path("/sys/fs/cgroup"), True)]
