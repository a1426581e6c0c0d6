"""A lab that stays after the demonstration, and a way into its nodes for other terminals.

The lab is in namespaces of the demonstration's own, which no other terminal can see. So each node,
pod and client gets a script that runs a command there.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from bpfsvc.devtools.demo.objects import NGINX, NGINX_NODEPORT, NGINX_PODS
from bpfsvc.devtools.demo.testbed import DemoTestbed
from bpfsvc.devtools.lab.namespace import Namespace

_SCRIPT = """\
#!/bin/sh
# Run a command in {name} of the demonstration, while the demonstration runs.
[ -e /proc/{process} ] || {{ echo 'the demonstration has ended' >&2; exit 1; }}
export PATH={path}:$PATH
exec nsenter --target {process} --net --mount -- sh -c '{enter}exec "$@"' sh "${{@:-sh}}"
"""


def write_scripts(testbed: DemoTestbed, directory: Path) -> None:
    """Write a script for each node, pod and client: it runs a command there."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, namespace in _namespaces(testbed):
        # Its network and mounts are those of the namespace, as long as the lab exists.
        process = namespace.popen(["sleep", "infinity"]).pid
        join = f"echo $$ >{namespace.cgroup}/cgroup.procs; " if namespace.cgroup else ""
        script = directory / name
        text = _SCRIPT.format(
            name=name, process=process, enter=join, path=Path(sys.executable).parent
        )
        script.write_text(text)
        script.chmod(0o755)


def commands(testbed: DemoTestbed, directory: Path) -> list[tuple[str, str]]:
    """Return three commands to go on with: what each shows, and the command."""
    node = testbed.nodes[0]
    at_node = f"{directory}/{node.name} bpfsvc"
    ask = f"exec 3<>/dev/tcp/{node.address()}/{NGINX_NODEPORT}; echo hello >&3; head -1 <&3"
    return [
        ("Services, their backends and connections", f"{at_node} services"),
        (
            "the way of a packet, and why",
            f"{at_node} explain --from pod {NGINX_PODS['nginx-1']} TCP {NGINX.endpoint}",
        ),
        (
            "a connection from outside: which pod answers",
            f"{directory}/{testbed.client.name} bash -c {shlex.quote(ask)}",
        ),
    ]


def wait_for_interrupt() -> None:
    """Return when the user presses Ctrl-C, or ends the process by SIGTERM."""
    ends = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    signal.sigwait(ends)


def _namespaces(testbed: DemoTestbed) -> Iterator[tuple[str, Namespace]]:
    pods = (*testbed.nginx, testbed.pod_a, testbed.shell)
    for namespace in (*testbed.nodes, *pods, testbed.client):
        yield namespace.name, namespace
