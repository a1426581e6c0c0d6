"""Objects of any shape: one line says what is wrong with an object, or its values can be used."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpfsvc.devtools.lab import objects
from bpfsvc.kube import decoding
from bpfsvc.kube.errors import ApiError
from bpfsvc.model import EndpointSlice, ModelObject, ObjectError, Service, read_json, read_object
from bpfsvc.services.rules.view import evaluate
from bpfsvc.services.scheduling.annotations import read_scheduling
from tests.services.objects import CONFIG, NODE

Object = dict[str, Any]

SERVICE = objects.service(
    "web",
    ["10.96.0.10", "fd96::10"],
    [objects.port(80, "http", nodePort=30080), objects.port(53, "dns", "UDP")],
    labels={"a": "b"},
    annotations={"bpfsvc.io/scheduler": "wrr", "bpfsvc.io/on-removal": "drain"},
    ingress=({"ip": "203.0.113.7", "ipMode": "VIP"},),
    created="2026-11-21T10:39:20Z",
    type="LoadBalancer",
    externalIPs=["80.11.12.10"],
    loadBalancerSourceRanges=["203.0.113.0/24"],
    sessionAffinity="ClientIP",
    sessionAffinityConfig={"clientIP": {"timeoutSeconds": 30}},
    externalTrafficPolicy="Local",
    internalTrafficPolicy="Cluster",
    healthCheckNodePort=31000,
)
SLICE = objects.endpoint_slice(
    "web",
    [objects.endpoint("10.0.0.1", "here"), objects.endpoint("10.0.0.2", "there", ready=False)],
    [objects.port(8080, "http"), objects.port(8053, "dns", "UDP")],
)
SAMPLES: dict[str, Object] = {
    "Service": SERVICE,
    "EndpointSlice": SLICE,
    "Endpoints": objects.endpoints("web", ["10.0.0.1", "10.0.0.2"]),
    "Node": objects.node("here", ["192.168.50.11", "fd50::11"]),
    "Pod": objects.pod("web-0", ["10.0.0.1"], "here", annotations={"bpfsvc.io/socket-lb": "off"}),
    "ServiceCIDR": objects.service_cidr("10.96.0.0/12"),
}

texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["", "10.0.0.1", "::", "TCP", "IPv6", "None", "٣", "\u2028", "a\nb", "1e9"]),
    st.sampled_from(["08", "0x1", "10.0.0.0/8", "10.0.0.1/99", "x" * 5000, "\0", "\ud800"]),
)
numbers = st.one_of(
    st.integers(), st.sampled_from([0, -1, 65535, 65536, 2**31, 2**63, 2**64]), st.floats()
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path to every value of an object."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from places(part, (*path, index))


@st.composite
def changed(draw: st.DrawFn, kind: str) -> Object:
    """Return an object of a kind with up to three of its values in another shape, or gone."""
    made = copy.deepcopy(SAMPLES[kind])
    for _ in range(draw(st.integers(1, 3))):
        paths = [path for path in places(made) if path[-1] not in ("apiVersion", "kind")]
        if not paths:
            break
        *way, last = draw(st.sampled_from(paths))
        parent: Any = made
        for key in way:
            parent = parent[key]
        if draw(st.booleans()) and isinstance(parent, dict):
            del parent[last]
        else:
            parent[last] = draw(anything)
    return made


def as_json(made: object) -> bytes:
    """Return JSON as a server would, with all that Python writes and others refuse."""
    return json.dumps(made).encode()


def check_one_line(text: str) -> None:
    assert len(text.splitlines()) == 1, repr(text)
    assert text.isprintable(), repr(text)


def read(made: Object) -> tuple[ModelObject, ...]:
    """Return the values of an object by both readers; nothing if it is refused in one line."""
    read_by(partial(read_object, made))
    return read_by(partial(read_json, as_json(made)))


def read_by(reader: Callable[[], tuple[ModelObject, ...]]) -> tuple[ModelObject, ...]:
    try:
        return reader()
    except ObjectError as error:
        check_one_line(error.message)
        return ()


@settings(max_examples=400, deadline=None)
@pytest.mark.parametrize("kind", SAMPLES)
@given(data=st.data())
def test_an_object_is_read_or_refused_in_one_line(kind: str, data: st.DataObject) -> None:
    made = data.draw(changed(kind))
    read(made)
    text = as_json(made)
    decoding.identity(text)
    if key := decoding.object_key(text):
        decoding.service_of(key, text)


@settings(max_examples=400, deadline=None)
@given(changed("Service"), changed("EndpointSlice"))
def test_what_was_read_becomes_entries(raw_service: Object, raw_slice: Object) -> None:
    services = [item for item in read(raw_service) if isinstance(item, Service)]
    slices = [item for item in read(raw_slice) if isinstance(item, EndpointSlice)]
    for service in services:
        scheduling, faults = read_scheduling(service, slices)
        for fault in faults:
            check_one_line(fault)
        evaluate(service, slices, NODE, CONFIG, scheduling)


@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.binary(max_size=200), anything.map(as_json)))
def test_any_answer_of_a_server_is_read_or_refused_in_one_line(text: bytes) -> None:
    for reader in (decoding.event, decoding.whole_list, decoding.version, decoding.head):
        try:
            reader(text)
        except ApiError as error:
            check_one_line(error.message)
    check_one_line(decoding.refusal(text, 500).message)
    try:
        read_json(text)
    except ObjectError as error:
        check_one_line(error.message)
