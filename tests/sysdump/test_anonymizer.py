"""Anonymous archives: names and addresses are replaced alike everywhere, and stay useful."""

from __future__ import annotations

import ipaddress
import random
from itertools import pairwise

import pytest

from bpfsvc.base.address import pack
from bpfsvc.sysdump.anonymizer import Anonymizer

KEY = bytes(32)
PLAIN = Anonymizer(key=KEY)


def changed(text: str) -> str:
    return PLAIN.address(pack(text))


def shared(first: str, second: str) -> int:
    """Return how many bits two addresses begin with in common."""
    numbers = [int(ipaddress.ip_address(text)) for text in (first, second)]
    bits = ipaddress.ip_address(first).max_prefixlen
    return bits - (numbers[0] ^ numbers[1]).bit_length()


@pytest.mark.parametrize("version", [4, 6])
def test_addresses_share_as_many_bits_as_before(version: int) -> None:
    chance = random.Random(1)
    bits = {4: 32, 6: 128}[version]
    kind = {4: ipaddress.IPv4Address, 6: ipaddress.IPv6Address}[version]
    numbers = [chance.getrandbits(bits) for _ in range(100)]
    numbers += [number ^ 1 << chance.randrange(bits) for number in numbers]
    texts = [str(kind(number)) for number in numbers]
    texts = [text for text in texts if not text.startswith("::ffff:")]
    for first, second in [*pairwise(texts), *zip(texts[:100], texts[100:], strict=False)]:
        assert shared(changed(first), changed(second)) == shared(first, second)


@pytest.mark.parametrize(
    "network",
    ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7", "fe80::/10"],
)
def test_private_ranges_stay_what_they_are(network: str) -> None:
    inside = ipaddress.ip_network(network)
    addresses = [str(inside[number]) for number in (1, 2000)]
    assert all(ipaddress.ip_address(changed(text)) in inside for text in addresses)
    assert changed(addresses[1]) != addresses[1]
    assert ipaddress.ip_address(changed("8.8.8.8")) not in inside


@pytest.mark.parametrize("text", ["127.0.0.1", "0.0.0.0", "255.255.0.0", "224.0.0.5", "::", "::1"])
def test_special_addresses_and_masks_stay(text: str) -> None:
    assert changed(text) == text


def test_another_key_gives_other_addresses() -> None:
    other = Anonymizer(key=bytes([1]) * 32)
    assert other.address(pack("203.0.113.7")) != changed("203.0.113.7")
    assert Anonymizer().address(pack("203.0.113.7")) != Anonymizer().address(pack("203.0.113.7"))


def test_texts_of_tools_keep_their_form() -> None:
    anonymizer = Anonymizer(["web", "node-1", "web-5d8f-x2x"], key=KEY)
    address, network = anonymizer.address(pack("10.244.1.5")), anonymizer.text("10.244.0.0/16")
    assert network.endswith(".0.0/16")
    assert ipaddress.ip_address(address) in ipaddress.ip_network(network)
    text = anonymizer.text(
        "18:00:52 -A KUBE-SVC -d 10.244.1.5/32 -j DROP: default/web:http on node-1"
        " [fd00::5]:80 6.18.44 web-5d8f-x2x de:ad:be:ef:00:01"
    )
    words = text.split()
    assert words[:5] == ["18:00:52", "-A", "KUBE-SVC", "-d", f"{address}/32"]
    assert words[5:7] == ["-j", "DROP:"]
    assert words[7].startswith("default/name-")
    assert words[7].endswith(":http")
    assert words[10] == f"[{changed('fd00::5')}]:80"
    assert words[11] == "6.18.44"
    assert words[13].startswith("02:")
    assert not {"web", "node-1", "5d8f", "ad:be"} & {part for word in words for part in (word,)}


def test_the_same_name_has_the_same_replacement_everywhere() -> None:
    anonymizer = Anonymizer(["web", "shop"], key=KEY)
    name = anonymizer.text("web")
    assert anonymizer.value({"name": "web", "in": ["shop/web", "lab-web-0"]}) == {
        "name": name,
        "in": [f"{anonymizer.text('shop')}/{name}", f"lab-{name}-0"],
    }


def test_keys_of_objects_and_common_words_stay() -> None:
    anonymizer = Anonymizer(["name", "default", "tcp"], key=KEY)
    assert anonymizer.value({"name": "default", "proto": "tcp"}) == {
        "name": "default",
        "proto": "tcp",
    }
