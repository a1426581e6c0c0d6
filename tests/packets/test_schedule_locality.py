"""``lblc`` and ``lblcr`` keep each address where ip_vs keeps it, and move it where ip_vs does."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from bpfsvc.base.address import pack
from bpfsvc.datapath.maps.localities import kept_backends
from bpfsvc.explain.programs import decide
from bpfsvc.explain.question import question
from bpfsvc.services.scheduling.schedulers import Schedule, Scheduler, lay_out
from tests.packets.loads import WEIGHTS, Loaded
from tests.packets.locality_model import A_DAY, Model, course
from tests.packets.node import SIZES
from tests.packets.packet import address_port
from tests.packets.peers import address_of
from tests.specification.ipvs_loads import Conns

BOTH = (Schedule.LBLC, Schedule.LBLCR)

by_schedule = pytest.mark.parametrize("schedule", BOTH, ids=lambda one: one.name.lower())

OPENED = 10_000


@pytest.mark.slow
@by_schedule
def test_ten_thousand_connections_go_where_ip_vs_sends_them(
    counted: Loaded, schedule: Schedule
) -> None:
    model = Model(counted, schedule, WEIGHTS)
    counts = course(counted, model, OPENED, 50, Random(schedule))
    assert min(counts["stayed"], counts["changed"]) > 500


@by_schedule
@pytest.mark.parametrize("weights", [(1,), (1, 1, 1), (2, 7, 1, 7), (65535, 1)], ids=str)
def test_a_few_connections_go_where_ip_vs_sends_them(
    counted_ipv4: Loaded, schedule: Schedule, weights: tuple[int, ...]
) -> None:
    course(counted_ipv4, Model(counted_ipv4, schedule, weights), 150, 12, Random(len(weights)))


@by_schedule
def test_any_numbers_are_compared_as_ip_vs_compares_them(
    counted_ipv4: Loaded, schedule: Schedule
) -> None:
    """Numbers that no test opens, and those beside which a rounding would decide."""
    random = Random(schedule)
    port, stayed = 2000, 0
    for _ in range(25):
        some = range(random.choice((2, 5, 64)))
        weights = [random.choice((1, 2, 3, 7, 100, 65535)) for _ in some]
        model = Model(counted_ipv4, schedule, weights)
        most = random.choice((2, 4, 10, 300, 5_000_000))
        last = None
        for _ in range(16):
            numbers = [
                (random.randrange(min(most, 3 * weight)), random.randrange(most))
                for weight in weights
            ]
            counted_ipv4.put(numbers)
            model.conns = [Conns(*number) for number in numbers]
            if random.random() < 0.2:
                model.wait(A_DAY + 1)
            expected = model.choose(counted_ipv4.peers.vip)
            assert counted_ipv4.open(port) == expected, (weights, numbers)
            stayed += expected == last
            last, port = expected, port + 1
    assert 50 < stayed < 350


# -- what an address keeps ------------------------------------------------------------------------


def kept(service: Loaded, vip: str) -> list[int]:
    """Return the numbers of the backends that an address keeps to, the newest first."""
    pinned = service.node.pinned
    layout, numbers = pinned.layout.maps["localities"], service.counters()
    address = pack(address_of(vip))
    (raw,) = (
        value
        for key, value in pinned.map("localities").items()
        if layout.key.unpack(key)["address"] == address
    )
    return [numbers.index(backend) for backend in kept_backends(raw, layout.value)]


def test_lblc_stays_until_its_backend_is_overloaded_and_another_one_nearly_idle(
    counted_ipv4: Loaded,
) -> None:
    counted_ipv4.program(Schedule.LBLC, (4, 4, 4))
    counted_ipv4.put([(3, 0), (2, 0), (3, 0)])
    assert counted_ipv4.open(2000) == 1
    for numbers, chosen in (
        ([(0, 0), (4, 0), (0, 0)], 1),
        ([(2, 0), (5, 0), (2, 0)], 1),
        ([(2, 0), (5, 0), (1, 0)], 2),
        ([(0, 0), (0, 0), (4, 9)], 2),
    ):
        counted_ipv4.put(numbers)
        assert counted_ipv4.open(2001 + sum(map(sum, numbers))) == chosen
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == [2]


def test_lblcr_adds_backends_and_takes_the_most_loaded_one_out_after_a_day(
    counted_ipv4: Loaded,
) -> None:
    model = Model(counted_ipv4, Schedule.LBLCR, (4, 4, 4))
    port = iter(range(2000, 3000))

    def choose(*active: int) -> int | None:
        counted_ipv4.put([(one, 0) for one in active])
        return counted_ipv4.open(next(port))

    assert choose(1, 0, 1) == 1
    assert choose(1, 5, 1) == 0
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == [0, 1]
    assert choose(5, 4, 0) == 1
    assert choose(5, 5, 0) == 2
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == [2, 0, 1]
    model.wait(A_DAY - 60)
    assert choose(3, 2, 1) == 2
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == [2, 0, 1]
    model.wait(120)
    assert choose(3, 2, 1) == 2
    assert choose(3, 2, 4) == 1
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == [2, 1]
    model.wait(A_DAY + 1)
    choose(0, 0, 0)
    model.wait(A_DAY + 1)
    choose(0, 0, 0)
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == [1]


def test_of_equal_members_the_one_that_joined_last_is_chosen(counted_ipv4: Loaded) -> None:
    counted_ipv4.program(Schedule.LBLCR, (1, 1, 1))
    counted_ipv4.put([(1, 0), (1, 0), (0, 0)])
    assert counted_ipv4.open(2000) == 2
    counted_ipv4.put([(0, 0), (9, 0), (9, 0)])
    assert counted_ipv4.open(2001) == 0
    counted_ipv4.put([(1, 0), (1, 0), (1, 0)])
    assert counted_ipv4.open(2002) == 0


def test_of_equal_members_after_a_more_loaded_one_the_one_that_joined_last_is_chosen(
    counted_ipv4: Loaded,
) -> None:
    counted_ipv4.program(Schedule.LBLCR, (1, 1, 1))
    for joins in (2, 1, 0):
        counted_ipv4.put([(0, 0) if place == joins else (9, 0) for place in range(3)])
        assert counted_ipv4.open(2000 + joins) == joins
    counted_ipv4.put([(2, 0), (1, 0), (1, 0)])
    assert counted_ipv4.open(2003) == 1


def test_a_member_that_is_chosen_as_the_least_loaded_of_all_joins_no_second_time(
    counted_ipv4: Loaded,
) -> None:
    """It costs what the newest member does, which is overloaded, and is the first of all."""
    counted_ipv4.program(Schedule.LBLCR, (3, 3))
    for port, numbers in enumerate(([(0, 0), (1, 0)], [(4, 0), (0, 0)])):
        counted_ipv4.put(numbers)
        assert counted_ipv4.open(2000 + port) == port
    counted_ipv4.put([(0, 4 * 256), (4, 0)])
    assert counted_ipv4.open(2002) == 0
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == [1, 0]


def test_each_address_keeps_to_a_backend_of_its_own(counted_ipv4: Loaded) -> None:
    """Nothing else would part them: no address is overloaded."""
    counted_ipv4.program(Schedule.LBLC, (100, 100))
    vips = [counted_ipv4.peers.vip, counted_ipv4.peers.other_vip]
    chosen = [counted_ipv4.open(2000 + number, vips[number % 2]) for number in range(40)]
    assert chosen == [0, 1] * 20


@by_schedule
def test_what_an_address_keeps_follows_its_backend_when_places_change(
    counted_ipv4: Loaded, schedule: Schedule
) -> None:
    """Two backends before it are quiesced, and come back."""
    counted_ipv4.program(schedule, (9, 9, 9, 9))
    counted_ipv4.put([(1, 0), (1, 0), (0, 0), (1, 0)])
    assert counted_ipv4.open(2000) == 2
    counted_ipv4.program(schedule, (0, 0, 9, 9))
    counted_ipv4.put([(0, 0), (0, 0), (5, 0), (0, 0)])
    assert counted_ipv4.open(2001) == 2
    counted_ipv4.program(schedule, (9, 9, 9, 9))
    assert counted_ipv4.open(2002) == 2
    counted_ipv4.program(schedule, (9, 9, 0, 9))
    assert counted_ipv4.open(2003) == 0


@by_schedule
def test_another_scheduler_begins_anew(counted_ipv4: Loaded, schedule: Schedule) -> None:
    counted_ipv4.program(schedule, (9, 9))
    counted_ipv4.open(2000)
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == [0]
    counted_ipv4.program(Schedule.WLC, (9, 9))
    assert counted_ipv4.node.count("localities") == 0
    other = BOTH[schedule is Schedule.LBLC]
    counted_ipv4.program(other, (9, 9))
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == []
    counted_ipv4.program(schedule, (9, 9))
    counted_ipv4.put([(1, 0), (0, 0)])
    assert counted_ipv4.open(2001) == 1


@by_schedule
def test_the_backends_of_this_node_are_a_set_of_their_own(
    counted_ipv4: Loaded, schedule: Schedule
) -> None:
    counted_ipv4.program(schedule, (9, 9), first=3)
    counted_ipv4.put([(1, 0), (0, 0)])
    assert counted_ipv4.open(2000) == 1
    layout = counted_ipv4.node.pinned.layout.maps["localities"].key
    keys = [layout.unpack(key) for key, _ in counted_ipv4.node.pinned.map("localities").items()]
    assert [(one["local"], one["schedule"]) for one in keys] == [(1, schedule.value)] * 2


@by_schedule
def test_a_client_without_backends_changes_nothing(
    counted_ipv4: Loaded, schedule: Schedule
) -> None:
    """As of policy Local on a node without endpoints: it is dropped, and others are served."""
    weights = [9] * 64
    counted_ipv4.program(schedule, weights)
    assert counted_ipv4.open(2000) == 0
    counted_ipv4.program(schedule, weights, pods=False)
    assert {counted_ipv4.open(2001 + number) for number in range(8)} == {None}
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == [0]


@by_schedule
def test_a_question_changes_nothing(counted_ipv4: Loaded, schedule: Schedule) -> None:
    """The answer is what the next connection gets."""
    counted_ipv4.program(schedule, (4, 4))
    pinned = counted_ipv4.node.pinned
    client, vip = counted_ipv4.peers.client, counted_ipv4.peers.vip
    asked = question("pod", address_of(client), "TCP", *split(vip))
    for port, numbers in enumerate(([(0, 0), (0, 0)], [(5, 0), (1, 0)], [(5, 0), (9, 0)])):
        counted_ipv4.put(numbers)
        before = dict(pinned.map("localities").items())
        answer = decide(pinned, asked, 1)
        assert dict(pinned.map("localities").items()) == before
        chosen = counted_ipv4.open(2000 + port)
        assert chosen is not None
        assert answer.backend == address_port(counted_ipv4.backends[chosen])


@pytest.mark.parametrize("other", [0, 1], ids=["of the Service", "of another one"])
def test_what_was_chosen_for_a_service_that_is_gone_is_no_choice_for_another(
    counted_ipv4: Loaded, other: int
) -> None:
    """A frontend may change between the two steps of a first packet, the choice and its use."""
    counted_ipv4.program(Schedule.LC, (1, 1, 1))
    counted_ipv4.put([(5, 0), (5, 0), (1, 0)])
    (one,) = counted_ipv4.node.applied_state.of(("default", "web")).values()
    works = counted_ipv4.node.pinned.map("schedule_works")
    record = counted_ipv4.node.pinned.layout.maps["schedule_works"].value
    key = {"key.service": one.service_id + other, "key.generation": one.generation}
    value = record.pack({**key, "done": 1, "place": 1})
    padded = value + bytes(works.cpu_value_size - len(value))
    works.update(bytes(4), padded * (works.value_size // works.cpu_value_size))
    assert counted_ipv4.open(1024) == (2 if other else 1)


@by_schedule
def test_the_node_itself_gets_the_least_loaded_of_all(
    counted_ipv4: Loaded, schedule: Schedule
) -> None:
    """By what its sockets are answered."""
    counted_ipv4.program(schedule, (9, 9))
    vip = counted_ipv4.peers.vip
    assert counted_ipv4.open(2000) == 0
    counted_ipv4.put([(2, 0), (1, 0)])
    asked = question("node", counted_ipv4.peers.node_address, "TCP", *split(vip))
    assert decide(counted_ipv4.node.pinned, asked, 1).backend == address_port(
        counted_ipv4.backends[1]
    )
    assert kept(counted_ipv4, vip) == [0]
    assert counted_ipv4.open(2001) == 0


def split(text: str) -> tuple[str, int]:
    """Return address and port of a text."""
    return address_of(text), address_port(text)[1]


def program_table(loaded: Loaded, name: str, weights: list[int]) -> None:
    """Have the programs draw among more backends than they compare."""
    layout = lay_out(
        Scheduler(name), [((b"", number), weight) for number, weight in enumerate(weights)]
    )
    table = memoryview(layout.table).cast("H").tolist()
    loaded.program(layout.schedule, layout.weights, table=table)


@pytest.mark.parametrize("name", ["lblc", "lblcr"])
def test_of_more_backends_than_are_compared_two_are_drawn(counted_ipv4: Loaded, name: str) -> None:
    weights = [1] * 69 + [16_000]  # of 100 pairs, one on average has another backend
    program_table(counted_ipv4, name, weights)
    counts = Counter(counted_ipv4.open(1024 + number) for number in range(100))
    assert counts[69] > 90
    assert counted_ipv4.node.count("localities") == 0


@pytest.mark.parametrize("name", ["lblc", "lblcr"])
def test_of_the_two_that_are_drawn_the_less_loaded_serves(counted_ipv4: Loaded, name: str) -> None:
    """Every second backend has load: of four pairs one has two of those."""
    weights = [1] * 70
    program_table(counted_ipv4, name, weights)
    counted_ipv4.put([(1000 * (number % 2), 0) for number in range(70)])
    chosen = [counted_ipv4.open(1024 + number) for number in range(200)]
    loaded = sum(place is None or place % 2 for place in chosen)
    assert 15 < loaded < 75  # 50 of 200; a hundred if a single one were drawn


def test_a_set_holds_all_backends_that_are_compared(counted_ipv4: Loaded) -> None:
    """Each joins when all members are overloaded, and it alone is idle."""
    counted_ipv4.program(Schedule.LBLCR, [1] * 64)
    order = list(range(64))
    Random(3).shuffle(order)
    for port, idle in enumerate(order):
        counted_ipv4.put([(0, 0) if place == idle else (9, 0) for place in range(64)])
        assert counted_ipv4.open(2000 + port) == idle
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == order[::-1]
    counted_ipv4.put([(number, 0) for number in range(64)])
    assert counted_ipv4.open(3000) == 0


def places(counters: int) -> tuple[int, int]:
    """Return the two places of a member (bpf/maps/localities.h)."""
    return counters & 127, (counters * 0x61C88647 & 0xFFFFFFFF) >> 25


def test_a_member_moves_where_it_is_in_the_way_of_another_one_and_leaves_from_there(
    counted_ipv4: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both places of the last one are taken, the first one by a member that has another place."""
    ids = range(500, SIZES.max_backends)
    last = next(number for number in ids if len({*places(number), *places(number + 128)}) == 3)
    other = next(number for number in ids if places(number)[0] == places(last)[1])
    numbers = [last, other, last + 128]
    monkeypatch.setattr(counted_ipv4.node.ids, "take_counter", numbers.pop)
    model = Model(counted_ipv4, Schedule.LBLCR, (1, 1, 1))
    for joins in (0, 1, 2):
        counted_ipv4.put([(0, 0) if place == joins else (9, 0) for place in range(3)])
        assert counted_ipv4.open(2000 + joins) == joins
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == [2, 1, 0]
    model.wait(A_DAY + 1)
    counted_ipv4.put([(1, 0), (0, 0), (0, 0)])
    assert counted_ipv4.open(2003) == 2
    assert kept(counted_ipv4, counted_ipv4.peers.vip) == [2, 1]


def test_of_members_with_numbers_at_random_hardly_any_has_to_leave(
    counted_ipv4: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(5)
    numbers = random.sample(range(500, SIZES.max_backends), 3 * 65)
    monkeypatch.setattr(counted_ipv4.node.ids, "take_counter", numbers.pop)
    lost = 0
    for _ in range(3):
        counted_ipv4.program(Schedule.WLC, [1])
        counted_ipv4.program(Schedule.LBLCR, [1] * 64)
        for port in range(64):
            counted_ipv4.put([(0, 0) if number == port else (9, 0) for number in range(64)])
            counted_ipv4.open(2000 + port)
            counted_ipv4.remove(2000 + port)
        lost += 64 - len(kept(counted_ipv4, counted_ipv4.peers.vip))
    assert lost < 9
