"""From changes to plans: who is dragged in, who finds no room, how much is planned at once."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from bpfsvc.address import pack_network, unpack
from bpfsvc.books import Books
from bpfsvc.errors import MapFull
from bpfsvc.model import ModelObject, Node, ObjectKey, ServiceCIDR
from bpfsvc.rows import Frontend
from tests.rows.kernel import Kernel, new_books
from tests.rows.objects import CONFIG, endpoint_slice, frontend, service

SHARED = frontend("80.0.0.1 80")
ONE, TWO, THREE = (f"10.0.0.{number} here" for number in (1, 2, 3))


class Cluster:
    """Books and a kernel that always succeeds."""

    def __init__(self, *, max_backends: int = 100, at_once: int = 500) -> None:
        self.kernel = Kernel()
        self.books: Books = new_books(max_backends=max_backends, at_once=at_once)

    def apply(self, *puts: ModelObject, gone: tuple[str, ...] = ()) -> None:
        keys = [ObjectKey("Service", "default", name) for name in gone]
        touched = self.books.cluster.apply(puts, keys)
        self.kernel.sync(self.books.plans(touched), Random(1))

    def retry(self) -> None:
        self.kernel.sync(self.books.plans(set(self.books.refused)), Random(1))

    def backends(self) -> list[str]:
        return sorted(unpack(row.address) for row in self.kernel.backends.values())

    def owner(self, one: Frontend) -> str:
        return self.kernel.names[self.kernel.frontends[one].service_id].port.name


def claimant(name: str) -> ModelObject:
    return service(name, clusterIP=f"10.96.0.{ord(name)}", externalIPs=["80.0.0.1"])


def test_a_frontend_passes_from_owner_to_owner_without_a_gap() -> None:
    """``Kernel.sync`` fails if the row is away for a single operation."""
    cluster = Cluster(at_once=1)
    cluster.apply(claimant("b"))
    assert cluster.owner(SHARED) == "b"
    cluster.apply(claimant("a"))
    assert cluster.owner(SHARED) == "a"
    cluster.apply(gone=("a",))
    assert cluster.owner(SHARED) == "b"


def test_a_cluster_ip_passes_from_who_names_it_to_whose_it_is_and_back_without_a_gap() -> None:
    cluster, home = Cluster(at_once=1), frontend("10.96.0.1 80")
    cluster.apply(service("alien", clusterIP="10.96.0.9", externalIPs=["10.96.0.1"]))
    assert cluster.owner(home) == "alien"
    cluster.apply(service("home", clusterIP="10.96.0.1"))
    assert cluster.owner(home) == "home"
    cluster.apply(gone=("home",))
    assert cluster.owner(home) == "alien"


def test_a_service_without_room_stays_as_it_was_and_others_go_on() -> None:
    cluster = Cluster(max_backends=2)
    cluster.apply(service("a"), endpoint_slice(ONE, of="a"))
    cluster.apply(endpoint_slice(ONE, TWO, THREE, of="a"))
    (error,) = cluster.books.refused.values()
    assert isinstance(error, MapFull)
    assert [one.size for one in cluster.books.ledger] == [1]
    cluster.apply(service("b", clusterIP="10.96.0.2"), endpoint_slice(TWO, of="b", name="b-1"))
    assert [one.size for one in cluster.books.ledger] == [1, 1]


def test_a_service_without_room_is_tried_again() -> None:
    cluster = Cluster(max_backends=2)
    cluster.apply(
        service("a"),
        service("b", clusterIP="10.96.0.2"),
        endpoint_slice(ONE, of="a"),
        endpoint_slice(ONE, of="b", name="b-1"),
    )
    cluster.apply(endpoint_slice(ONE, TWO, of="a"))
    assert cluster.books.refused
    cluster.apply(gone=("b",))
    cluster.retry()
    assert not cluster.books.refused
    assert [one.size for one in cluster.books.ledger] == [2]


def test_a_service_without_room_still_gives_up_what_others_won() -> None:
    """Booked on, the lost frontend would be taken for written when it comes back."""
    cluster = Cluster(max_backends=1)
    cluster.apply(claimant("b"), endpoint_slice(ONE, of="b"))
    cluster.apply(claimant("a"), endpoint_slice(ONE, TWO, of="b"))
    assert ("default", "b") in cluster.books.refused
    assert cluster.owner(SHARED) == "a"
    cluster.apply(endpoint_slice(ONE, of="b"), gone=("a",))
    assert cluster.owner(SHARED) == "b"


def test_settings_that_change_are_in_force_with_the_next_plans() -> None:
    """Pods may become recognisable when the Node object comes."""
    cluster = Cluster()
    cluster.books.config = replace(CONFIG, detector_v4=False)
    cluster.apply(service("a"), endpoint_slice(ONE, of="a"))
    home = frontend("10.96.0.1 80")
    assert not cluster.kernel.frontends[home].policies.other.masquerade
    cluster.books.config = CONFIG
    cluster.kernel.sync(cluster.books.plans_for_all(), Random(1))
    assert cluster.kernel.frontends[home].policies.other.masquerade


def test_another_zone_moves_every_service() -> None:
    cluster = Cluster()
    near, far = f"{ONE} zone-a@", f"{TWO} zone-b@"
    cluster.apply(service("a"), endpoint_slice(near, far, of="a"), Node("here", "zone-a"))
    assert cluster.backends() == ["10.0.0.1"]
    cluster.apply(Node("here", "zone-b"))
    assert cluster.backends() == ["10.0.0.2"]


def test_labels_take_a_service_and_its_slices_away_and_bring_them_back() -> None:
    cluster, home = Cluster(), frontend("10.96.0.1 80")
    elsewhere = {"service.kubernetes.io/service-proxy-name": ""}
    headless = {"service.kubernetes.io/headless": ""}
    cluster.apply(service("a"), endpoint_slice(ONE, of="a"))
    cluster.apply(service("a", labels=elsewhere))
    assert not cluster.kernel.frontends
    cluster.apply(service("a"))
    assert cluster.backends() == ["10.0.0.1"]
    cluster.apply(endpoint_slice(ONE, of="a", labels=headless))
    assert cluster.kernel.frontends[home].policies.other.reject
    cluster.apply(endpoint_slice(ONE, of="a"))
    assert cluster.backends() == ["10.0.0.1"]


def test_service_networks_that_hold_all_of_ipv4_are_left_out() -> None:
    """IPv4 is a part of IPv6 in the kernel's maps."""
    cluster = Cluster()
    cidrs = ("10.96.0.0/16", "fd96::/112", "::/0")
    cluster.apply(ServiceCIDR("kubernetes", tuple(map(pack_network, cidrs))))
    networks = {(unpack(one.address), one.bits) for one in cluster.books.service_networks()}
    assert networks == {("10.96.0.0", 112), ("fd96::", 112)}


def test_many_services_come_in_parts() -> None:
    books = new_books(at_once=2)
    touched = books.cluster.apply(
        [service(name, clusterIP=f"10.96.0.{ord(name)}") for name in "abcde"], ()
    )
    assert [len(plan.names_put) for plan in books.plans(touched)] == [2, 2, 1]


def test_a_plan_that_was_not_executed_is_not_booked() -> None:
    books = new_books()
    books.cluster.apply([service()], ())
    for _ in books.plans_for_all():
        break
    assert not list(books.ledger)
