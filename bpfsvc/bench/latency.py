"""The price of a Service: transactions through one, against the same two endpoints without.

Several labs stand side by side, alike but for bpfsvc: ``bare`` and ``control`` without it, one with
it for each size of cluster. Client and backend are on different nodes. The turns of a round go
through all of them in shifting order; a round gives one ratio for each, rate there to rate in
``bare``. ``control`` shows what of a ratio is noise; ``direct`` what a node pays for traffic that
is to no Service; ``cluster IP`` is the product.

From a pod, packets are translated by tc; from the node itself, by the socket hooks.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from bpfsvc.bench.agents import cores, start_agents
from bpfsvc.bench.figures import Row, Say, Scale, Spread
from bpfsvc.bench.objects import MEASURED, PORT, write_cluster
from bpfsvc.bench.processes import Talker, server
from bpfsvc.lab import sandbox
from bpfsvc.lab.topology import Lab

_BACKEND_PORT = 9000
_PLACES = {"pod": "tc", "node": "socket hook"}


@dataclass(slots=True)
class Path:
    """One way to the backend, and what each round measured on it."""

    services: int
    variant: str
    clients: dict[str, Talker]
    address: str
    port: int
    rates: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Forget what was measured."""
        self.rates.clear()
        self.costs.clear()


def latency(scale: Scale, say: Say) -> list[Row]:
    """Measure both kinds of transaction from both kinds of place."""
    return measure(scale, say, ("connect", "request"))


def connect(scale: Scale, say: Say) -> list[Row]:
    """Measure whole connections only."""
    return measure(scale, say, ("connect",))


def measure(scale: Scale, say: Say, kinds: Iterable[str]) -> list[Row]:
    """Measure transactions of some kinds, at all sizes of cluster."""
    rows: list[Row] = []
    with ExitStack() as stack:
        paths = _build(stack, scale, say)
        for kind in kinds:
            for place, by in _PLACES.items():
                for path in paths:
                    path.clear()
                _run_rounds(paths, place, kind, scale, say)
                about: Row = {"from": place, "by": by, "transaction": kind}
                rows += [about | _figures(path, paths[0]) for path in paths[1:]]
    return rows


def _build(stack: ExitStack, scale: Scale, say: Say) -> list[Path]:
    paths = []
    for variant in ("bare", "control"):
        lab, clients = _lab(stack)
        paths.append(Path(0, variant, clients, _backend(lab), _BACKEND_PORT))
    for services in scale.services:
        say(f"latency: starting two agents with {services} Services")
        lab, clients = _lab(stack)
        manifests = sandbox.ROOT / f"latency-{services}"
        write_cluster(manifests, services, _backend(lab), _BACKEND_PORT)
        start_agents(stack, lab, manifests)
        paths.append(Path(services, "direct", clients, _backend(lab), _BACKEND_PORT))
        paths.append(Path(services, "cluster IP", clients, MEASURED, PORT))
    return paths


def _lab(stack: ExitStack) -> tuple[Lab, dict[str, Talker]]:
    """Make a lab with a server in a pod of node 2, a client in a pod and on the host of node 1."""
    lab = stack.enter_context(Lab("routed", families=(4,), pods_per_node=1))
    near, far = lab.nodes
    core, _ = cores()
    backend = next(iter(far.pods.values()))
    process = server(backend, socket.SOCK_STREAM, _BACKEND_PORT, "transactions", "server", core)
    places = {"pod": next(iter(near.pods.values())), "node": near}
    return lab, {
        name: Talker(place, "transactions", "client", str(core), str(process))
        for name, place in places.items()
    }


def _backend(lab: Lab) -> str:
    return next(iter(lab.nodes[1].pods.values())).address(4)


def _run_rounds(paths: Sequence[Path], place: str, kind: str, scale: Scale, say: Say) -> None:
    for path in paths:  # routes, neighbours, and Python's caches
        path.clients[place].ask(kind, path.address, path.port, scale.slice_seconds)
    for number in range(scale.rounds):
        say(f"latency: {kind} from {place}, round {number + 1} of {scale.rounds}")
        sums = {id(path): [0.0, 0.0, 0.0] for path in paths}
        for turn in range(scale.slices):
            first = turn % len(paths)
            for path in (*paths[first:], *paths[:first]):
                told = path.clients[place].ask(kind, path.address, path.port, scale.slice_seconds)
                sums[id(path)] = [a + b for a, b in zip(sums[id(path)], told, strict=True)]
        for path in paths:
            done, seconds, cpu = sums[id(path)]
            path.rates.append(done / seconds)
            path.costs.append(cpu / done * 1e6)


def _figures(path: Path, bare: Path) -> Row:
    ratios = [here / there for here, there in zip(path.rates, bare.rates, strict=True)]
    cheap = [there / here for here, there in zip(path.costs, bare.costs, strict=True)]
    return {
        "services": path.services,
        "variant": path.variant,
        **Spread.of(ratios).columns("ratio"),
        **Spread.of(cheap).columns("CPU ratio"),
        "per second": Spread.of(path.rates).median,
        "bare per second": Spread.of(bare.rates).median,
        "CPU us": Spread.of(path.costs).median,
        "bare CPU us": Spread.of(bare.costs).median,
    }
