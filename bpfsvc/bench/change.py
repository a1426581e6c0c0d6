"""From a change to changed packets: one EndpointSlice of one Service moves to another pod.

An API server takes the change, or a file is replaced. Then a client that asks from ever new source
ports waits for the first answer of the new backend. So the time includes hearing of the change, the
agent's work, and half a round trip. The changes come at uneven intervals, or they would fall in
step with the clocks of the agent.
"""

from __future__ import annotations

import random
import time

from bpfsvc.bench.figures import Row, Say, Scale, Spread, percentile
from bpfsvc.bench.scene import Scene
from bpfsvc.bench.supplies import Origin

_PAUSES = (0.02, 0.12)  # seconds between two changes


def change(scale: Scale, say: Say) -> list[Row]:
    """Measure at all sizes of cluster."""
    origins: tuple[Origin, ...] = ("API", "json")
    return [
        _measure(services, origin, scale, say) for services in scale.services for origin in origins
    ]


def _measure(services: int, origin: Origin, scale: Scale, say: Say) -> Row:
    times: list[float] = []
    asked = unanswered = 0
    pause = random.Random(1)
    with Scene(services, origin) as scene:
        say(f"change: starting an agent with {services} Services ({origin})")
        with scene.agent() as agent:
            agent.healthy()
            scene.change()
            for number in range(scale.changes):
                say(f"change: {number + 1} of {scale.changes} with {services} Services")
                time.sleep(pause.uniform(*_PAUSES))
                seconds, heard = scene.change()
                times.append(seconds * 1000)
                asked += heard.asked
                unanswered += heard.unanswered
    spread = Spread.of(times)
    return {
        "services": services,
        "from": origin,
        "changes": len(times),
        **spread.columns("ms"),
        "ms 90%": percentile(times, 90),
        "ms 99%": percentile(times, 99),
        "questions": asked,
        "unanswered": unanswered,
    }
