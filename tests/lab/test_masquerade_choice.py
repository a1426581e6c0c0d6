"""The masquerade address is the one that netfilter's MASQUERADE takes, for any addresses.

A namespace with random addresses forwards packets by three interfaces and masquerades them by a
rule of nftables. What leaves shows the kernel's choice for each next hop and destination; it is
compared with ours. The interfaces are made in another order than that of their indices, as in a
node that is a container.
"""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from bpfsvc.base.address import pack, unpack
from bpfsvc.datapath.netlink.devices import Interfaces
from bpfsvc.datapath.netlink.masquerade import Masquerades
from bpfsvc.datapath.netlink.network import read_network
from bpfsvc.devtools.lab import links
from bpfsvc.devtools.lab.capture import Capture
from bpfsvc.devtools.lab.links import End
from bpfsvc.devtools.lab.namespace import Namespace
from bpfsvc.devtools.lab.patience import wait

pytestmark = pytest.mark.slow

OUTS = ("out0", "out1", "out2")
MASQUERADED, PLAIN = 9, 10
"""Ports: that to which packets are masqueraded, and another."""

CLIENT = {4: "198.51.100.9", 6: "2001:db8:ffff::9"}

FLUSHED = [
    *((name, scope) for name in ("in0", *OUTS) for scope in ("global", "site", "link", "host")),
    *(("lo", scope) for scope in ("global", "site", "link")),
]
"""Interfaces and scopes of addresses that a test adds."""

RULES = f"""
table inet masquerades {{
    chain leaving {{
        type nat hook postrouting priority 100;
        udp dport {MASQUERADED} masquerade
    }}
}}
"""

SYSCTLS = {
    "net.ipv4.ip_forward": 1,
    "net.ipv6.conf.all.forwarding": 1,
    "net.ipv4.conf.all.rp_filter": 0,
    "net.ipv4.conf.default.rp_filter": 0,
}


_ports = itertools.count(1000)


class Question(NamedTuple):
    """A packet to ``destination``, routed by ``out`` and perhaps through ``router``."""

    out: str
    destination: str
    router: str | None

    @property
    def family(self) -> int:
        """Return 4 or 6."""
        return 6 if ":" in self.destination else 4

    @property
    def route(self) -> str:
        """Return the command that makes its route."""
        by = f"via {self.router} dev {self.out} onlink" if self.router else f"dev {self.out}"
        length = 32 if self.family == 4 else 128
        return f"route replace {self.destination}/{length} {by}"

    @property
    def towards(self) -> bytes:
        """Return what the choice depends on: the next hop, or of IPv6 the destination."""
        return pack(self.router or self.destination if self.family == 4 else self.destination)


class Router(NamedTuple):
    """The namespace that masquerades, its interface for packets, and who sends them."""

    here: Namespace
    entrance: End
    far: Namespace
    client: End

    def batch(self, commands: Sequence[str]) -> None:
        """Run commands of iproute2."""
        self.here.run(["ip", "-batch", "-"], input="\n".join(commands))

    def state(self) -> Interfaces:
        """Read the interfaces when no address is tentative any more."""

        def read() -> Interfaces:
            with self.here.entered():
                return read_network()

        wait(
            lambda: (
                not any(
                    address.tentative for device in read().devices for address in device.addresses
                )
            ),
            "all addresses are in use",
        )
        return read()

    def ask(self, questions: Sequence[Question]) -> dict[int, str]:
        """Send the packets; return the sources of those that left, by their places."""
        with ExitStack() as stack:
            seen = [stack.enter_context(Capture(self.here, name)) for name in OUTS]
            # Where there is no address at all, the kernel drops the packet; the last one shows
            # that it is dealt with.
            sent = [(place, question, MASQUERADED) for place, question in enumerate(questions)]
            sent.append((0, questions[0], PLAIN))
            self._send(sent)
            captured = seen[OUTS.index(questions[0].out)]
            captured.wait(lambda frame: port_of(Ether(frame.data)) == PLAIN)
            found: dict[int, str] = {}
            for frame in (frame for entry in seen for frame in entry.frames() if frame.outgoing):
                packet = Ether(frame.data)
                if port_of(packet) == MASQUERADED:
                    found[int(bytes(packet[UDP].payload)[:4])] = packet.payload.src
            return found

    def _send(self, packets: Sequence[tuple[int, Question, int]]) -> None:
        # Not one of an earlier packet: the kernel would masquerade this one as that.
        sport = next(_ports)
        with self.far.socket(socket.AF_PACKET, socket.SOCK_RAW) as opened:
            opened.bind((self.client.name, 0))
            for place, question, port in packets:
                layer = IP if question.family == 4 else IPv6
                source = CLIENT[question.family]
                packet = layer(src=source, dst=question.destination) / UDP(sport=sport, dport=port)
                link = Ether(src=self.client.mac, dst=self.entrance.mac)
                opened.send(bytes(link / packet / f"{place:04}".encode()))


