"""Other addresses and names in place of those of a node, the same ones everywhere in an archive.

The replacement of an address keeps what is shared: two addresses with the same first bits have
replacements with the same first bits, so an address is still in the networks that it was in
(prefix-preserving, as Crypto-PAn does it). Private and special ranges stay the ranges that they
are. The key is random and is not kept, so a replacement cannot be computed again.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Any

from bpfsvc.base.address import V4_PREFIX, family, pack, unpack

_V4_KEPT = {
    **dict.fromkeys(("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"), True),
    **dict.fromkeys(("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"), False),
}
_V6_KEPT = {
    **dict.fromkeys(("::/16", "ff00::/8"), True),
    **dict.fromkeys(("2000::/3", "fc00::/7", "fe80::/10"), False),
}
"""Ranges whose first bits stay; True: their addresses stay as a whole."""

_MAC = re.compile(r"(?<![\w:])(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", re.I)
_V4 = re.compile(r"(?<![\w.])(\d{1,3}(?:\.\d{1,3}){3})(/\d{1,2})?(?!\w|\.\d)")
_V6 = re.compile(
    r"(?<![\w:.])([0-9a-f]*:[0-9a-f:]*:[0-9a-f:.]*[0-9a-f]|[0-9a-f]*::)(/\d{1,3})?", re.I
)
_WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")

_COMMON = frozenset(
    re.findall(
        r"\S+",
        """
        default kube-system kube-public kube-node-lease kubernetes kube-dns coredns localhost
        bpfsvc kube-proxy pod node other nodes services service pods endpoints api server
        tcp udp sctp icmp filter nat mangle raw security input output forward prerouting
        postrouting ingress egress accept drop reject return auto ip ip6 inet netdev bridge link
        dev via src scope global main local proto kernel lo ok note warning refuse true false
        none all off on
        """,
    )
)
"""Words that stay, also if an object has that name: they tell nothing about a cluster, and texts
would lose their meaning."""

_DIGITS = 10


class Anonymizer:
    """Replaces addresses, and the names that it was told."""

    def __init__(self, names: Iterable[str] = (), key: bytes | None = None) -> None:
        self._key = key or secrets.token_bytes(32)
        self._names: dict[str, str] = {}
        self._addresses: dict[bytes, str] = {}
        self._flips: dict[tuple[int, int, int], bool] = {}
        self.add_names(names)

    def add_names(self, names: Iterable[str]) -> None:
        """Replace these names from now on; those that are common words stay."""
        for name in names:
            if name and name.lower() not in _COMMON and not name.isdigit():
                self._names[name] = f"name-{self._digest('name', name)}"

    def text(self, text: str) -> str:
        """Return a text with other addresses and names."""
        text = _MAC.sub(lambda match: self._mac(match[0]), text)
        text = _V4.sub(self._network, text)
        text = _V6.sub(self._network, text)
        return _WORD.sub(lambda match: self._word(match[0]), text) if self._names else text

    def value(self, value: Any) -> Any:
        """Return a JSON value with other addresses and names; keys have other addresses only."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(part) for part in value]
        if isinstance(value, dict):
            return {
                _V6.sub(self._network, _V4.sub(self._network, key)): self.value(part)
                for key, part in value.items()
            }
        return value

    def address(self, packed: bytes) -> str:
        """Return the text of the replacement of a packed address."""
        if packed not in self._addresses:
            v4 = family(packed) == 4
            raw, kept = (packed[12:], _V4_NODES) if v4 else (packed, _V6_NODES)
            changed = self._changed(raw, kept)
            self._addresses[packed] = unpack(V4_PREFIX + changed if v4 else changed)
        return self._addresses[packed]

    def _changed(self, raw: bytes, kept: _Kept) -> bytes:
        """Flip each bit or not, as the bits before it say."""
        bits, number, result = 8 * len(raw), int.from_bytes(raw, "big"), 0
        for length in range(bits):
            before = number >> (bits - length)
            bit = number >> (bits - length - 1) & 1
            is_flipped = not kept(before, length) and self._flip(bits, before, length)
            result = result << 1 | (bit ^ is_flipped)
        return result.to_bytes(len(raw), "big")

    def _flip(self, bits: int, before: int, at: int) -> bool:
        key = bits, at, before
        if key not in self._flips:
            text = f"{bits}/{at}/{before:x}".encode()
            self._flips[key] = bool(hmac.digest(self._key, text, hashlib.sha256)[0] & 1)
        return self._flips[key]

    def _network(self, match: re.Match[str]) -> str:
        """Return the replacement of an address; of a network, without bits behind its length."""
        text, length = match[1], match[2] or ""
        try:
            replaced = self.address(pack(text))
            if length and ipaddress.ip_interface(text + length).network.network_address == (
                ipaddress.ip_address(text)
            ):
                network = ipaddress.ip_interface(replaced + length).network
                replaced = str(network.network_address)
        except ValueError:
            return match[0]
        return replaced + length

    def _mac(self, text: str) -> str:
        if text.lower() in ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff"):
            return text
        digits = "02" + self._digest("mac", text.lower())
        return ":".join(digits[digit : digit + 2] for digit in range(0, 12, 2))

    def _word(self, word: str) -> str:
        """Return a word with the names in it replaced, also where dashes or dots surround them."""
        if word in self._names:
            return self._names[word]
        if "." in word:
            return ".".join(map(self._word, word.split(".")))
        parts, replaced, at = word.split("-"), [], 0
        while at < len(parts):
            ends = range(len(parts), at, -1)
            end = next((end for end in ends if "-".join(parts[at:end]) in self._names), 0)
            name = "-".join(parts[at:end])
            replaced.append(self._names[name] if end else parts[at])
            at = end or at + 1
        return "-".join(replaced)

    def _digest(self, kind: str, text: str) -> str:
        return hmac.new(self._key, f"{kind}:{text}".encode(), hashlib.sha256).hexdigest()[:_DIGITS]


_Kept = Callable[[int, int], bool]
"""Says whether the bit after some first bits, of which there are so many, stays."""


def _kept_nodes(ranges: dict[str, bool]) -> _Kept:
    """Bits on the way to a range stay, so that nothing else is moved into the range."""
    networks = [(ipaddress.ip_network(text), whole) for text, whole in ranges.items()]
    inner: set[tuple[int, int]] = set()
    whole_ranges: list[tuple[int, int]] = []
    for network, whole in networks:
        bits, number = network.max_prefixlen, int(network.network_address)
        inner |= {(number >> (bits - length), length) for length in range(network.prefixlen)}
        if whole:
            whole_ranges.append((number >> (bits - network.prefixlen), network.prefixlen))

    def kept(before: int, at: int) -> bool:
        return (before, at) in inner or any(
            at >= length and before >> (at - length) == first for first, length in whole_ranges
        )

    return kept


_V4_NODES, _V6_NODES = _kept_nodes(_V4_KEPT), _kept_nodes(_V6_KEPT)
