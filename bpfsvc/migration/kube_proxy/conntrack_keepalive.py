"""Keep conntrack active for the connections that kube-proxy translated.

Such a connection no longer needs kube-proxy's rules, but it needs netfilter's connection tracking
and address translation. The kernel turns both off in a network namespace when the last rule that
uses them is removed. Where the CNI has no such rule, kube-proxy's last rule is the last one, and
every translated connection would hang from then on. So a chain is added
first that no rule calls, with one rule that names a state of conntrack. No packet ever enters the
chain. In nftables the table also needs a chain at a hook of address translation.

The chain stays until it is released, or until the next boot.
"""

from __future__ import annotations

from collections.abc import Iterable

from bpfsvc.migration.kube_proxy.removal import Removal

CHAIN = "BPFSVC-HOLD"
TABLE = "bpfsvc-hold"

IPTABLES = f"""\
*nat
:{CHAIN} - [0:0]
-A {CHAIN} -m conntrack --ctstate DNAT -j RETURN
COMMIT
"""
"""Input of ``iptables-restore --noflush``; applying it twice does no harm."""

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
    """True if the last rule that uses conntrack may be removed; rules of mangle use none."""
    return any(removal.table in ("nat", "filter") for removal in removals)


def nft_text(families: Iterable[str]) -> str:
    """Return the input of ``nft -f`` for families ``ip``, ``ip6``; it may be applied twice."""
    return "".join(
        f"add table {family} {TABLE}\ndelete table {family} {TABLE}\n"
        + _NFT.format(family=family, table=TABLE)
        for family in families
    )