@contextmanager
def router(dice: random.Random, name: str) -> Iterator[Router]:
    """Make the namespace; its interfaces have random indices."""
    here, far = Namespace(f"{name}-router"), Namespace(f"{name}-far")
    try:
        client, entrance = links.cable(far, "client", here, "in0")
        made = Router(here, entrance, far, client)
        for key, value in SYSCTLS.items():
            here.sysctl(key, value)
        here.run(["nft", "-f", "-"], input=RULES)
        indices = dice.sample(range(50, 80), 3)
        for out, index in dice.sample(list(zip(OUTS, indices, strict=True)), 3):
            made.batch(
                [
                    f"link add {out} index {index} type veth peer name {out}-far",
                    # Without neighbours, frames go out at once.
                    f"link set {out} arp off",
                    f"link set {out} up",
                    f"link set {out}-far up",
                ]
            )
        yield made
    finally:
        here.close()
        far.close()


def port_of(packet: Packet) -> int:
    """Return the port that a datagram is to, 0 of any other packet."""
    return packet[UDP].dport if UDP in packet else 0


def v4_addresses(dice: random.Random) -> Iterator[str]:
    """Yield commands that add primary, secondary and peer addresses of any scope."""
    for name in ("lo", "in0", *OUTS):
        # Within a subnet the kernel wants one scope.
        scope = dice.choice(("global", "global", "link" if name == "lo" else "host"))
        for number in range(dice.choice((0, 0, 1, 2, 3))):
            subnet = f"10.{dice.choice('12')}.{dice.choice('01')}"
            # To the kernel, every address of a longer subnet on lo would be one of its own.
            length = 32 if name == "lo" else dice.choice((8, 16, 24, 24, 32))
            own = f"{subnet}.{dice.randrange(1, 20) + 20 * number}"
            peer = f" peer {subnet}.{dice.randrange(200, 250)}" if dice.random() < 0.15 else ""
            yield f"addr add {own}{peer}/{length} dev {name} scope {scope}"


V6_SUBNETS = ("fd00:1", "fd00:2", "2001:db8:1", "2001:db8:2", "2001:db8:1:1", "2002:1", "fec0:1")


def v6_addresses(dice: random.Random) -> Iterator[str]:
    """Yield commands that add addresses of all kinds, also deprecated and temporary ones."""
    for name in ("lo", "in0", *OUTS):
        for _ in range(dice.choice((0, 0, 1, 2, 3))):
            own = f"{dice.choice(V6_SUBNETS)}::{dice.randrange(1, 0xFFFF):x}"
            length = dice.choice((32, 48, 64, 64, 128))
            kind = dice.choice(("", "", "", " preferred_lft 0", " mngtmpaddr"))
            length = 64 if kind == " mngtmpaddr" else length
            yield f"addr replace {own}/{length} dev {name} nodad{kind}"


def v4_questions(dice: random.Random) -> Iterator[Question]:
    for number in range(6):
        near = f"10.{dice.choice('123')}.{dice.choice('012')}.{100 + number}"
        if dice.random() < 0.5:
            yield Question(dice.choice(OUTS), near, None)
        else:
            yield Question(dice.choice(OUTS), f"192.0.2.{number}", near)


def v6_questions(dice: random.Random) -> Iterator[Question]:
    for number in range(8):
        subnet = dice.choice((*V6_SUBNETS, "2400:1", "fc00:9", "2001:0:9", "2001:10", "3ffe:1"))
        via = "fe80::99" if dice.random() < 0.3 else None
        yield Question(dice.choice(OUTS), f"{subnet}:{number + 8:x}::{number:x}", via)


@pytest.mark.parametrize("seed", range(6))
def test_every_choice_is_that_of_the_kernel(seed: int) -> None:
    dice = random.Random(seed)
    answers = 0
    with router(dice, f"masq{seed}") as made:
        for _ in range(10):
            made.batch([f"addr flush dev {name} scope {scope}" for name, scope in FLUSHED])
            for name in OUTS:
                made.here.sysctl(f"net.ipv6.conf.{name}.use_tempaddr", dice.choice((0, 1, 2)))
            made.batch([*v4_addresses(dice), *v6_addresses(dice)])
            questions = [*v4_questions(dice), *v6_questions(dice)]
            made.batch([question.route for question in questions])
            network = made.state()
            compare(made, network, questions)
            answers += len(questions)
    assert answers


def compare(made: Router, network: Interfaces, questions: Sequence[Question]) -> None:
    """Assert that the kernel masquerades each packet to the address that we choose."""
    masquerades = Masquerades(network)
    devices = {device.name: device for device in network.devices}
    answer = made.ask(questions)
    for place, question in enumerate(questions):
        choice = masquerades.choice(devices[question.out], question.family)
        wanted = choice.address(question.towards)
        got = answer.get(place)
        if got == "::1" or (got or "").startswith("fe80:"):
            got = None  # nobody could answer it
        assert got == (unpack(wanted) if wanted else None), explanation(question, network)


def explanation(question: Question, network: Interfaces) -> str:
    """Return the addresses of all interfaces, in the kernel's order."""
    order = network.order_v4 if question.family == 4 else network.order_v6
    lines = [
        f"{device.name} ({device.index}): "
        + ", ".join(
            f"{unpack(address.address)}/{address.prefix} scope {address.scope} "
            + "-" * (not address.selectable)
            + "D" * address.deprecated
            + "T" * address.temporary
            for address in device.addresses
            if (":" in unpack(address.address)) == (question.family == 6)
        )
        for device in network.devices
    ]
    return "\n".join((str(question), f"order {order}", *lines))
