"""The addresses that packets are masqueraded to, as the programs find them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bpfsvc.datapath.maps.layout import Value
from bpfsvc.datapath.maps.pins import Pinned
from bpfsvc.datapath.netlink.devices import Device, Interfaces
from bpfsvc.datapath.netlink.masquerade import MasqueradeChoice, Masquerades

_FAMILIES = (4, 6)
_NO_ADDRESS = bytes(16)


class MasqueradeMaps:
    """Writes the exceptions, and returns the masquerade fields of the entry of an interface."""

    def __init__(self, pinned: Pinned) -> None:
        self._exceptions = pinned.map("masquerade_choices")
        self._key = pinned.layout.maps["masquerade_choices"].key
        self._first_bits = pinned.layout.constant("MASQUERADE_CHOICE_BITS")
        self._wanted: dict[bytes, bytes] = {}

    def follow_network(
        self, network: Interfaces, devices: Iterable[Device]
    ) -> Mapping[int, Mapping[str, Value]]:
        """Write the exceptions for these interfaces; return the fields of their entries by index.

        Exceptions that are not wanted any more stay until :meth:`clean`.
        """
        masquerades = Masquerades(network)
        choices_of = {
            device.index: {family: masquerades.choice(device, family) for family in _FAMILIES}
            for device in devices
        }
        self._wanted = {
            key: address
            for choices in choices_of.values()
            for choice in choices.values()
            for key, address in self._entries(choice)
        }
        have = dict(self._exceptions.items())
        self._exceptions.update_many(
            (key, address) for key, address in self._wanted.items() if have.get(key) != address
        )
        return {index: _fields(choices) for index, choices in choices_of.items()}

    def clean(self) -> None:
        """Remove exceptions that no interface refers to any more."""
        known = [key for key, _ in self._exceptions.items()]
        self._exceptions.delete_many([key for key in known if key not in self._wanted])

    def _entries(self, choice: MasqueradeChoice) -> Iterable[tuple[bytes, bytes]]:
        for network, address in choice.exceptions:
            key = {"prefix": self._first_bits + network.bits, "choices": choice.of}
            yield self._key.pack({**key, "towards": network.address}), address


def _fields(choices: Mapping[int, MasqueradeChoice]) -> dict[str, Value]:
    fields: dict[str, Value] = {}
    for family, choice in choices.items():
        fields[f"v{family}"] = choice.default or _NO_ADDRESS
        fields[f"choices_v{family}"] = choice.of if choice.exceptions else 0
    return fields
