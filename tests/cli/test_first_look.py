"""``bpfsvc`` without arguments: what this node has, and the next step, in a few lines."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from bpfsvc import __version__
from bpfsvc.cli.first_look import NodeLook, lines
from bpfsvc.cli.main import main
from bpfsvc.inspect.node_health import AgentHealth
from bpfsvc.migration.kube_proxy.running import KubeProxyProcess
from bpfsvc.model.answers import AgentConfiguration

AGENT = AgentConfiguration(
    version=__version__, process=1, arguments=[], node_name="node-1", documents={}
)
OLDER = AgentConfiguration(version="0.0.9", process=1, arguments=[], node_name="n", documents={})
BARE = NodeLook(None, None, KubeProxyProcess(), "6.1.0", ())
RUNNING = BARE._replace(agent=AGENT, health=AgentHealth(status=200))
ILL = RUNNING._replace(health=AgentHealth(status=503, problems=("no API server",)))


@pytest.mark.parametrize(
    ("look", "parts"),
    [
        (BARE, ("none runs here", "does not run", "6.1.0 has what bpfsvc needs", "bpfsvc doctor;")),
        (BARE._replace(refused=None), ("none runs here", "needs root", "as root: bpfsvc doctor")),
        (BARE._replace(refused=("tcx", "maps")), ("refuses tcx; maps", "what to use instead")),
        (BARE._replace(kube_proxy=KubeProxyProcess((12,))), ("runs (process 12)", "migration.md")),
        (BARE._replace(kube_proxy=KubeProxyProcess(sees_node=False)), ("is not seen from this",)),
        (RUNNING, (f"{__version__} runs on node-1, healthy", "bpfsvc status; bpfsvc services")),
        (ILL, ("UNHEALTHY: no API server", "bpfsvc status, and then bpfsvc doctor")),
        (
            RUNNING._replace(agent=OLDER),
            (f"0.0.9 runs on n, healthy; this command is {__version__}",),
        ),
        (RUNNING._replace(health=None), (f"bpfsvc {__version__} runs on node-1\n",)),
    ],
    ids=[
        *("a bare node", "without rights", "an old kernel", "with kube-proxy", "in a container"),
        *(
            "an agent",
            "an unhealthy agent",
            "an agent of another version",
            "an agent without health",
        ),
    ],
)
def test_the_node_and_the_next_step_are_named(look: NodeLook, parts: tuple[str, ...]) -> None:
    shown = [*lines(look)]
    assert 2 <= len(shown) <= 6
    assert max(map(len, shown)) <= 100
    assert [part for part in parts if part not in "\n".join(shown)] == []


def test_it_is_no_error() -> None:
    done = CliRunner().invoke(main, [])
    assert done.exit_code == 0
    assert done.stdout.startswith("agent: ")
    assert done.stdout.endswith("all commands: bpfsvc --help\n")
