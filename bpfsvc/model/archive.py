"""Objects as bytes, to be read again by the same version of this package.

Not the API's shape: what is kept is what was understood of it. ``SHAPE`` names the fields of the
values, so that bytes of a version with other fields are recognised instead of misread.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from bpfsvc.model.values import EndpointSlice, ModelObject, Node, Pod, Service, ServiceCIDR, Traits

_KINDS = (Service, EndpointSlice, Node, ServiceCIDR, Pod)

SHAPE = ";".join(
    f"{kind.__name__}:{','.join(kind.__struct_fields__)}" for kind in (*_KINDS, Traits)
)


class _Shelf(msgspec.Struct):
    """Some objects, by kind."""

    services: list[Service] = []
    slices: list[EndpointSlice] = []
    nodes: list[Node] = []
    cidrs: list[ServiceCIDR] = []
    pods: list[Pod] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Shelf).decode


def pack_objects(objects: Iterable[ModelObject]) -> bytes:
    """Give some objects as bytes."""
    shelf = _Shelf()
    lists = (shelf.services, shelf.slices, shelf.nodes, shelf.cidrs, shelf.pods)
    places = dict(zip(_KINDS, lists, strict=True))
    for one in objects:
        places[type(one)].append(one)  # type: ignore[attr-defined]
    return _encode(shelf)


def unpack_objects(data: bytes) -> list[ModelObject]:
    """Read what :func:`pack_objects` gave; ``ValueError`` for anything else."""
    try:
        shelf = _decode(data)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    shared: dict[object, object] = {}
    slices = (
        msgspec.structs.replace(
            one,
            ports=shared.setdefault(one.ports, one.ports),
            traits=tuple(shared.setdefault(each, each) for each in one.traits),
        )
        for one in shelf.slices
    )
    return [*shelf.services, *slices, *shelf.nodes, *shelf.cidrs, *shelf.pods]
