"""Which Services an event affects."""

from __future__ import annotations

from bpfsvc.base.address import pack, pack_network
from bpfsvc.devtools.lab.objects import endpoints
from bpfsvc.model import Node, ObjectKey, Pod, ServiceCIDR, read_object
from bpfsvc.services.cache import Cache
from tests.services.objects import endpoint_slice, service

WEB = ("default", "web")
WEB_KEY = ObjectKey("Service", *WEB)


def cluster(*objects: object) -> Cache:
    made = Cache("here")
    made.apply(objects, ())  # type: ignore[arg-type]
    return made


def test_a_slice_affects_its_service_only() -> None:
    known = cluster(service(), service("other"))
    assert known.apply([endpoint_slice("10.0.0.1 here")], ()) == {WEB}


def test_a_slice_before_its_service_affects_nothing_and_is_kept() -> None:
    known = cluster()
    assert known.apply([endpoint_slice("10.0.0.1 here")], ()) == set()
    assert known.apply([service()], ()) == {WEB}
    assert len(known.lookup(WEB).slices) == 1


def test_an_unchanged_object_affects_nothing() -> None:
    known = cluster(service(), endpoint_slice("10.0.0.1 here"))
    assert known.apply([service(), endpoint_slice("10.0.0.1 here")], ()) == set()


def test_a_slice_replaces_its_older_version() -> None:
    known = cluster(service(), endpoint_slice("10.0.0.1 here"))
    assert known.apply([endpoint_slice("10.0.0.2 here")], ()) == {WEB}
    assert known.lookup(WEB).slices == (endpoint_slice("10.0.0.2 here"),)


def test_a_slice_that_changes_its_service_affects_both() -> None:
    known = cluster(service(), service("other"), endpoint_slice("10.0.0.1 here"))
    moved = endpoint_slice("10.0.0.1 here", of="other")
    assert known.apply([moved], ()) == {WEB, ("default", "other")}
    assert known.lookup(WEB).slices == ()


def test_endpoints_and_slices_of_one_service_are_kept_together() -> None:
    classic = read_object(endpoints("web", ["10.0.0.9"]))
    known = cluster(service(), endpoint_slice("10.0.0.1 here", name="web-0"), *classic)
    assert len(known.lookup(WEB).slices) == 2
    assert known.apply((), [ObjectKey("Endpoints", "default", "web-0")]) == {WEB}
    assert [one.kind for one in known.lookup(WEB).slices] == ["EndpointSlice"]


def test_a_deleted_object_affects_its_service() -> None:
    known = cluster(service(), endpoint_slice("10.0.0.1 here"))
    assert known.apply((), [ObjectKey("EndpointSlice", "default", "web-1")]) == {WEB}
    assert known.apply((), [WEB_KEY]) == {WEB}
    assert known.lookup(WEB).service is None
    assert known.apply((), [WEB_KEY]) == set()


def test_labels_toggle_a_service_in_both_directions() -> None:
    known = cluster(service())
    elsewhere = service(labels={"service.kubernetes.io/service-proxy-name": "x"})
    assert known.apply([elsewhere], ()) == {WEB}
    assert known.apply([service()], ()) == {WEB}


def test_a_label_toggles_a_slice_in_both_directions() -> None:
    """Even with an empty value."""
    known = cluster(service(), endpoint_slice("10.0.0.1 here"))
    headless = endpoint_slice("10.0.0.1 here", labels={"service.kubernetes.io/headless": ""})
    assert known.apply([headless], ()) == {WEB}
    assert not known.lookup(WEB).slices[0].is_proxied
    assert known.apply([endpoint_slice("10.0.0.1 here")], ()) == {WEB}


def test_another_address_of_this_node_affects_every_service() -> None:
    """Source ranges are compared with it."""
    known = cluster(service(), Node("here", "zone-a"))
    moved = Node("here", "zone-a", addresses=(pack("192.168.0.2"),))
    assert known.apply([moved], ()) == {WEB}
    assert known.apply([moved], ()) == set()


