"""A model of ``lblc`` and ``lblcr`` beside the programs: each choice has to be the one of ip_vs.

Its rules are those of tests/specification/ipvs_loads.py: the kernel's C, written anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from bpfsvc.base.address import pack
from bpfsvc.services.scheduling.schedulers import Schedule
from tests.packets.loads import Loaded
from tests.packets.packet import address_port
from tests.packets.peers import address_of
from tests.specification import ipvs_loads
from tests.specification.ipvs import Destination
from tests.specification.ipvs_loads import Conns

A_DAY = 24 * 3600


class Model:
    """ip_vs with one virtual service, asked at two addresses."""

    def __init__(self, service: Loaded, schedule: Schedule, weights: Sequence[int]) -> None:
        self.service, self.schedule = service, schedule
        self.lblc, self.lblcr, self.now = ipvs_loads.Lblc(), ipvs_loads.Lblcr(), 0
        self.conns = [Conns()] * len(weights)
        self.write(weights)
        localities = service.node.pinned.map("localities")
        nothing = bytes(localities.value_size)
        localities.update_many([(key, nothing) for key, _ in localities.items()])

    def write(self, weights: Sequence[int]) -> None:
        """Have the Service these weights, and the model."""
        self.service.program(self.schedule, weights, reject=True)
        places = map(address_port, self.service.backends)
        self.there = [
            Destination(*place, weight) for place, weight in zip(places, weights, strict=True)
        ]

    def wait(self, seconds: int) -> None:
        """Make what has changed so many seconds older."""
        self.now += seconds
        localities = self.service.node.pinned.map("localities")
        record = self.service.node.pinned.layout.maps["localities"].value
        for key, raw in list(localities.items()):
            value = record.unpack(raw)
            # The clock begins with the machine, which may have been up for less than that.
            value["changed"] = (int(value["changed"]) - seconds * 10**9) % 2**64
            localities.update(key, record.pack(value))

    def choose(self, vip: str) -> int | None:
        """Return which backend the next connection to an address has to get."""
        asked = pack(address_of(vip))
        if self.schedule is Schedule.LBLC:
            return self.lblc(self.there, self.conns, asked)
        return self.lblcr(self.there, self.conns, asked, self.now)

    def add(self, chosen: int, active: int, inactive: int) -> None:
        """Change the numbers of a backend."""
        before = self.conns[chosen]
        self.conns[chosen] = Conns(before.active + active, before.inactive + inactive)


def course(service: Loaded, model: Model, opened: int, alive: int, random: Random) -> Counter[str]:
    """Open and close connections at both addresses in a random order; change weights meanwhile.

    Every choice is the model's. Return how often the backend of an address changed, and stayed.
    """
    weights = [one.weight for one in model.there]
    active: dict[int, tuple[int, str]] = {}
    inactive: dict[int, tuple[int, str]] = {}
    had: dict[str, int] = {}
    found = Counter[str]()
    port, last = 1024, 1024 + opened
    while port < last or active or inactive:
        step = random.random()
        if step < 0.002 and port < last:
            model.write(
                [random.choice((0, weight, weight, 2 * weight)) for weight in weights[:-1]] + [1]
            )
        elif step < 0.003:
            model.wait(A_DAY // 2 + 1)
        elif port < last and step < 0.4 and len(active) < alive:
            vip = random.choice((service.peers.vip, service.peers.other_vip))
            chosen = service.open(port, vip)
            assert chosen is not None
            assert chosen == model.choose(vip), f"connection {port - 1023}: {service.numbers()}"
            # A client that has no answer yet has nothing to end by a FIN.
            service.answer(port, chosen, "SA")
            model.add(chosen, 1, 0)
            active[port] = chosen, vip
            found["stayed" if had.get(vip) == chosen else "changed"] += 1
            had[vip] = chosen
            port += 1
        elif active and step < 0.7 and len(inactive) < alive:
            ended = random.choice(list(active))
            chosen, vip = inactive[ended] = active.pop(ended)
            service.send(ended, random.choice(("R", "FA")), vip)
            model.add(chosen, -1, 1)
        elif inactive:
            gone = next(iter(inactive))
            chosen, vip = inactive.pop(gone)
            service.remove(gone, vip)
            model.add(chosen, 0, -1)
    assert service.numbers() == model.conns == [Conns()] * len(weights)
    return found
