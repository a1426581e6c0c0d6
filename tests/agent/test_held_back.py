"""A restart while something cannot be read: its entries stay, and all other changes are made.

Each test has a kernel that an earlier agent has filled, and an agent that begins with the objects
that its source can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random
from unittest.mock import Mock

import pytest

from bpfsvc.agent.objects.parse_errors import ParseErrors
from bpfsvc.agent.sync.syncer import Syncer
from bpfsvc.kube.source import ParseError
from bpfsvc.model import ModelObject, ObjectKey
from bpfsvc.services.plans.drift import find_drift
from tests.services.kernel import Kernel, new_planner
from tests.services.objects import endpoint_slice, frontend, service

FILE = ParseError("a.yaml", 3, "malformed YAML")

ADDRESSES = {"web": "10.96.0.1", "dns": "10.96.0.2", "old": "10.96.0.3", "new": "10.96.0.4"}
BACKENDS = {"web": "10.0.0.1", "dns": "10.0.0.2", "old": "10.0.0.3", "new": "10.0.0.4"}


def unreadable(kind: str, name: str, of: str = "") -> ParseError:
    owner = ("default", of) if of else None
    return ParseError(f"{kind} {name}", 0, "no port", ObjectKey(kind, "default", name), owner)


def service_of(name: str) -> ModelObject:
    return service(name, clusterIP=ADDRESSES[name])


def slice_of(name: str, *more: str, part: str = "1") -> ModelObject:
    endpoints = more or (BACKENDS[name],)
    return endpoint_slice(*(f"{one} -" for one in endpoints), of=name, name=f"{name}-{part}")


def both(*names: str) -> list[ModelObject]:
    return [made for name in names for made in (service_of(name), slice_of(name))]


class Node:
    """A kernel, and the agents that have it in turn."""

    def __init__(self, *objects: ModelObject) -> None:
        self.random = Random(1)
        self.kernel = Kernel()
        self.start(objects)

    def start(self, objects: object, *problems: ParseError) -> None:
        """Start an agent that reads these objects; ``problems`` are what it cannot read."""
        self.planner = new_planner()
        self.planner.cache.apply(objects, ())  # type: ignore[arg-type]
        self.errors = ParseErrors()
        self.errors.replace(problems)
        self.syncer = Syncer(self.planner, self._writer(), (), self.errors, Mock(), Mock())
        self.syncer.start(0)

    def change(
        self,
        *puts: ModelObject,
        gone: tuple[ObjectKey, ...] = (),
        problems: tuple[ParseError, ...] = (),
    ) -> None:
        touched = self.planner.cache.apply(puts, gone)
        self.errors.replace(problems)
        self.syncer.sync(touched, 0)

    @property
    def served(self) -> Mapping[str, set[str]]:
        """By Service, the addresses of its backends."""
        meaning = self.kernel.meaning()
        answers = {name: frontend(f"{address} 80") for name, address in ADDRESSES.items()}
        return {
            name: {f"10.0.0.{address[-1]}" for _, address, *_ in meaning[key][2]}  # type: ignore
            for name, key in answers.items()
            if key in meaning
        }

    @property
    def drift(self) -> int:
        """How many entries the agent would take for another program's."""
        spared = self.planner.spared_ids()
        return find_drift(self.planner.applied_state, self.kernel.read, spared)[1]

    def _writer(self) -> Mock:
        def restore() -> None:
            self.planner.restore(self.kernel.read)
            self.kernel.recount(self.planner)

        writer = Mock()
        writer.restore = restore
        writer.write = partial(self.kernel.execute, random=self.random)
        return writer


def expected(*names: str) -> dict[str, set[str]]:
    return {name: {BACKENDS[name]} for name in names}


def test_a_service_that_cannot_be_read_stays_and_all_else_is_pruned() -> None:
    """Also Services of its own namespace that are gone, and the ports of others."""
    here = Node(*both("web", "dns", "old"))
    here.start([*both("web", "new"), slice_of("dns")], unreadable("Service", "dns"))
    assert here.served == expected("web", "dns", "new")


def test_a_service_that_cannot_be_read_follows_when_it_is_mended() -> None:
    here = Node(*both("web", "dns"))
    problem = unreadable("Service", "dns")
    here.start([*both("web"), slice_of("dns", "10.0.0.9")], problem)
    here.change(slice_of("web", "10.0.0.8"), problems=(problem,))
    assert here.served == {"web": {"10.0.0.8"}, "dns": {"10.0.0.2"}}
    here.change(service_of("dns"))
    assert here.served == {"web": {"10.0.0.8"}, "dns": {"10.0.0.9"}}


