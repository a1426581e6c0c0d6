"""Traffic of Services only ever grows, whoever comes and goes among their backends."""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from bpfsvc.books import Books
from bpfsvc.metrics.sums import Sums
from bpfsvc.metrics.traffic import FIELDS, Traffic
from bpfsvc.model import ModelObject
from bpfsvc.plan import Plan
from bpfsvc.programmed import Ledger, programmed
from bpfsvc.rows import Backend, Frontend, Policies, Policy, ServicePort
from tests.rows.kernel import new_books
from tests.rows.objects import endpoint_slice, service

ROW = struct.Struct("=5Q")


class Counters:
    """Rows of counters of two CPUs, in the place of the kernel's."""

    cpu_value_size = ROW.size
    value_size = 2 * ROW.size

    def __init__(self, rows: int = 100, together: int = 8) -> None:
        self.data = [[0] * 10 for _ in range(rows)]
        self.meanwhile: Callable[[], None] | None = None
        """What happens after half of the rows was read."""
        self._together = together

    def count(self, row: int, *numbers: int, cpu: int = 0) -> None:
        """Count connections, packets and so on."""
        for field, number in enumerate(numbers):
            self.data[row][5 * cpu + field] += number

    def lookup(self, key: bytes) -> bytes | None:
        return self._row(int.from_bytes(key, sys.byteorder))

    def blocks(self) -> Iterator[tuple[int, bytes, bytes]]:
        for at in range(0, len(self.data), self._together):
            rows = range(at, min(at + self._together, len(self.data)))
            yield len(rows), b"", b"".join(map(self._row, rows))
            if self.meanwhile:
                happens, self.meanwhile = self.meanwhile, None
                happens()

    def _row(self, row: int) -> bytes:
        return struct.pack("=10Q", *self.data[row])


class Stage:
    """An agent that writes to nothing but the counters."""

    def __init__(self, *, books: Books | None = None, counters: Counters | None = None) -> None:
        self.books = books or new_books()
        self.counters = counters or Counters()
        self.traffic = Traffic(self.counters, self.books.ledger)
        self._seen: dict[tuple[str, ...], float] = {}

    def serve(self, *endpoints: str, of: str = "web", **spec: object) -> None:
        """Let a Service have these endpoints, and no others."""
        slices = endpoint_slice(*endpoints, of=of, name=f"{of}-1")
        things: list[ModelObject] = [service(of, **spec), slices]
        self._write(self.books.cluster.apply(things, ()))

    def remove(self, of: str = "web") -> None:
        self._write(self.books.cluster.apply((), [service(of).key]))

    def _write(self, touched: set[tuple[str, str]]) -> None:
        for plan in self.books.plans(touched):
            self.execute(plan)

    def execute(self, plan: Plan) -> None:
        for row in plan.counters_taken:
            self.counters.data[row] = [0] * 10
        self.traffic.written(plan)

    def rows(self, of: str = "web") -> dict[str, int]:
        """Give the row of counters of each backend, by the last byte of its address."""
        (one,) = self.books.ledger.of(("default", of)).values()
        return {f"10.0.0.{address[15]}": row for (address, _), row in one.counters().items()}

    def count(self, address: str, *numbers: int, of: str = "web", cpu: int = 0) -> None:
        self.counters.count(self.rows(of)[address], *numbers, cpu=cpu)

    def told(self) -> dict[tuple[str, ...], float]:
        """Give all values by name, Service and direction; nothing of a Service may have shrunk."""
        now: dict[tuple[str, ...], float] = {
            (one.name, one.labels["name"], one.labels.get("direction", "")): one.value
            for family in parse(b"".join(self.traffic.render()).decode())
            for one in family.samples
        }
        for key, value in self._seen.items():
            if key in now:
                assert now[key] >= value, f"{key} has shrunk"
        self._seen |= now
        return now

    def connections(self, of: str = "web") -> float | None:
        return self.told().get(("bpfsvc_service_connections_total", of, ""))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_backends_and_cpus_are_added_up(stage: Stage) -> None:
    stage.serve("10.0.0.1 -", "10.0.0.2 -")
    stage.count("10.0.0.1", 1, 10, 100, 1000, 10000)
    stage.count("10.0.0.1", 2, 20, 200, 2000, 20000, cpu=1)
    stage.count("10.0.0.2", 4, 40, 400, 4000, 40000)
    prefix = "bpfsvc_service"
    assert stage.told() == {
        (f"{prefix}_connections_total", "web", ""): 7,
        (f"{prefix}_packets_total", "web", "request"): 70,
        (f"{prefix}_packets_total", "web", "reply"): 7000,
        (f"{prefix}_bytes_total", "web", "request"): 700,
        (f"{prefix}_bytes_total", "web", "reply"): 70000,
    }


