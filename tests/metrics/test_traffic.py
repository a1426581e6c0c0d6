"""Traffic counters of Services only grow, even if backends are added and removed."""

from __future__ import annotations

import gc
import struct
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bpfsvc.base.service_series import ALL, DEFAULT_SERIES, ServiceSeries, parse_service_series
from bpfsvc.metrics.sums import Sums
from bpfsvc.metrics.traffic import ServiceTraffic
from bpfsvc.model import ModelObject
from bpfsvc.services.entries import Backend, Frontend, Policies, Policy, ServicePort
from bpfsvc.services.planner import Planner
from bpfsvc.services.plans.applied import AppliedState, applied
from bpfsvc.services.plans.plan import Plan
from tests.metrics.counted_lines import counted_lines
from tests.services.kernel import new_planner
from tests.services.objects import endpoint_slice, service

ROW = struct.Struct("=5Q")


class Counters:
    """Entries of counters of two CPUs, instead of the kernel's."""

    cpu_value_size = ROW.size
    value_size = 2 * ROW.size

    def __init__(self, size: int = 100, together: int = 8) -> None:
        self.data = [[0] * 10 for _ in range(size)]
        self.meanwhile: Callable[[], None] | None = None
        """Called once, after the first block has been read."""
        self._together = together

    def count(self, index: int, *numbers: int, cpu: int = 0) -> None:
        """Count connections, packets and so on."""
        for field, number in enumerate(numbers):
            self.data[index][5 * cpu + field] += number

    def lookup(self, key: bytes) -> bytes | None:
        return self._value(int.from_bytes(key, sys.byteorder))

    def blocks(self) -> Iterator[tuple[int, bytes, bytes]]:
        for at in range(0, len(self.data), self._together):
            indices = range(at, min(at + self._together, len(self.data)))
            yield len(indices), b"", b"".join(map(self._value, indices))
            if self.meanwhile:
                happens, self.meanwhile = self.meanwhile, None
                happens()

    def _value(self, index: int) -> bytes:
        return struct.pack("=10Q", *self.data[index])


class TrafficTestbed:
    """An agent whose only map is that of the counters."""

    def __init__(
        self,
        *,
        planner: Planner | None = None,
        counters: Counters | None = None,
        series: ServiceSeries = ALL,
    ) -> None:
        self.planner = planner or new_planner()
        self.counters = counters or Counters()
        self.traffic = ServiceTraffic(self.counters, self.planner.applied_state, series)
        self._seen: dict[tuple[str, ...], float] = {}

    def serve(self, *endpoints: str, of: str = "web", **spec: object) -> None:
        """Set the endpoints of a Service."""
        slices = endpoint_slice(*endpoints, of=of, name=f"{of}-1")
        things: list[ModelObject] = [service(of, **spec), slices]
        self._write(self.planner.cache.apply(things, ()))

    def remove(self, of: str = "web") -> None:
        self._write(self.planner.cache.apply((), [service(of).key]))

    def _write(self, touched: set[tuple[str, str]]) -> None:
        self.planner.sync(touched, 0, self.execute)

    def execute(self, plan: Plan) -> None:
        for index in plan.counters_taken:
            self.counters.data[index] = [0] * 10
        self.traffic.written(plan)

    def counter_indices(self, of: str = "web") -> dict[str, int]:
        """Return the index of the counters of each backend, by the last byte of its address."""
        (applied,) = self.planner.applied_state.of(("default", of)).values()
        return {
            f"10.0.0.{address[15]}": index for (address, _), index in applied.counters().items()
        }

    def count(self, address: str, *numbers: int, of: str = "web", cpu: int = 0) -> None:
        self.counters.count(self.counter_indices(of)[address], *numbers, cpu=cpu)

    def values(self) -> dict[tuple[str, ...], float]:
        """Return all values by name, Service and direction; none of a Service may have shrunk."""
        now: dict[tuple[str, ...], float] = {
            (sample.name, sample.labels["name"], sample.labels.get("direction", "")): sample.value
            for family in parse(b"".join(self.traffic.render()).decode())
            for sample in family.samples
        }
        for key, value in self._seen.items():
            if key in now:
                assert now[key] >= value, f"{key} has shrunk"
        self._seen |= now
        return now

    def connections(self, of: str = "web") -> float | None:
        return self.values().get(("bpfsvc_service_connections_total", of, ""))


