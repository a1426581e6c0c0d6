"""The start of an agent: for the first time, after a boot, and again; and its weight.

The first start includes the compiler. After a boot nothing is in the kernel, but programs that were
compiled before are kept in files. Warm is a start where everything is in the kernel: it interrupts
nothing, so only the time until it knows all again counts. The first balanced packet is what a pod
sees; ``/healthz`` is what the kubelet sees.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bpfsvc.bench.agents import CompilerPeak, Memory
from bpfsvc.bench.figures import Row, Say, Scale, Spread
from bpfsvc.bench.scene import Scene
from bpfsvc.bench.supplies import Origin

_CHANGES = 100
_ORIGINS: tuple[Origin, ...] = ("API", "json", "yaml")
_IDLE_SECONDS = 10.0


@dataclass(slots=True)
class _Starts:
    """What several starts have measured; seconds and MB."""

    cold: list[float] = field(default_factory=list)
    cold_cpu: list[float] = field(default_factory=list)
    booted: list[float] = field(default_factory=list)
    booted_packet: list[float] = field(default_factory=list)
    booted_cpu: list[float] = field(default_factory=list)
    warm_cpu: list[float] = field(default_factory=list)
    first_packet: list[float] = field(default_factory=list)
    warm: list[float] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    later: list[Memory] = field(default_factory=list)
    warm_memory: list[Memory] = field(default_factory=list)
    peak: list[float] = field(default_factory=list)
    compiler: list[float] = field(default_factory=list)

    def times(self) -> dict[str, list[float]]:
        """Give the seconds by what they are."""
        return {
            "until healthy, cold": self.cold,
            "until the first packet, cold": self.first_packet,
            "of CPU until healthy, cold": self.cold_cpu,
            "until healthy, after a boot": self.booted,
            "until the first packet, after a boot": self.booted_packet,
            "of CPU until healthy, after a boot": self.booted_cpu,
            "until healthy, warm": self.warm,
            "of CPU until healthy, warm": self.warm_cpu,
        }


def start(scale: Scale, say: Say) -> list[Row]:
    """Measure at all sizes of cluster, from an API server and from files."""
    times: list[Row] = []
    weights: list[Row] = []
    for services in scale.services:
        for origin in _ORIGINS:
            starts = _Starts()
            for number in range(scale.starts):
                say(f"start: {number + 1} of {scale.starts}, {services} Services from {origin}")
                _measure(starts, services, origin, scale)
            about: Row = {"services": services, "from": origin}
            times += [
                about | {"seconds": what} | Spread.of(values).columns("s")
                for what, values in starts.times().items()
            ]
            weights += [
                about | _weight("after a cold start", starts.memory),
                about | _weight(f"after {min(_CHANGES, scale.changes)} changes", starts.later),
                about | _weight("after a warm start", starts.warm_memory),
                about | _peak("largest, agent", starts.peak),
                about | _peak("largest, compiler", starts.compiler),
            ]
    return times + weights


def _measure(starts: _Starts, services: int, origin: Origin, scale: Scale) -> None:
    with Scene(services, origin) as scene:
        scene.watch_first()
        with scene.agent() as agent:
            compiler = CompilerPeak(agent)
            starts.cold.append(agent.healthy())
            starts.cold_cpu.append(agent.cpu_seconds())
            starts.first_packet.append(scene.heard().at - agent.started)
            starts.compiler.append(compiler.stop())
            starts.memory.append(agent.memory())
            for _ in range(min(_CHANGES, scale.changes)):
                scene.change()
            starts.later.append(agent.memory())
            starts.peak.append(agent.peak())
        scene.boot()
        scene.watch_first()
        with scene.agent() as agent:
            starts.booted.append(agent.healthy())
            starts.booted_cpu.append(agent.cpu_seconds())
            starts.booted_packet.append(scene.heard().at - agent.started)
        with scene.agent() as agent:
            starts.warm.append(agent.healthy())
            starts.warm_cpu.append(agent.cpu_seconds())
            starts.warm_memory.append(agent.memory())


def _weight(when: str, memory: list[Memory]) -> Row:
    rss = Spread.of([each.rss for each in memory])
    return {
        "memory": when,
        "RSS MB": rss.median,
        "RSS MB max": rss.high,
        "PSS MB": Spread.of([each.pss for each in memory]).median,
        "private MB": Spread.of([each.private for each in memory]).median,
    }


def _peak(what: str, sizes: list[float]) -> Row:
    spread = Spread.of(sizes)
    return {
        "memory": what,
        "RSS MB": spread.median,
        "RSS MB max": spread.high,
        "PSS MB": "",
        "private MB": "",
    }
