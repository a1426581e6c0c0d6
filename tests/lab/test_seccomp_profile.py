"""An agent does all its work under the profile of ``deploy/seccomp``, without a refused call.

The filter is strict here: a system call that the profile does not have ends the agent.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bpfsvc.devtools.lab.cluster import COMMAND
from bpfsvc.devtools.lab.dial import ask, connect
from bpfsvc.devtools.lab.http_request import http_request
from bpfsvc.devtools.lab.namespace import LabError
from bpfsvc.devtools.lab.patience import wait
from bpfsvc.devtools.lab.rights import limited
from tests.deploy.rendered import DEPLOY
from tests.lab.test_endpoint_removal import RESET, Clients, await_reset, backends, of_pods
from tests.lab.test_least_rights import COMMANDS, MOVED, move, owner
from tests.lab.testbed import WEB, Testbed, built_testbed, objects

pytestmark = pytest.mark.slow

PROFILE = DEPLOY / "seccomp/bpfsvc.json"
FILTER = [sys.executable, str(Path(__file__).with_name("seccomp.py")), str(PROFILE)]
STRICTLY = [*limited(), *FILTER, "strict"]

NEVER = {
    *("mount", "umount2", "pivot_root", "chroot", "setns", "unshare", "ptrace", "keyctl"),
    *("process_vm_readv", "process_vm_writev", "init_module", "finit_module", "kexec_load"),
    *("reboot", "swapon", "settimeofday", "clock_settime", "perf_event_open", "userfaultfd"),
    *("io_uring_setup", "open_by_handle_at", "mknod", "mknodat", "setuid", "setgid", "capset"),
}
"""What takes a container over, or is none of the agent's business."""


def test_the_profile_refuses_by_default_and_allows_nothing_that_an_agent_never_needs() -> None:
    profile = json.loads(PROFILE.read_text())
    assert (profile["defaultAction"], profile["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 1)
    allowed = [name for rule in profile["syscalls"] for name in rule["names"]]
    assert len(allowed) == len(set(allowed))
    assert not NEVER & set(allowed)


@pytest.mark.parametrize("api", [True, False], ids=["API server", "manifests"])
def test_an_agent_starts_follows_and_ends_under_it(api: bool) -> None:
    with built_testbed(layout="routed", nodes=1, served=api) as testbed:
        testbed.cluster.put("web", *objects(WEB, testbed.lab.pods))
        testbed.cluster.start(before=STRICTLY)
        testbed.cluster.apply("web", *objects(WEB, testbed.lab.pods[:1]))
        for place in (testbed.pod, testbed.node):
            assert ask(place, WEB.vip(4), 80).pod == testbed.lab.pods[0].name
        # A start that compiles, and one that takes over.
        testbed.cluster.stop(testbed.node)
        testbed.cluster.start(
            before=STRICTLY, options=("--cache", "none", "--programs", "/", "--max-services", "99")
        )
        log = testbed.agent.log
        assert "replacing an older build" in log
        testbed.cluster.stop(testbed.node)


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    """A lab with an API server, whose first node has an agent under the filter."""
    with built_testbed(layout="routed", served=True) as made:
        made.cluster.put("web", *objects(WEB, made.lab.pods))
        made.cluster.put("left", *of_pods(backends(made), RESET))
        made.cluster.put(MOVED.name, *objects(MOVED, made.lab.pods[:1]))
        made.cluster.start(made.node, before=STRICTLY, options=("--count-drops-elsewhere",))
        made.cluster.start(*made.lab.nodes[1:])
        yield made
        assert made.cluster.agents[made.node.name].health().status == 200
        made.cluster.stop(made.node)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_in_the_agents_container_works_under_it(
    testbed: Testbed, words: tuple[str, ...]
) -> None:
    """A process of ``kubectl exec`` has the filter, too."""
    arguments = [word.format(pod=testbed.pod.address(4)) for word in words]
    before = [*limited(), *FILTER, "as it is"]
    done = testbed.cluster.command(testbed.node, *arguments, before=before)
    assert done.returncode == 0, done.stderr
    assert done.stdout or done.stderr


def test_resets_are_sent_and_sockets_are_moved_under_it(testbed: Testbed) -> None:
    gone, stays = backends(testbed)
    with ExitStack() as stack:
        clients = Clients(testbed, "client", 4, stack)
        testbed.cluster.apply("left", *of_pods([stays], RESET))
        await_reset(clients.by_pod[gone.name])
    with owner(testbed, MOVED.vip(4)) as who:
        assert who() == testbed.lab.pods[0].name
        move(testbed, testbed.lab.pods[1])
        wait(lambda: who() == testbed.lab.pods[1].name, "the socket has another backend")


def test_its_pages_are_served_under_it(testbed: Testbed) -> None:
    """The page of the node is a process that the agent starts."""
    for port, path in ((10256, "/healthz"), (10249, "/metrics"), (10286, "/api/status")):

        def is_served(port: int = port, path: str = path) -> bool:
            try:
                return http_request(testbed.node, "127.0.0.1", port, path)[0] == 200
            except OSError:
                return False

        wait(is_served, f"{path} at {port}")


def test_an_api_server_that_goes_away_and_a_restart_are_survived_under_it(
    testbed: Testbed,
) -> None:
    cluster, node = testbed.cluster, testbed.node
    with connect(testbed.client, node.address(4), WEB.node_port) as opened:
        opened.who()
        cluster.api.go_away()
        cluster.agents.pop(node.name).end(signal.SIGKILL)
        agent = cluster.launch(node, before=STRICTLY)
        agent.expect("no connection to the API server")
        assert opened.echo(b"still here")
        cluster.api.come_back()
        agent.ready()
        cluster.settle([node])
        assert opened.echo(b"still here")


def test_a_call_that_the_profile_does_not_have_is_refused(testbed: Testbed) -> None:
    with pytest.raises(LabError, match="Operation not permitted"):
        testbed.node.run([*FILTER, "as it is", "unshare", "--net", "true"])
    assert testbed.node.run([*FILTER, "as it is", *COMMAND, "--version"]).stdout