@pytest.fixture
def testbed() -> TrafficTestbed:
    return TrafficTestbed()


def test_backends_and_cpus_are_added_up(testbed: TrafficTestbed) -> None:
    testbed.serve("10.0.0.1 -", "10.0.0.2 -")
    testbed.count("10.0.0.1", 1, 10, 100, 1000, 10000)
    testbed.count("10.0.0.1", 2, 20, 200, 2000, 20000, cpu=1)
    testbed.count("10.0.0.2", 4, 40, 400, 4000, 40000)
    prefix = "bpfsvc_service"
    assert testbed.values() == {
        (f"{prefix}_connections_total", "web", ""): 7,
        (f"{prefix}_packets_total", "web", "request"): 70,
        (f"{prefix}_packets_total", "web", "reply"): 7000,
        (f"{prefix}_bytes_total", "web", "request"): 700,
        (f"{prefix}_bytes_total", "web", "reply"): 70000,
    }


def test_a_service_appears_with_its_first_connection(testbed: TrafficTestbed) -> None:
    testbed.serve("10.0.0.1 -")
    assert testbed.values() == {}
    testbed.count("10.0.0.1", 1)
    assert testbed.connections() == 1


def test_a_backend_in_two_slots_counts_once(testbed: TrafficTestbed) -> None:
    """With the external policy Local it has a slot among all backends, and one among the local."""
    testbed.serve("10.0.0.1 here", "10.0.0.2 -", type="NodePort", externalTrafficPolicy="Local")
    testbed.count("10.0.0.1", 3)
    assert testbed.connections() == 3


def test_counts_of_a_backend_stay_when_it_is_removed(testbed: TrafficTestbed) -> None:
    testbed.serve("10.0.0.1 -", "10.0.0.2 -")
    testbed.count("10.0.0.1", 5)
    testbed.count("10.0.0.2", 7)
    testbed.serve("10.0.0.2 -")
    assert testbed.connections() == 12
    testbed.serve()
    assert testbed.connections() == 12


def test_a_backend_added_after_another_was_removed_counts_at_once(testbed: TrafficTestbed) -> None:
    testbed.serve("10.0.0.1 -", "10.0.0.2 -")
    testbed.count("10.0.0.1", 5)
    testbed.serve("10.0.0.2 -")
    testbed.serve("10.0.0.2 -", "10.0.0.3 -")
    testbed.count("10.0.0.3", 3)
    assert testbed.connections() == 8


def test_a_reused_entry_starts_at_zero(testbed: TrafficTestbed) -> None:
    testbed = TrafficTestbed(planner=new_planner(max_backends=1))
    testbed.serve("10.0.0.1 -")
    testbed.count("10.0.0.1", 5)
    testbed.serve()
    testbed.serve("10.0.0.9 -", of="other")
    assert testbed.connections("other") is None
    testbed.count("10.0.0.9", 1, of="other")
    assert (testbed.connections("web"), testbed.connections("other")) == (5, 1)


def test_a_service_that_is_created_again_starts_at_zero(testbed: TrafficTestbed) -> None:
    """Like a counter of a restarted process; Prometheus handles that as a reset."""
    testbed.serve("10.0.0.1 -", "10.0.0.2 -")
    testbed.count("10.0.0.2", 5)
    testbed.serve("10.0.0.1 -")
    testbed.remove()
    assert testbed.values() == {}
    assert not testbed.traffic._removed, "deleted Services are still kept"
    testbed.serve("10.0.0.1 -")
    assert testbed.values() == {}


def test_counting_begins_with_the_agent(testbed: TrafficTestbed) -> None:
    """Counts of an earlier agent are not shown: those of removed backends are lost by then."""
    testbed.serve("10.0.0.1 -", "10.0.0.2 -")
    testbed.count("10.0.0.1", 100)
    testbed.count("10.0.0.2", 10)
    successor = TrafficTestbed(planner=testbed.planner, counters=testbed.counters)
    assert successor.values() == {}
    successor.count("10.0.0.1", 1)
    assert successor.connections() == 1
    successor.serve("10.0.0.2 -")
    assert successor.connections() == 1
    successor.count("10.0.0.2", 1)
    assert successor.connections() == 2


