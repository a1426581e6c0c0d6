"""Objects as bytes, to be read again by the same version of this package.

The values are stored, not the API's structure. ``SHAPE`` names the fields of the values, so that
bytes of a version with other fields are recognised instead of misread.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bpfsvc.model.values import EndpointSlice, ModelObject, Node, Pod, Service, ServiceCIDR, Traits

_KINDS = (Service, EndpointSlice, Node, ServiceCIDR, Pod)

SHAPE = ";".join(
    f"{kind.__name__}:{','.join(kind.__struct_fields__)}" for kind in (*_KINDS, Traits)
)


class _ObjectsByKind(msgspec.Struct):
    """Some objects, by kind."""

    services: list[Service] = []
    slices: list[EndpointSlice] = []
    nodes: list[Node] = []
    cidrs: list[ServiceCIDR] = []
    pods: list[Pod] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_ObjectsByKind).decode


def pack_objects(objects: Iterable[ModelObject]) -> bytes:
    """Return some objects as bytes."""
    by_kind = _ObjectsByKind()
    lists = (by_kind.services, by_kind.slices, by_kind.nodes, by_kind.cidrs, by_kind.pods)
    list_of = dict(zip(_KINDS, lists, strict=True))
    for thing in objects:
        list_of[type(thing)].append(thing)  # type: ignore[attr-defined]
    return _encode(by_kind)


def unpack_objects(data: bytes) -> list[ModelObject]:
    """Return the objects of :func:`pack_objects`; ``ValueError`` for other bytes."""
    try:
        by_kind = _decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    shared: dict[object, object] = {}
    slices = (
        msgspec.structs.replace(
            part,
            ports=shared.setdefault(part.ports, part.ports),
            traits=tuple(shared.setdefault(traits, traits) for traits in part.traits),
        )
        for part in by_kind.slices
    )
    return [*by_kind.services, *slices, *by_kind.nodes, *by_kind.cidrs, *by_kind.pods]
