"""Answers to the commands of this node: the objects behind the entries in the kernel.

The threads of the server read what the agent's own thread changes. Each value that is read here is
replaced as a whole and never changed in place, so an answer is at most a moment old.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from bpfsvc import __version__
from bpfsvc.agent.history.changes import History
from bpfsvc.agent.history.failures import FailureHistory
from bpfsvc.base.address import unpack
from bpfsvc.config.config import Config
from bpfsvc.http.local_server import Answer
from bpfsvc.kube.source import Source
from bpfsvc.model.answers import (
    AgentConfiguration,
    AgentState,
    FailureAnswer,
    ServiceAnswer,
    encode,
)
from bpfsvc.model.archive import pack_objects
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.entries import frontend_text
from bpfsvc.services.faults import losers
from bpfsvc.services.planner import Planner


def answers(
    config: Config,
    planner: Planner,
    source: Source,
    history: History,
    failed: FailureHistory,
    failures: Callable[[], FailureAnswer],
    state: Callable[[], AgentState],
) -> dict[str, Answer]:
    """Return the answers by path.

    ``failures()`` returns what failed in the last minutes, ``state()`` how far the agent is.
    """

    def pod(namespace: str, name: str) -> bytes | None:
        found_pod = source.find_pod(namespace, name)
        return encode(found_pod) if found_pod else None

    return {
        "/service": lambda namespace, name: _service(planner, (namespace, name)),
        "/pod": pod,
        "/history": lambda namespace, name: history.json((namespace, name) if name else None),
        "/failed": lambda namespace, name: failed.json((namespace, name) if name else None),
        "/configuration": lambda _namespace, _name: _configuration(config),
        "/failures": lambda _namespace, _name: encode(failures()),
        "/state": lambda _namespace, _name: encode(state()),
    }


def _service(planner: Planner, key: ServiceKey) -> bytes:
    known = planner.cache.lookup(key)
    conflicts = {
        frontend_text(frontend): texts
        for frontend in planner.applied_state.frontends(key)
        if (texts := list(losers(planner.ownership, frontend)))
    }
    service = [known.service] if known.service else []
    scheduling = planner.schedulings.in_force(key)
    return encode(
        ServiceAnswer(
            archived=pack_objects([planner.cache.node, *service, *known.slices]),
            conflicts=conflicts,
            refused=str(planner.refused.get(key) or ""),
            drain_seconds=scheduling.removal.drain_seconds,
            shares={unpack(address): share for address, share in scheduling.shares.items()},
        )
    )


def _configuration(config: Config) -> bytes:
    return encode(
        AgentConfiguration(
            version=__version__,
            process=os.getpid(),
            arguments=sys.argv[1:],
            node_name=config.node_name,
            documents={name: dict(fields) for name, fields in config.document.items()},
            master=config.master,
        )
    )
