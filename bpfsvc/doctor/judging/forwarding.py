"""Do translated packets get where they are to go?"""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.doctor.facts import Forwarding, Interface
from bpfsvc.doctor.finding import Finding, note, ok, some, warning

_SYSCTLS = {4: "net.ipv4.ip_forward", 6: "net.ipv6.conf.all.forwarding"}
_STRICT = 1


def judge(forwarding: Forwarding) -> Iterator[Finding]:
    """Judge forwarding, its filters, MTUs and reverse path filters."""
    for family in forwarding.families:
        if family not in forwarding.forwarded:
            yield warning(
                "forwarding",
                f"IPv{family} is not forwarded: Services do not work for pods",
                f"sysctl -w {_SYSCTLS[family]}=1",
            )
        else:
            yield ok("forwarding", f"IPv{family} is forwarded")
    for policy in forwarding.dropping:
        rules = " and ".join(
            f"{policy.tool} -w -A FORWARD {way} PODS -j ACCEPT" for way in ("-s", "-d")
        )
        yield warning(
            "forwarding",
            f"{policy.where} drops what no rule accepts; kube-proxy's rules accepted the traffic of"
            " Services there, bpfsvc has none",
            f"unless another rule does, add: {rules} (PODS: the range of the pods)"
            if policy.tool
            else "accept there what goes to and comes from the range of the pods",
        )
    yield from _mtus(forwarding.interfaces)
    strict = [
        each.name for each in forwarding.interfaces if each.rp_filter == _STRICT and each.tunnel
    ]
    if strict:
        yield note(
            "rp_filter",
            f"strict on the tunnel {some(strict)}: what comes by it from an address that is"
            " reached another way is dropped, as it is under kube-proxy",
            f"sysctl -w net.ipv4.conf.{strict[0]}.rp_filter=2, if replies of nodes go missing",
        )


def _mtus(interfaces: tuple[Interface, ...]) -> Iterator[Finding]:
    """Translating does not change a packet's length; but it may send it another way."""
    tunnels = [each for each in interfaces if each.tunnel]
    uplinks = [each for each in interfaces if not each.tunnel and not each.pods]
    pods = [each for each in interfaces if each.pods]
    ways = tunnels or uplinks
    if not pods or not ways:
        return
    narrow = min(ways, key=lambda each: each.mtu)
    wide = [each for each in pods if each.mtu > narrow.mtu]
    if wide:
        yield note(
            "mtu",
            f"pods' interfaces are wider ({some([each.name for each in wide])}:"
            f" {max(each.mtu for each in wide)}) than {narrow.name} ({narrow.mtu}): large packets"
            " depend on ICMP getting through",
            "set the CNI's MTU to the smaller",
        )
    else:
        yield ok("mtu", f"what pods send fits {narrow.name} ({narrow.mtu})")
