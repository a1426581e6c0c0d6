"""What is reported of addresses that Services do not get: what is new, and once."""

from __future__ import annotations

from bpfsvc.model import ModelObject, ObjectKey
from bpfsvc.services.address_faults import REFUSED, TAKEN, Fault, FaultReport, losers
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.planner import Planner
from tests.services.kernel import new_planner
from tests.services.objects import frontend, service

OLD, NEW = "2026-11-21T10:39:20Z", "2026-11-22T10:39:20Z"
MINE, OURS = ("default", "mine"), ("default", "ours")


class Cluster:
    """A planner whose plans are not written, and the report."""

    def __init__(self) -> None:
        self.planner: Planner = new_planner()
        self.report = FaultReport(self.planner)

    def apply(self, *puts: ModelObject, gone: tuple[ServiceKey, ...] = ()) -> list[Fault]:
        """Apply changes; return what is reported of them."""
        keys = [ObjectKey("Service", *key) for key in gone]
        touched = self.planner.cache.apply(puts, keys)
        self.planner.sync(touched, lambda _: None)
        return self.report.update(touched)


def ours(created: str = OLD, address: str = "80.0.0.1") -> ModelObject:
    return service("ours", created=created, clusterIP="10.96.0.2", externalIPs=[address])


def mine(address: str = "80.0.0.1") -> ModelObject:
    return service("mine", created=NEW, clusterIP="10.96.0.3", externalIPs=[address])


def test_the_younger_service_is_told_that_it_does_not_get_an_address() -> None:
    cluster = Cluster()
    assert cluster.apply(mine()) == []
    text = "80.0.0.1:80/TCP belongs to default/ours: that Service is older"
    assert cluster.apply(ours()) == [Fault(MINE, TAKEN, text)]
    assert list(losers(cluster.planner.ownership, frontend("80.0.0.1 80"))) == [
        "default/mine names it too, without effect: that Service is older"
    ]


def test_a_conflict_is_reported_again_only_after_it_was_over() -> None:
    cluster = Cluster()
    assert len(cluster.apply(mine(), ours())) == 1
    other = service("other", clusterIP="10.96.0.4")
    assert cluster.apply(other, mine()) == []
    assert cluster.apply(gone=(OURS,)) == []
    assert len(cluster.apply(ours())) == 1


def test_a_refused_address_is_reported_until_it_is_gone() -> None:
    cluster = Cluster()
    text = "spec.externalIPs has 0.0.0.0, the unspecified address: not served there"
    assert cluster.apply(mine("0.0.0.0")) == [Fault(MINE, REFUSED, text)]
    assert cluster.apply(ours(address="80.0.0.2")) == []
    assert cluster.apply(mine("80.0.0.3")) == []
    assert cluster.apply(mine("0.0.0.0")) == [Fault(MINE, REFUSED, text)]


def test_a_service_of_another_proxy_is_not_reported() -> None:
    label = {"service.kubernetes.io/service-proxy-name": "other"}
    assert Cluster().apply(service(labels=label, externalIPs=["0.0.0.0"])) == []


def test_many_conflicts_of_one_service_are_one_short_text() -> None:
    cluster = Cluster()
    many = [f"80.0.0.{number}" for number in range(1, 10)]
    cluster.apply(service("ours", created=OLD, clusterIP="10.96.0.2", externalIPs=many))
    (fault,) = cluster.apply(service("mine", created=NEW, clusterIP="10.96.0.3", externalIPs=many))
    assert fault.text.endswith(" and 6 more")
