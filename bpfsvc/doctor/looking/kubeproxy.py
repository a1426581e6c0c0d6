"""kube-proxy, running or gone."""

from __future__ import annotations

from bpfsvc.datapath.pins import PinRoot
from bpfsvc.doctor.facts import Proxy
from bpfsvc.inspection.status import is_running
from bpfsvc.takeover.leftovers import Leftovers
from bpfsvc.takeover.running import find_kube_proxy


def look(root: PinRoot, found: Leftovers) -> Proxy:
    """Look; ``found`` is what was found of its rules."""
    agent_runs = root.path.is_dir() and is_running(root)
    return Proxy(
        running=find_kube_proxy(agent_runs=agent_runs),
        agent_runs=agent_runs,
        leftovers=tuple(str(part) for part in found.parts),
        remarks=found.remarks,
        unseen=found.unseen,
    )