def test_a_service_appears_with_its_first_connection(stage: Stage) -> None:
    stage.serve("10.0.0.1 -")
    assert stage.told() == {}
    stage.count("10.0.0.1", 1)
    assert stage.connections() == 1


def test_a_backend_in_two_slots_counts_once(stage: Stage) -> None:
    """The policy Local of outside clients gives it a slot among all, and one among the local."""
    stage.serve("10.0.0.1 here", "10.0.0.2 -", type="NodePort", externalTrafficPolicy="Local")
    stage.count("10.0.0.1", 3)
    assert stage.connections() == 3


def test_what_a_backend_has_counted_stays_when_it_leaves(stage: Stage) -> None:
    stage.serve("10.0.0.1 -", "10.0.0.2 -")
    stage.count("10.0.0.1", 5)
    stage.count("10.0.0.2", 7)
    stage.serve("10.0.0.2 -")
    assert stage.connections() == 12
    stage.serve()
    assert stage.connections() == 12


def test_who_joins_after_another_has_left_counts_at_once(stage: Stage) -> None:
    stage.serve("10.0.0.1 -", "10.0.0.2 -")
    stage.count("10.0.0.1", 5)
    stage.serve("10.0.0.2 -")
    stage.serve("10.0.0.2 -", "10.0.0.3 -")
    stage.count("10.0.0.3", 3)
    assert stage.connections() == 8


def test_who_inherits_the_row_does_not_inherit_the_counts(stage: Stage) -> None:
    stage = Stage(books=new_books(max_backends=1))
    stage.serve("10.0.0.1 -")
    stage.count("10.0.0.1", 5)
    stage.serve()
    stage.serve("10.0.0.9 -", of="other")
    assert stage.connections("other") is None
    stage.count("10.0.0.9", 1, of="other")
    assert (stage.connections("web"), stage.connections("other")) == (5, 1)


def test_a_service_that_is_made_anew_begins_anew(stage: Stage) -> None:
    """As a counter of a process does; Prometheus knows what that means."""
    stage.serve("10.0.0.1 -", "10.0.0.2 -")
    stage.count("10.0.0.2", 5)
    stage.serve("10.0.0.1 -")
    stage.remove()
    assert stage.told() == {}
    assert not stage.traffic._former, "Services that are gone are remembered"
    stage.serve("10.0.0.1 -")
    assert stage.told() == {}


def test_counting_begins_with_the_agent(stage: Stage) -> None:
    """What its predecessor saw is not told: nobody knows any more what has left by then."""
    stage.serve("10.0.0.1 -", "10.0.0.2 -")
    stage.count("10.0.0.1", 100)
    stage.count("10.0.0.2", 10)
    successor = Stage(books=stage.books, counters=stage.counters)
    assert successor.told() == {}
    successor.count("10.0.0.1", 1)
    assert successor.connections() == 1
    successor.serve("10.0.0.2 -")
    assert successor.connections() == 1
    successor.count("10.0.0.2", 1)
    assert successor.connections() == 2


def test_nothing_is_below_zero_when_somebody_empties_the_map(stage: Stage) -> None:
    stage.serve("10.0.0.1 -")
    stage.count("10.0.0.1", 100)
    successor = Stage(books=stage.books, counters=stage.counters)
    stage.counters.data = [[0] * 10 for _ in stage.counters.data]
    assert successor.told() == {}


def leaves(stage: Stage) -> None:
    stage.serve("10.0.0.2 -")


def all_leave(stage: Stage) -> None:
    stage.serve()


def leaves_its_row_to_another(stage: Stage) -> None:
    stage.serve("10.0.0.2 -")
    stage.serve("10.0.0.8 -", "10.0.0.9 -", of="other")
    stage.count("10.0.0.9", 1, of="other")


