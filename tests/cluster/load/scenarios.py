"""What happens to a cluster while its Services are used.

Each function does one thing to the cluster and returns when it is done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final

from tests.cluster.cluster import Cluster
from tests.cluster.load import objects
from tests.cluster.load.clients import Clients, apply, wait_for
from tests.cluster.load.tool import Job

QUIET, BUSY = "n1", "n2"
"""The node with what stays, and the one that is drained."""

SYSTEM: Final = "kube-system"
AGENTS: Final = "app.kubernetes.io/name=bpfsvc"
_HEALTHZ: Final = "http://127.0.0.1:10256/healthz"
_AWAY_SECONDS: Final = 60.0


def set_up(cluster: Cluster) -> None:
    """Make backends and Services, and wait until all clients reach them."""
    apply(
        cluster,
        objects.namespace(),
        objects.backends("rolled", 3),
        objects.backends("kept", 3, QUIET),
        objects.backends("leaving", 1, QUIET, objects.LEAVING_DELAY),
        *map(objects.service, objects.BACKENDS),
    )
    for name in objects.BACKENDS:
        cluster.rolled_out("deployment", name, objects.NAMESPACE)
    with clients(cluster):
        pass


def tear_down(cluster: Cluster) -> None:
    """Remove all of it, at once."""
    words = ("--namespace", objects.NAMESPACE, "--all", "--grace-period=1")
    cluster.kubectl("delete", "deployments", *words[:3])
    cluster.kubectl("delete", "pods", *words)
    cluster.kubectl("delete", "namespace", objects.NAMESPACE, "--ignore-not-found")


def clients(
    cluster: Cluster, kept: str = "kept", host: str = BUSY, also: Sequence[Job] = ()
) -> Clients:
    """Return the clients, to be started: a pod on the quiet node, the other on ``host``."""
    return Clients(cluster, (QUIET, host), (QUIET, BUSY), kept=kept, also=also)


def _restart(cluster: Cluster, what: str, namespace: str) -> None:
    cluster.kubectl("rollout", "restart", what, "--namespace", namespace)


def roll_backends(cluster: Cluster) -> None:
    """Replace all backends by new pods, and wait until the old ones are gone."""
    _restart(cluster, "deployment/rolled", objects.NAMESPACE)
    _backends_settle(cluster)


def roll_agents(cluster: Cluster) -> None:
    """Replace the agents' pods, one node after the other."""
    _restart(cluster, "daemonset/bpfsvc", SYSTEM)
    cluster.rolled_out("daemonset", "bpfsvc", SYSTEM)


def roll_both(cluster: Cluster) -> None:
    """Replace backends and agents at the same time."""
    _restart(cluster, "deployment/rolled", objects.NAMESPACE)
    roll_agents(cluster)
    _backends_settle(cluster)


def kill_agents(cluster: Cluster) -> None:
    """Kill the agent's process on each node in turn; the kubelet starts it again."""
    for pod in pods(cluster, AGENTS):
        name, node, before = pod["metadata"]["name"], pod["spec"]["nodeName"], _restarts(pod)
        for number in cluster.enter(node, ["pgrep", "-f", "bpfsvc run"]).split():
            cluster.enter(node, ["kill", "-9", number])

        def back(name: str = name, before: int = before) -> bool:
            (found,) = (pod for pod in pods(cluster, AGENTS) if pod["metadata"]["name"] == name)
            return _restarts(found) > before and ready(found)

        wait_for(back, f"the kubelet of {node} has started the agent again", 120)


def drain(cluster: Cluster) -> None:
    """Drain the busy node, and wait until its backends run elsewhere.

    By force, for pods of tests before that no controller has and that are still ending.
    """
    words = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=120s")
    cluster.kubectl("drain", BUSY, *words)
    _backends_settle(cluster)
    places = {pod["spec"]["nodeName"] for pod in _backends(cluster)}
    assert BUSY not in places, f"backends still run on {BUSY}"


def uncordon(cluster: Cluster) -> None:
    """Let the busy node have pods again."""
    cluster.kubectl("uncordon", BUSY)


def lose_api_server(cluster: Cluster) -> None:
    """End the API server for a minute; when all have found it again, replace the backends."""
    cluster.control_plane.stop_server()
    try:
        time.sleep(_AWAY_SECONDS)
    finally:
        cluster.control_plane.start_server()
    wait_for(lambda: _recovered(cluster), "nodes and agents follow the API server again", 120)
    roll_backends(cluster)


def _recovered(cluster: Cluster) -> bool:
    """True if all nodes are ready, all backends, too, and no agent notes a problem.

    The controller manager takes nodes for dead that could not report to an absent API server, and
    their pods for not ready, until they report again.
    """
    notes = [
        json.loads(cluster.enter(node, ["curl", "-s", _HEALTHZ])).get("notes")
        for node in cluster.nodes
    ]
    backends = [*_backends(cluster), *pods(cluster, "app=kept", objects.NAMESPACE)]
    return not any(notes) and all(map(ready, [*cluster.get("nodes"), *backends]))


def replace_image(cluster: Cluster, image: str) -> None:
    """Give the agents another image, and wait until each node has it."""
    words = ("set", "image", "daemonset/bpfsvc", "--namespace", SYSTEM)
    cluster.kubectl(*words, f"node={image}", f"bpfsvc={image}")
    cluster.rolled_out("daemonset", "bpfsvc", SYSTEM)


def image(cluster: Cluster) -> str:
    """Return the image that the agents have by their DaemonSet."""
    path = "jsonpath={.spec.template.spec.containers[0].image}"
    return cluster.kubectl("get", "daemonset/bpfsvc", "--namespace", SYSTEM, "-o", path)


def delete_leaving(cluster: Cluster) -> str:
    """Delete the backend of ``leaving``, and wait until another one serves; return its name."""
    (pod,) = pods(cluster, "app=leaving", objects.NAMESPACE)
    name = str(pod["metadata"]["name"])
    cluster.kubectl("delete", "pod", name, "--namespace", objects.NAMESPACE, "--wait=false")
    cluster.rolled_out("deployment", "leaving", objects.NAMESPACE)
    return name


def exists(cluster: Cluster, pod: str) -> bool:
    """True if there is a pod of that name, running or ending."""
    words = ("get", "pod", pod, "--namespace", objects.NAMESPACE, "--ignore-not-found")
    return bool(cluster.kubectl(*words))


def pods(cluster: Cluster, selector: str, namespace: str = SYSTEM) -> list[dict[str, Any]]:
    """Return the pods with a label."""
    return cluster.get("pods", "--selector", selector, "--namespace", namespace)


def _backends(cluster: Cluster) -> list[dict[str, Any]]:
    return pods(cluster, "app=rolled", objects.NAMESPACE)


def _backends_settle(cluster: Cluster) -> None:
    """Wait until the Deployment is complete and no backend is ending."""
    cluster.rolled_out("deployment", "rolled", objects.NAMESPACE)
    words = ("get", "deployment", "rolled", "--namespace", objects.NAMESPACE, "-o", "json")
    replicas = json.loads(cluster.kubectl(*words))["spec"]["replicas"]

    def settled() -> bool:
        backends = _backends(cluster)
        return len(backends) == replicas and all(map(ready, backends))

    wait_for(settled, f"{replicas} backends are ready and no other is left", 120)


def ready(pod: dict[str, Any]) -> bool:
    """True if a pod, or a node, is ready and not ending."""
    conditions = {one["type"]: one["status"] for one in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def _restarts(pod: dict[str, Any]) -> int:
    return sum(one["restartCount"] for one in pod["status"].get("containerStatuses", []))