def test_service_networks_are_those_of_all_service_cidrs_and_affect_no_service() -> None:
    v4, v6 = pack_network("10.96.0.0/16"), pack_network("fd96::/112")
    known = cluster(service())
    assert known.apply([ServiceCIDR("a", (v4, v6)), ServiceCIDR("b", (v4,))], ()) == set()
    assert known.service_networks() == {v4, v6}
    assert known.apply((), [ObjectKey("ServiceCIDR", "", "a")]) == set()
    assert known.service_networks() == {v4}
    known.apply([ServiceCIDR("b")], ())
    assert known.service_networks() == set()


def test_a_zone_change_of_this_node_affects_every_service() -> None:
    known = cluster(service(), service("other"))
    both = {WEB, ("default", "other")}
    assert known.apply([Node("here", "zone-a")], ()) == both
    assert known.apply([Node("here", "zone-a", leaving=True)], ()) == set()
    assert known.apply([Node("there", "zone-b")], ()) == set()
    assert known.apply((), [ObjectKey("Node", "", "here")]) == set()
    assert known.node.leaving, "the last known node is kept"


def test_objects_missing_from_a_list_of_their_kind_are_removed() -> None:
    """After an interruption, an API server's list names what exists, not what was deleted."""
    known = cluster(
        service(),
        service("other"),
        endpoint_slice("10.0.0.1 here"),
        endpoint_slice("10.0.0.2 here", name="web-2"),
        ServiceCIDR("a", (pack_network("10.96.0.0/16"),)),
    )
    assert known.apply((), (), {"EndpointSlice": {("default", "web-2")}}) == {WEB}
    assert known.apply((), (), {"Service": {WEB}}) == {("default", "other")}
    known.apply((), (), {"ServiceCIDR": set()})
    assert [one.name for one in known.objects()] == ["web", "web-2"]


def test_a_list_removes_missing_objects_and_adds_its_own_in_one_change() -> None:
    known = cluster(service("old"))
    assert known.apply([service()], (), {"Service": {WEB}}) == {WEB, ("default", "old")}
    assert known.service_keys() == [WEB]


def test_all_objects_of_a_cache_make_an_equal_cache() -> None:
    known = cluster(
        service(),
        endpoint_slice("10.0.0.1 here"),
        Node("here", "zone-a"),
        ServiceCIDR("a", (pack_network("10.96.0.0/16"),)),
    )
    other = cluster(*known.objects())
    assert set(map(repr, other.objects())) == set(map(repr, known.objects()))
    assert ServiceCIDR("a", (pack_network("10.96.0.0/16"),)) in known.objects()
    assert other.node_seen
    assert not cluster(service()).node_seen


def test_configured_node_addresses_replace_those_of_the_node_object() -> None:
    own, v4, v6 = pack("192.168.0.9"), pack("192.168.0.2"), pack("fd00::2")
    known = Cache("here", (own,))
    assert list(known.node.addresses) == [own]
    known.apply([Node("here", addresses=(v4, v6))], ())
    assert list(known.node.addresses) == [own, v6]


def _pod(name: str, *addresses: str, node: str = "here", opted_out: bool = True) -> Pod:
    return Pod("default", name, node, tuple(map(pack, addresses)), opted_out)


def test_pods_of_this_node_that_opt_out_are_found_by_their_addresses() -> None:
    known = cluster(
        _pod("meshed", "10.0.0.1", "fd00::1"),
        _pod("plain", "10.0.0.2", opted_out=False),
        _pod("elsewhere", "10.0.0.3", node="there"),
    )
    assert known.opted_out() == {pack("10.0.0.1"), pack("fd00::1")}
    assert known.objects() == [_pod("meshed", "10.0.0.1", "fd00::1")]


def test_a_pod_that_no_longer_opts_out_or_is_deleted_is_removed() -> None:
    known = cluster(_pod("one", "10.0.0.1"), _pod("two", "10.0.0.2"), _pod("three", "10.0.0.3"))
    assert known.apply([_pod("one", "10.0.0.1", opted_out=False)], ()) == set()
    assert known.apply((), [ObjectKey("Pod", "default", "two")]) == set()
    assert known.opted_out() == {pack("10.0.0.3")}
    known.apply((), (), {"Pod": set()})
    assert known.opted_out() == set()


def test_pods_are_complete_after_the_first_list() -> None:
    known = cluster(_pod("meshed", "10.0.0.1"))
    assert not known.pods_seen
    known.apply((), (), {"Pod": {("default", "meshed")}})
    assert known.pods_seen
