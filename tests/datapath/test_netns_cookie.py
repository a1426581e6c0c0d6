"""The cookie of a network namespace on kernels whose sockets do not tell it."""

from __future__ import annotations

from bpfsvc.datapath.attach import cgroup
from bpfsvc.datapath.netns_cookie import cookie_by_program
from bpfsvc.devtools.lab import sandbox


def test_a_program_learns_the_cookie_that_a_socket_would_tell() -> None:
    sandbox.require()
    told = cgroup.netns_cookie()
    assert told
    assert cookie_by_program(sandbox.CGROUP_ROOT) == told