def test_nothing_is_below_zero_when_another_program_empties_the_map(
    testbed: TrafficTestbed,
) -> None:
    testbed.serve("10.0.0.1 -")
    testbed.count("10.0.0.1", 100)
    successor = TrafficTestbed(planner=testbed.planner, counters=testbed.counters)
    testbed.counters.data = [[0] * 10 for _ in testbed.counters.data]
    assert successor.values() == {}


def remove_backend(testbed: TrafficTestbed) -> None:
    testbed.serve("10.0.0.2 -")


def remove_all_backends(testbed: TrafficTestbed) -> None:
    testbed.serve()


def reuse_its_entry_for_another(testbed: TrafficTestbed) -> None:
    testbed.serve("10.0.0.2 -")
    testbed.serve("10.0.0.8 -", "10.0.0.9 -", of="other")
    testbed.count("10.0.0.9", 1, of="other")


def remove_and_add_backend(testbed: TrafficTestbed) -> None:
    testbed.serve("10.0.0.2 -")
    testbed.serve("10.0.0.1 -", "10.0.0.2 -")


MEANWHILE = [
    remove_backend,
    remove_all_backends,
    reuse_its_entry_for_another,
    remove_and_add_backend,
]


@pytest.mark.parametrize("happens", MEANWHILE)
@pytest.mark.parametrize("read", [False, True], ids=["not yet read", "read already"])
def test_a_change_while_entries_are_read_does_no_harm(
    happens: Callable[[TrafficTestbed], None], read: bool
) -> None:
    """Counters are exact before, during and after it."""
    testbed = TrafficTestbed(
        planner=new_planner(max_backends=3), counters=Counters(together=4 if read else 1)
    )
    testbed.serve("10.0.0.1 -", "10.0.0.2 -")
    testbed.count("10.0.0.1", 1000)
    testbed.count("10.0.0.2", 10)
    assert testbed.connections() == 1010
    testbed.counters.meanwhile = lambda: happens(testbed)
    assert testbed.connections() == 1010
    assert testbed.connections() == 1010
    assert testbed.connections("other") in (None, 1)


def test_a_change_between_the_kernel_and_the_applied_state_does_no_harm(
    testbed: TrafficTestbed,
) -> None:
    """The agent has executed a plan, and the applied state does not contain it yet."""
    testbed.serve("10.0.0.1 -", "10.0.0.2 -")
    testbed.count("10.0.0.1", 5)
    testbed.count("10.0.0.2", 7)
    testbed.planner.cache.apply([endpoint_slice("10.0.0.2 -")], ())

    def execute_and_look(plan: Plan) -> None:
        testbed.execute(plan)
        assert testbed.connections() == 12

    testbed.planner.sync([("default", "web")], 0, execute_and_look)
    assert testbed.connections() == 12


def test_what_changes_while_nobody_reads_metrics_is_not_remembered(
    testbed: TrafficTestbed,
) -> None:
    def service_ports() -> int:
        gc.collect()
        return sum(type(known) is ServicePort for known in gc.get_objects())

    before = service_ports()
    for number in range(50):
        testbed.serve("10.0.0.1 -", of=f"web-{number}")
        testbed.remove(f"web-{number}")
    assert service_ports() < before + 10


def test_labels_are_the_names_of_the_service() -> None:
    applied_state = AppliedState()
    everyone = Policies(*(Policy(0, 1, False, False),) * 3)
    counters = Counters()
    traffic = ServiceTraffic(counters, applied_state)
    for index, port in enumerate(
        (
            ServicePort("kube-system", "dns", "dns-udp", 17, 6),
            ServicePort("default", 'q"uo\\te\nd', "", 6, 4),
        ),
        1,
    ):
        slots = [(Backend(bytes(16), 53), index)]
        frontends = {Frontend(bytes(16), index, 6): everyone}
        applied_state.update({port: applied(port, 53, index, index, slots, frontends)})
        counters.count(index, 1)
    text = b"".join(traffic.render()).decode()
    first, _, _ = parse(text)
    assert [sample.labels for sample in first.samples] == [
        {
            "namespace": "kube-system",
            "name": "dns",
            "port": "dns-udp",
            "protocol": "UDP",
            "ip_family": "IPv6",
        },
        {
            "namespace": "default",
            "name": 'q"uo\\te\nd',
            "port": "53",
            "protocol": "TCP",
            "ip_family": "IPv4",
        },
    ]
    assert text.count("# TYPE ") == text.count("# HELP ") == 3


