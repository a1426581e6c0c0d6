"""Announcements of netfilter, in a process with many files."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack

from bpfsvc.datapath.netlink.nft_changes import NftChanges


def test_a_descriptor_above_1023_is_waited_for() -> None:
    """An agent with many health checks has that many; select() cannot wait for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as ending:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
        ending.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            ending.callback(os.close, os.open("/dev/null", os.O_RDONLY))
        changes = NftChanges()
        ending.callback(changes.close)
        assert not changes.wait(0.01)