def test_a_service_that_cannot_be_read_goes_when_it_is_deleted() -> None:
    """Another object that cannot be read does not keep it."""
    here = Node(*both("web", "dns", "old"))
    problems = unreadable("Service", "dns"), unreadable("Service", "old")
    here.start(both("web"), *problems)
    assert here.served == expected("web", "dns", "old")
    here.change(gone=(ObjectKey("Service", "default", "dns"),), problems=problems[1:])
    assert here.served == expected("web", "old")


def test_a_slice_that_cannot_be_read_holds_back_its_service_alone() -> None:
    here = Node(*both("web", "dns", "old"))
    objects = [service_of("web"), service_of("dns"), slice_of("dns", "10.0.0.9")]
    here.start(objects, unreadable("EndpointSlice", "web-1", "web"))
    assert here.served == {"web": {"10.0.0.1"}, "dns": {"10.0.0.9"}}


@pytest.mark.parametrize("kind", ["Node", "Pod", "ServiceCIDR"])
def test_an_object_of_another_kind_holds_back_nothing(kind: str) -> None:
    here = Node(*both("web", "old"))
    here.start(both("web"), unreadable(kind, "default"))
    assert here.served == expected("web")


def test_a_slice_whose_service_is_gone_does_not_keep_it() -> None:
    here = Node(*both("web", "old"))
    here.start(both("web"), unreadable("EndpointSlice", "old-1", "old"))
    assert here.served == expected("web")


def test_a_slice_that_names_no_service_holds_back_those_of_its_namespace() -> None:
    here = Node(*both("web", "old"))
    here.start([service_of("web")], unreadable("EndpointSlice", "web-1"))
    assert here.served == expected("web")


def test_a_service_with_other_slices_follows_their_changes() -> None:
    """Its last endpoints may be gone by then; those of the other slices are there."""
    here = Node(*both("web"), slice_of("web", "10.0.0.2", part="2"))
    problem = unreadable("EndpointSlice", "web-1", "web")
    rest = [service_of("web"), slice_of("web", "10.0.0.2", part="2")]
    here.start(rest, problem)
    assert here.served == {"web": {"10.0.0.1", "10.0.0.2"}}
    here.change(slice_of("web", "10.0.0.9", part="2"), problems=(problem,))
    assert here.served == {"web": {"10.0.0.9"}}


def test_a_service_of_which_an_earlier_value_is_known_follows_its_slices() -> None:
    """What the kernel holds may be newer than the snapshot, until something changes."""
    here = Node(*both("web", "dns"))
    problem = unreadable("Service", "dns")
    here.start([*both("web"), service_of("dns"), slice_of("dns", "10.0.0.9")], problem)
    assert here.served == expected("web", "dns")
    here.change(slice_of("dns", "10.0.0.8"), problems=(problem,))
    assert here.served == {**expected("web"), "dns": {"10.0.0.8"}}


def test_changes_of_good_files_are_made_beside_a_broken_one() -> None:
    """What no good file names may be in the broken one: it stays."""
    here = Node(*both("web", "dns", "old"))
    here.start([service_of("web"), slice_of("web", "10.0.0.9"), *both("new")], FILE)
    assert here.served == {**expected("dns", "old", "new"), "web": {"10.0.0.9"}}


def test_a_broken_file_may_have_the_endpoints_of_a_service_of_a_good_file() -> None:
    here = Node(*both("web"))
    here.start([service_of("web")], FILE)
    assert here.served == expected("web")
    here.change(slice_of("web", "10.0.0.9"), problems=(FILE,))
    assert here.served == {"web": {"10.0.0.9"}}


def test_what_is_in_no_file_goes_when_the_broken_file_is_fixed() -> None:
    here = Node(*both("web", "old", "dns"))
    here.start(both("web"), FILE)
    here.change(slice_of("web", "10.0.0.8"), problems=(FILE,))
    assert here.served == {**expected("old", "dns"), "web": {"10.0.0.8"}}
    here.change(*both("dns"))
    assert here.served == {**expected("dns"), "web": {"10.0.0.8"}}


def test_leftovers_of_what_cannot_be_read_stay_until_it_can_and_others_go() -> None:
    """An agent that died in the middle of a plan leaves entries that still carry traffic."""
    here = Node(*both("web", "dns", "old"))
    for name in ("dns", "old"):
        # Without its backend, a service port is not restored.
        ((key, _),) = [
            (key, entry)
            for key, entry in here.kernel.backends.items()
            if here.kernel.names[entry.service_id].port.name == name
        ]
        del here.kernel.backends[key]
    here.kernel.check = lambda: None  # type: ignore[method-assign]
    here.start(both("web"), unreadable("Service", "dns"))
    assert here.served.keys() == {"web", "dns"}
    assert here.drift == 0
    here.change(*both("dns"))
    assert here.drift == 0
    assert here.served == expected("web", "dns")
