"""Keeping conntrack at work for the connections that kube-proxy translated.

Such a connection needs no rule of kube-proxy's any more, but it needs netfilter's connection
tracking and its address translation at work, and the kernel turns these off in a network namespace
when the last rule that uses them goes. On a node whose CNI has no such rule of its own that is the
last rule of kube-proxy's, and every translated connection would hang from that moment. So somebody
is to use them first: a chain that nobody calls, with one rule that names a state of conntrack. No
packet ever enters it. In nftables the table also needs a chain at a hook of address translation.

It stays until it is released, or until the next boot.
"""

from __future__ import annotations

from collections.abc import Iterable

from bpfsvc.takeover.rules import Removal

CHAIN = "BPFSVC-HOLD"
TABLE = "bpfsvc-hold"

IPTABLES = f"""\
*nat
:{CHAIN} - [0:0]
-A {CHAIN} -m conntrack --ctstate DNAT -j RETURN
COMMIT
"""
"""Input of ``iptables-restore --noflush``; it may be given again."""

IPTABLES_RELEASE = f"""\
*nat
:{CHAIN} - [0:0]
-X {CHAIN}
COMMIT
"""

_NFT = """\
table {family} {table} {{
	chain keep {{
		type nat hook postrouting priority 100; policy accept;
	}}
	chain users {{
		ct status dnat return;
	}}
}}
"""


def is_needed(removals: Iterable[Removal]) -> bool:
    """Whether what goes may hold the last user of conntrack: canaries in mangle do not."""
    return any(each.table in ("nat", "filter") for each in removals)


def nft_text(families: Iterable[str]) -> str:
    """Give the input of ``nft -f`` for families ``ip`` and ``ip6``; it may be given again."""
    return "".join(
        f"add table {family} {TABLE}\ndelete table {family} {TABLE}\n"
        + _NFT.format(family=family, table=TABLE)
        for family in families
    )
