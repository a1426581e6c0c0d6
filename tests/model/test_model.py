"""Reading the API's objects, and the errors of broken ones."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bpfsvc.base.address import endpoint_text, pack, pack_network, unpack
from bpfsvc.model import (
    EndpointSlice,
    Node,
    ObjectError,
    ObjectKey,
    Pod,
    Service,
    ServiceCIDR,
    read_json,
    read_object,
)
from bpfsvc.model.leniency import pack_lenient, pack_network_lenient
from tests.services.objects import HTTP, raw_service, raw_slice, service

ENDPOINTS: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Endpoints",
    "metadata": {"name": "svc-a", "namespace": "default"},
    "subsets": [
        {
            "addresses": [
                {"ip": "101.76.9.141", "nodeName": "here"},
                {"ip": "fd00::1", "targetRef": {"kind": "Pod", "name": "pod-a"}},
            ],
            "notReadyAddresses": [{"ip": "101.76.9.142"}],
            "ports": [{"port": 80}],
        },
        {
            "addresses": [{"ip": "10.0.0.1"}],
            "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}],
        },
    ],
}
NODE_OBJECT: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "zone-a"}},
    "spec": {"podCIDRs": ["10.244.1.0/24", "fd00:10:244:1::/64"]},
    "status": {
        "addresses": [
            {"type": "ExternalIP", "address": "80.0.0.1"},
            {"type": "Hostname", "address": "n1"},
            {"type": "InternalIP", "address": "192.168.0.2"},
        ]
    },
}


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(raw_service(ports=[HTTP | {"nodePort": 30080}]), id="a Service"),
        pytest.param(raw_slice("10.0.0.1 here zone-a@", "10.0.0.2 - draining"), id="a slice"),
        pytest.param(ENDPOINTS, id="an Endpoints"),
        pytest.param(NODE_OBJECT, id="a Node"),
        pytest.param({"apiVersion": "v1", "kind": "ConfigMap"}, id="a kind that is not used"),
        pytest.param(
            {"apiVersion": "serving.knative.dev/v1", "kind": "Service"},
            id="a Service of another group",
        ),
    ],
)
def test_json_and_yaml_give_the_same_values(raw: dict[str, object]) -> None:
    """An object as text and as a mapping gives the same values."""
    assert read_json(json.dumps(raw).encode()) == read_object(raw)


def test_endpoints_are_read_as_a_slice_per_subset_and_family() -> None:
    """Not-ready addresses are not ready; a port may lack its name; the protocol is TCP."""
    slices = [one for one in read_object(ENDPOINTS) if isinstance(one, EndpointSlice)]
    assert [(one.key, one.family, one.ports) for one in slices] == [
        (ObjectKey("Endpoints", "default", "svc-a-0"), 4, (("", 6, 80),)),
        (ObjectKey("Endpoints", "default", "svc-a-1"), 6, (("", 6, 80),)),
        (ObjectKey("Endpoints", "default", "svc-a-2"), 4, (("dns", 17, 53),)),
    ]
    assert {one.service for one in slices} == {"svc-a"}
    assert [
        (unpack(address), traits.ready, traits.node) for address, traits in slices[0].endpoints()
    ] == [("101.76.9.141", True, "here"), ("101.76.9.142", False, "")]


def test_a_node_has_internal_addresses_first() -> None:
    (node,) = read_object(NODE_OBJECT)
    assert isinstance(node, Node)
    assert [unpack(address) for address in node.addresses] == ["192.168.0.2", "80.0.0.1"]
    assert (node.zone, node.leaving, len(node.pod_cidrs)) == ("zone-a", False, 2)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        pytest.param(
            "metadata", {"name": "n1", "deletionTimestamp": "2026-11-21T10:39:16Z"}, id="deleted"
        ),
        pytest.param(
            "spec",
            {"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]},
            id="marked by the autoscaler",
        ),
    ],
)
def test_a_node_is_leaving_when(part: str, value: object) -> None:
    """A node that is about to be removed is noticed."""
    (node,) = read_object(NODE_OBJECT | {part: value})
    assert isinstance(node, Node)
    assert node.leaving


def test_every_field_of_a_service_is_read() -> None:
    made = service(
        labels={"service.kubernetes.io/service-proxy-name": ""},
        ingress=({"ip": "1.2.3.4", "ipMode": "VIP"}, {"hostname": "lb.example.com"}),
        type="LoadBalancer",
        loadBalancerSourceRanges=[" 10.0.0.0/025 ", "nonsense", "fd00::/8"],
        internalTrafficPolicy="Local",
        externalTrafficPolicy="Local",
        healthCheckNodePort=30000,
        sessionAffinity="ClientIP",
    )
    assert made.load_balancer_ips == (pack("1.2.3.4"),)
    assert made.source_ranges == (
        pack_network_lenient("10.0.0.0/25"),
        pack_network_lenient("fd00::/8"),
    )
    assert (made.internal_local, made.external_local) == (True, True)
    assert (made.health_check_node_port, made.affinity_seconds) == (30000, 10800)
    assert made.proxied_elsewhere


def test_session_affinity_has_its_timeout() -> None:
    config = {"clientIP": {"timeoutSeconds": 60}}
    assert service(sessionAffinity="ClientIP", sessionAffinityConfig=config).affinity_seconds == 60
    assert service(sessionAffinityConfig=config).affinity_seconds == 0


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_service_cidr_has_networks_and_skips_invalid_ones(version: str) -> None:
    (made,) = read_object(
        {
            "apiVersion": f"networking.k8s.io/{version}",
            "kind": "ServiceCIDR",
            "metadata": {"name": "kubernetes"},
            "spec": {"cidrs": ["10.96.0.0/016", "rubbish", "fd96::/112"]},
        }
    )
    assert isinstance(made, ServiceCIDR)
    assert made.cidrs == (pack_network("10.96.0.0/16"), pack_network("fd96::/112"))
    assert made.key == ObjectKey("ServiceCIDR", "", "kubernetes")


def test_a_service_cidr_of_an_unknown_version_is_another_kind() -> None:
    assert read_object({"apiVersion": "v1", "kind": "ServiceCIDR", "metadata": {"name": "x"}}) == ()


def _pod(**fields: object) -> Pod:
    (made,) = read_object({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}} | fields)
    assert isinstance(made, Pod)
    return made


def test_a_pod_has_its_own_addresses_and_none_in_its_nodes_network() -> None:
    status = {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}
    made = _pod(spec={"nodeName": "here"}, status=status)
    assert (made.node, made.addresses) == ("here", (pack("10.0.0.1"), pack("fd00::1")))
    assert made.key == ObjectKey("Pod", "default", "x")
    assert _pod(spec={"nodeName": "here", "hostNetwork": True}, status=status).addresses == ()
    assert _pod().addresses == ()


@pytest.mark.parametrize(("value", "opted_out"), [("off", True), ("on", False), ("", False)])
def test_a_pod_opts_out_by_an_annotation(value: str, opted_out: bool) -> None:
    notes = {"bpfsvc.io/socket-lb": value, "other/note": "off"}
    assert _pod(metadata={"name": "x", "annotations": notes}).opted_out is opted_out


def test_annotations_of_schedulers_and_weights_are_kept_as_they_are_written() -> None:
    texts = {"bpfsvc.io/scheduler": " sh ", "bpfsvc.io/weights": "x"}
    made = service(annotations={**texts, "other.io/weights": "y"})
    assert dict(made.annotations) == {"scheduler": " sh ", "weights": "x"}
    assert service().annotations == ()
    weight = {"bpfsvc.io/weight": "none"}
    for raw in (
        raw_slice("10.0.0.1 here", annotations=weight),
        ENDPOINTS | {"metadata": {"name": "svc-a", "annotations": weight}},
    ):
        for one in read_object(raw):
            assert isinstance(one, EndpointSlice)
            assert one.weight == "none"


def test_an_endpoint_has_the_zone_that_the_slice_names() -> None:
    (made,) = read_object(raw_slice("10.0.0.1 here in:zone-b zone-a@", "10.0.0.2 here"))
    assert isinstance(made, EndpointSlice)
    assert [(one.zone, one.zones) for one in made.traits] == [("zone-b", ("zone-a",)), ("", ())]


def test_a_manifest_without_namespace_is_in_default() -> None:
    (made,) = read_object({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}})
    assert made.key == ObjectKey("Service", "default", "web")
    assert isinstance(made, Service)
    assert not made.is_proxied


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        pytest.param({}, "object missing required field kind", id="no object at all"),
        pytest.param(
            raw_service(ports=[{"port": "eighty"}]),
            "spec.ports[0].port: expected int, got str",
            id="a port in words",
        ),
        pytest.param(
            raw_service(ports=[HTTP, {"name": "b", "port": 70000}]),
            "spec.ports[1].port: expected int <= 65535, got 70000",
            id="a port beyond all ports",
        ),
        pytest.param(
            raw_service(ports=[{"port": 80, "protocol": 6}]),
            "spec.ports[0].protocol: expected str | null, got int",
            id="a protocol that is a number",
        ),
        pytest.param(
            raw_service(clusterIP="10.96.0.256"),
            "spec.clusterIP: '10.96.0.256' is not an IP address",
            id="a cluster IP that is none",
        ),
        pytest.param(
            raw_service(clusterIPs=["10.96.0.1", "x"], ipFamilies=["IPv4", "IPv6"]),
            "spec.clusterIPs[1]: 'x' is not an IP address",
            id="the second cluster IP",
        ),
        pytest.param(
            {"apiVersion": "v1", "kind": "Service", "metadata": {}},
            "metadata: object missing required field name",
            id="no name",
        ),
        pytest.param(
            raw_service(labels={"service.kubernetes.io/service-proxy-name": 7}),  # type: ignore[dict-item]
            "metadata.labels.service.kubernetes.io/service-proxy-name: expected str, got int",
            id="a label that is a number",
        ),
        pytest.param(
            raw_slice("10.0.0.1 here", annotations={"bpfsvc.io/weight": 3}),  # type: ignore[dict-item]
            "metadata.annotations.bpfsvc.io/weight: expected str | null, got int",
            id="an annotation that is a number",
        ),
        pytest.param(
            raw_slice("10.0.0.1 here") | {"addressType": "IPv6"},
            "endpoints[0].addresses[0]: '10.0.0.1' is not an IPv6 address",
            id="an address of the wrong family",
        ),
        pytest.param(
            ENDPOINTS | {"subsets": [{"addresses": [{"ip": "pod-a"}]}]},
            "subsets[0].addresses[0].ip: 'pod-a' is not an IP address",
            id="an endpoint that is none",
        ),
    ],
)
def test_a_broken_object_is_named_by_its_field(raw: dict[str, object], message: str) -> None:
    """The error names the field and the reason, alike from JSON and from a mapping."""
    with pytest.raises(ObjectError) as from_mapping:
        read_object(raw)
    with pytest.raises(ObjectError) as from_json:
        read_json(json.dumps(raw).encode())
    assert str(from_mapping.value) == str(from_json.value) == message


def test_the_path_of_an_error_names_its_field() -> None:
    with pytest.raises(ObjectError) as error:
        read_object(raw_service(ports=[HTTP, {"port": "eighty"}]))
    assert error.value.path == ("spec", "ports", 1, "port")


def test_text_that_is_no_json_is_an_error() -> None:
    with pytest.raises(ObjectError, match="malformed JSON"):
        read_json(b'{"kind": "Service", ')


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("172.30.0.041", "172.30.0.41"),
        ("000.0.0.0", "0.0.0.0"),
        ("::ffff:10.0.0.09", "10.0.0.9"),
        ("fd00::0010", "fd00::10"),
    ],
)
def test_leading_zeros_are_decimal(text: str, expected: str) -> None:
    assert unpack(pack_lenient(text)) == expected


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.256", "0x10.0.0.1", "web", "10.0.0.1/32"])
def test_an_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an IP address"):
        pack_lenient(text)


def test_traits_of_equal_endpoints_are_one_object() -> None:
    """Ten thousand Services share them; this keeps the agent small."""
    (made,) = read_object(raw_slice("10.0.0.1 here", "10.0.0.2 here"))
    assert isinstance(made, EndpointSlice)
    (_, first), (_, second) = made.endpoints()
    assert first is second
    assert endpoint_text(made.addresses[16:], 80) == "10.0.0.2:80"
