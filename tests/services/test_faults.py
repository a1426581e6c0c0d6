"""What is reported of addresses and schedulers that Services do not get: what is new, and once."""

from __future__ import annotations

from bpfsvc.model import ModelObject, ObjectKey
from bpfsvc.services.cache import ServiceKey
from bpfsvc.services.faults import (
    BAD_SCHEDULER,
    REFUSED,
    TAKEN,
    UNKNOWN,
    Fault,
    FaultReport,
    losers,
)
from bpfsvc.services.planner import Planner
from tests.services.kernel import new_planner
from tests.services.objects import endpoint_slice, frontend, service

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
        self.planner.sync(touched, 0, lambda _: None)
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


def scheduled(**annotations: str) -> ModelObject:
    return service(
        "mine", annotations={f"bpfsvc.io/{name}": annotations[name] for name in annotations}
    )


def test_a_scheduler_that_cannot_be_used_is_reported_until_it_is_corrected() -> None:
    cluster = Cluster()
    assert cluster.apply(scheduled(scheduler="wrr")) == []
    (fault,) = cluster.apply(scheduled(scheduler="wr"))
    assert fault[:2] == (MINE, BAD_SCHEDULER)
    assert fault.text.startswith("annotation bpfsvc.io/scheduler: scheduler 'wr'")
    assert fault.text.endswith("; the last good value stays in force")
    assert cluster.apply(ours()) == []
    assert cluster.report.notes()["schedulers"].startswith("Service default/mine: annotation")
    assert cluster.apply(scheduled(scheduler="rr")) == []
    assert cluster.report.notes()["schedulers"] == ""


def test_of_several_services_with_a_fault_the_note_names_the_first_and_counts_the_others() -> None:
    cluster = Cluster()
    others = [service(name, internalTrafficPolicy="Newer") for name in ("other", "third")]
    cluster.apply(service("mine", internalTrafficPolicy="Newest"), *others)
    assert cluster.report.notes()["unknown values"] == (
        "Service default/mine: spec.internalTrafficPolicy: 'Newest' is unknown here, "
        "so it counts as Cluster and 2 more"
    )


def test_all_that_is_wrong_with_the_annotations_of_a_service_is_one_text() -> None:
    cluster = Cluster()
    slices = [
        endpoint_slice("10.0.0.1 here", of="mine", annotations={"bpfsvc.io/weight": "-1"}),
    ]
    (fault,) = cluster.apply(scheduled(scheduler="x", weights="node/a"), *slices)
    for said in (
        "bpfsvc.io/scheduler: scheduler 'x'",
        "bpfsvc.io/weights: 'node/a' must be NAME=WEIGHT",
        "bpfsvc.io/weight of EndpointSlice web-1: a weight must be 0 to 65535, not '-1'",
    ):
        assert said in fault.text
    assert "\n" not in fault.text


def test_unknown_values_are_reported_until_they_are_gone() -> None:
    cluster = Cluster()
    quic = {"name": "quic", "port": 443, "protocol": "QUIC"}
    newer = service("mine", internalTrafficPolicy="Newer")
    policy = "spec.internalTrafficPolicy: 'Newer' is unknown here, so it counts as Cluster"
    assert cluster.apply(newer) == [Fault(MINE, UNKNOWN, policy)]
    assert cluster.report.notes()["unknown values"] == f"Service default/mine: {policy}"
    (fault,) = cluster.apply(endpoint_slice("10.0.0.1 here", of="mine", ports=(quic,)))
    assert fault.text == (
        f"{policy}; EndpointSlice web-1: "
        "ports[0].protocol: 'QUIC' is unknown here, so this port is left out"
    )
    assert cluster.apply(service("mine"), endpoint_slice("10.0.0.1 here", of="mine")) == []
    assert cluster.report.notes()["unknown values"] == ""
    headless = service("mine", clusterIP="None", internalTrafficPolicy="Newer")
    assert cluster.apply(headless) == []


def test_a_deleted_service_has_no_fault() -> None:
    cluster = Cluster()
    assert len(cluster.apply(scheduled(scheduler="x"))) == 1
    assert cluster.apply(gone=(MINE,)) == []
    assert cluster.report.notes()["schedulers"] == ""
    assert len(cluster.apply(scheduled(scheduler="x"))) == 1