@pytest.mark.parametrize("cpus", [1, 2, 3, 7, 8, 64])
def test_any_number_of_cpus_is_added_up(cpus: int) -> None:
    """The largest numbers do not overflow into the next field."""
    largest = (1 << 64) // cpus - 1

    class Many(Counters):
        value_size = cpus * ROW.size

        def _value(self, index: int) -> bytes:
            return ROW.pack(index, largest, 2 * index, largest, 3 * index) * cpus

    sums = Sums(Many(size=5))
    expected = (cpus * 4, cpus * largest, cpus * 8, cpus * largest, cpus * 12)
    assert sums.fields(sums.entry(4)) == expected
    assert sums.fields(sums.entries(4, lambda: None).total([4])) == expected


class Scrape(NamedTuple):
    steps: int
    """Lines of Python that were run."""

    text: bytes


def scrape_of(services: int, series: ServiceSeries) -> Scrape:
    """Return a later scrape of a node on which all four backends of all Services count."""
    applied_state = AppliedState()
    everyone = Policies(*(Policy(0, 4, False, False),) * 3)
    ports = {}
    for number in range(services):
        port = ServicePort(f"namespace-{number % 50}", f"service-{number}", "http", 6, 4)
        slots = [
            (Backend(index.to_bytes(16), 80), index)
            for index in range(4 * number + 1, 4 * number + 5)
        ]
        frontends = {Frontend(number.to_bytes(16), 80, 6): everyone}
        ports[port] = applied(port, 80, number + 1, number + 1, slots, frontends)
    counters = Counters(size=1024)
    traffic = ServiceTraffic(counters, applied_state, series)
    traffic.written(Plan(counters_taken=[*range(1, 4 * services + 1)]))
    applied_state.update(ports)
    blocks = [
        (1024, b"", b"".join(2 * ROW.pack(at, 2, 3, 4, 5) for at in range(begin, begin + 1024)))
        for begin in range(0, 4 * services + 1, 1024)
    ]
    counters.blocks = lambda: iter(blocks)  # type: ignore[method-assign]
    list(traffic.render())
    with counted_lines() as steps:
        parts = list(traffic.render())
    return Scrape(steps[0], b"".join(parts))


def test_the_work_of_a_scrape_grows_with_the_number_of_services_not_with_its_square() -> None:
    scrape = scrape_of(10_000, ALL)
    assert scrape.text.count(b"\n") == 50_000 + 6
    assert scrape.steps < 11 * scrape_of(1_000, ALL).steps


def test_the_two_hundred_busiest_of_ten_thousand_services_take_less_than_all_and_5_mb() -> None:
    scrape = scrape_of(10_000, parse_service_series(DEFAULT_SERIES))
    assert scrape.text.count(b"\n") == 201 * 5 + 6
    assert len(scrape.text) < 5_000_000
    assert scrape.steps < scrape_of(10_000, ALL).steps
    (family, *_) = parse(scrape.text.decode())
    names = {sample.labels["name"] for sample in family.samples}
    assert names == {"other", *(f"service-{number}" for number in range(9_800, 10_000))}
    total = sum(2 * at for at in range(1, 40_001))
    assert sum(sample.value for sample in family.samples) == total


def test_a_service_that_is_not_shown_is_in_the_sum_as_long_as_it_is_there() -> None:
    """And what it has counted stays there."""
    testbed = TrafficTestbed(series=ServiceSeries(most=1))
    testbed.serve("10.0.0.1 -")
    testbed.serve("10.0.0.2 -", of="quiet")
    testbed.count("10.0.0.1", 9)
    testbed.count("10.0.0.2", 2, of="quiet")
    assert (testbed.connections("web"), testbed.connections("other")) == (9, 2)
    testbed.count("10.0.0.2", 1, of="quiet")
    testbed.remove("quiet")
    assert (testbed.connections("web"), testbed.connections("other")) == (9, 3)