def leaves_and_comes_back(stage: Stage) -> None:
    stage.serve("10.0.0.2 -")
    stage.serve("10.0.0.1 -", "10.0.0.2 -")


MEANWHILE = [leaves, all_leave, leaves_its_row_to_another, leaves_and_comes_back]


@pytest.mark.parametrize("happens", MEANWHILE)
@pytest.mark.parametrize("read", [False, True], ids=["not yet read", "read already"])
def test_a_change_while_rows_are_read_does_no_harm(
    happens: Callable[[Stage], None], read: bool
) -> None:
    """Counters are exact all the same, before, during and after it."""
    stage = Stage(books=new_books(max_backends=3), counters=Counters(together=4 if read else 1))
    stage.serve("10.0.0.1 -", "10.0.0.2 -")
    stage.count("10.0.0.1", 1000)
    stage.count("10.0.0.2", 10)
    assert stage.connections() == 1010
    stage.counters.meanwhile = lambda: happens(stage)
    assert stage.connections() == 1010
    assert stage.connections() == 1010
    assert stage.connections("other") in (None, 1)


def test_a_change_between_the_kernel_and_the_ledger_does_no_harm(stage: Stage) -> None:
    """The agent has written a plan, and the ledger does not know of it yet."""
    stage.serve("10.0.0.1 -", "10.0.0.2 -")
    stage.count("10.0.0.1", 5)
    stage.count("10.0.0.2", 7)
    stage.books.cluster.apply([endpoint_slice("10.0.0.2 -")], ())
    for plan in stage.books.plans([("default", "web")]):
        stage.execute(plan)
        assert stage.connections() == 12
    assert stage.connections() == 12


def test_labels_say_what_people_call_it() -> None:
    ledger = Ledger()
    everyone = Policies(*(Policy(0, 1, False, False),) * 3)
    counters = Counters()
    traffic = Traffic(counters, ledger)
    for row, port in enumerate(
        (
            ServicePort("kube-system", "dns", "dns-udp", 17, 6),
            ServicePort("default", 'q"uo\\te\nd', "", 6, 4),
        ),
        1,
    ):
        slots = [(Backend(bytes(16), 53), row)]
        frontends = {Frontend(bytes(16), row, 6): everyone}
        ledger.settle({port: programmed(port, 53, row, row, slots, frontends)})
        counters.count(row, 1)
    text = b"".join(traffic.render()).decode()
    first, _, _ = parse(text)
    assert [one.labels for one in first.samples] == [
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
    """Numbers as large as they get do not spill over into their neighbours."""
    largest = (1 << 64) // cpus - 1

    class Many(Counters):
        value_size = cpus * ROW.size

        def _row(self, row: int) -> bytes:
            return ROW.pack(row, largest, 2 * row, largest, 3 * row) * cpus

    sums = Sums(Many(rows=5))
    expected = (cpus * 4, cpus * largest, cpus * 8, cpus * largest, cpus * 12)
    assert sums.spread(sums.one(4)) == expected
    assert sums.spread(sums.until(4, lambda: None).total([4])) == expected


def test_ten_thousand_services_are_told_in_a_moment() -> None:
    """All of them with traffic at all of their four backends: 200 ms of a processor at most."""
    ledger = Ledger()
    everyone = Policies(*(Policy(0, 4, False, False),) * 3)
    ports = {}
    for one in range(10_000):
        port = ServicePort(f"namespace-{one % 50}", f"service-{one}", "http", 6, 4)
        slots = [(Backend(row.to_bytes(16), 80), row) for row in range(4 * one + 1, 4 * one + 5)]
        frontends = {Frontend(one.to_bytes(16), 80, 6): everyone}
        ports[port] = programmed(port, 80, one + 1, one + 1, slots, frontends)
    counters = Counters(rows=1024)
    traffic = Traffic(counters, ledger)
    ledger.settle(ports)
    values = 1024 * (2 * ROW.pack(*range(1, len(FIELDS) + 1)))
    counters.blocks = lambda: iter([(1024, b"", values)] * 40)  # type: ignore[method-assign]
    seconds = []
    for _ in range(3):
        began = time.thread_time()
        parts = list(traffic.render())
        seconds.append(time.thread_time() - began)
    assert b"".join(parts).count(b"\n") == 50_000 + 6
    assert min(seconds) < 0.2
