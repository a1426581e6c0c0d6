"""Entries of the maps of Services, read by the registry and the codec, as the agent writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bpfsvc.base.errors import KernelError
from bpfsvc.datapath.maps.codec import EntryCodec
from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.inspect.reader import Reader
from bpfsvc.services.service_map import E, ServiceMap


class EntryReader:
    """Reads entries of this build or of another one; see ``lenient`` of :class:`EntryCodec`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._codecs: dict[ServiceMap[Any], EntryCodec[Any]] = {}

    def read(self, service_map: ServiceMap[E]) -> Iterator[E]:
        """Yield all entries of a map; none if this build has no such map."""
        if service_map.name not in self._reader.layout.maps:
            return iter(())
        codec: EntryCodec[E] = self._codec(service_map)
        return codec.decode(self._reader.entries(service_map.name))

    def with_uses(self, service_map: ServiceMap[E]) -> Iterator[tuple[E, int]]:
        """Yield the entries of a counted map, each with the number of its uses."""
        count = self._reader.layout.maps[service_map.name].value.codec
        items = list(self._reader.entries(service_map.name))
        entries = self._codec(service_map).decode(items)
        return ((entry, *count.unpack(raw)) for entry, (_, raw) in zip(entries, items, strict=True))

    def look_up(self, service_map: ServiceMap[E], *key: Any) -> E | None:
        """Return the entry that has several fields as its key, None if there is none."""
        if service_map.name not in self._reader.layout.maps:
            return None
        codec: EntryCodec[E] = self._codec(service_map)
        raw_key = codec.encode_key(key)
        raw = self._reader.value(service_map.name, raw_key)
        return next(codec.decode([(raw_key, raw)])) if raw else None

    def _codec(self, service_map: ServiceMap[E]) -> EntryCodec[E]:
        """Return the codec of a map; raise :class:`KernelError` if its keys or values differ."""
        if service_map not in self._codecs:
            layout = self._reader.layout
            self._codecs[service_map] = _codec_for(service_map, layout)
        return self._codecs[service_map]


def _codec_for(service_map: ServiceMap[E], layout: Layout) -> EntryCodec[E]:
    try:
        return EntryCodec(service_map, layout.maps[service_map.name], lenient=True)
    except KernelError as error:
        raise lacking(service_map.name, layout) from error


def lacking(name: str, layout: Layout) -> KernelError:
    """Return the error that a map of another build cannot be read."""
    return KernelError(
        f"map {name} of build {layout.digest} lacks what this command needs",
        "look at it with: bpfsvc maps dump, or restart the agent: bpfsvc run",
    )


def is_known(service_map: ServiceMap[Any], layout: Layout) -> bool:
    """True if a build has a map, and entries of it have all that is in the map."""
    try:
        if service_map.name not in layout.maps or _codec_for(service_map, layout).unknown:
            return False
    except KernelError:
        return False
    return not service_map.counted or layout.maps[service_map.name].value.names == ("value",)
