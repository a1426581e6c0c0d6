"""What kube-proxy 1.36 does in ipvs mode: virtual servers, sets and rules of a real one.

Recorded on Linux 6.1 for the same objects as the rules of its other modes.
"""

from __future__ import annotations

import pytest

from bpfsvc.base.address import pack
from bpfsvc.migration.decisions import Decisions, Treatment
from bpfsvc.migration.kube_proxy import names
from bpfsvc.migration.netfilter.iptables import RulesTable, read_tables
from bpfsvc.migration.verify.comparison import differences
from bpfsvc.migration.verify.iptables_rules import read_iptables
from bpfsvc.migration.verify.ipvs_rules import read_ipvs
from bpfsvc.migration.verify.rules import UnreadableRules
from bpfsvc.services.entries import CLIENTS
from tests.migration.values import by_text, network, treated
from tests.migration.verify import kube_proxys_rules
from tests.migration.verify.kube_proxys_rules import (
    ALL,
    IN_ALL_MODES,
    LOCAL,
    MASQUERADE,
    RECORDED,
    REJECT,
    REMOTE,
)

SERVERS, SETS = ((RECORDED / f"{name}.txt").read_text() for name in ("ipvsadm", "ipset"))
RULES = {4: RECORDED / "ipvs-iptables.txt", 6: RECORDED / "ipvs-ip6tables.txt"}


def addresses() -> set[str]:
    """Return the addresses of the dummy device, which stand in a set as well."""
    rows = (line.split() for line in SETS.splitlines())
    return {words[2] for words in rows if words[0] == "add" and words[1].endswith("IPVS-IPS")}


def nat(family: int, printed: str = "") -> RulesTable:
    tables = read_tables(printed or RULES[family].read_text())
    return next(table for table in tables if table.name == "nat")


def decisions(family: int = 4, servers: str = SERVERS, rules: str = "") -> Decisions:
    held = set(map(pack, addresses()))
    rule_set = read_ipvs(family, servers, SETS, nat(family, rules), held)
    assert rule_set is not None
    return rule_set.decisions()


CASES = {
    **IN_ALL_MODES,
    "Local keeps clients, and restricts all": (
        "80.11.12.22:80/TCP",
        (treated("forward", *LOCAL),) * 3,
    ),
    "Local without endpoints here has all": (
        "nodeport:30016/TCP",
        (treated("forward", *REMOTE),) * 3,
    ),
    "an internal policy Local": (
        "10.96.0.17:80/TCP",
        (treated("forward", *LOCAL), *[treated("masquerade", *LOCAL)] * 2),
    ),
    "no endpoints at all": ("10.96.0.20:80/TCP", (REJECT,) * 3),
}


@pytest.mark.parametrize(("frontend", "expected"), CASES.values(), ids=CASES)
def test_each_class_of_clients_is_treated_as_ipvs_does(
    frontend: str, expected: tuple[Treatment, ...]
) -> None:
    decision = by_text(decisions())[frontend]
    assert decision.clients == dict(zip(CLIENTS, expected, strict=True))
    assert decision.service == ""


@pytest.mark.parametrize("family", [4, 6])
def test_ipvs_differs_from_iptables_where_only_local_endpoints_are_eligible(family: int) -> None:
    """All clients get those alone, and where there are none all endpoints; drop is reject."""
    listed = differences(decisions(family), kube_proxys_rules.decisions("iptables", family))
    local = {"prod/etp-local:web", "prod/affine-local:web", "prod/etp-none-here:web"}
    assert {difference.service for difference in listed} == {*local, "prod/itp-none-here:web"}
    assert {difference.what for difference in listed} == {"action", "backends"}
    assert decisions(family).nodeports == kube_proxys_rules.decisions("nftables", family).nodeports


def test_affinity_and_source_ranges_are_read() -> None:
    assert by_text(decisions())["10.96.0.19:80/TCP"].affinity == 600
    ranges = tuple(map(network, ("80.11.12.21/32", "192.168.50.0/24", "203.0.113.0/24")))
    assert by_text(decisions())["80.11.12.21:80/TCP"].sources == ranges
    assert by_text(decisions(6))["[2001:db8:80::21]:80/TCP"].sources == (
        network("2001:db8:80::/64"),
    )


def test_without_a_range_of_pods_it_is_an_error_and_never_a_guess() -> None:
    printed = (
        RULES[4]
        .read_text()
        .replace(
            "! -s 10.244.0.0/16 -m comment --comment"
            ' "Kubernetes service cluster ip + port for masquerade purpose"'
            " -m set --match-set KUBE-CLUSTER-IP dst,dst",
            "-m set --match-set KUBE-CLUSTER-IP src,dst",
        )
    )
    with pytest.raises(UnreadableRules, match="does not ask for the destination"):
        decisions(rules=printed)


def test_masquerade_all_concerns_pods_too() -> None:
    printed = RULES[4].read_text().replace("! -s 10.244.0.0/16 ", "")
    assert by_text(decisions(rules=printed))["10.96.0.10:80/TCP"].clients["pod"] == MASQUERADE


def test_a_real_server_without_weight_gets_no_new_connections() -> None:
    server = "-a -t 10.96.0.10:80 -r 10.244.1.11:8080 -m -w "
    changed = decisions(servers=SERVERS.replace(f"{server}1", f"{server}0"))
    assert by_text(changed)["10.96.0.10:80/TCP"].clients["pod"] == treated("forward", *ALL[1:])


def test_virtual_servers_of_other_programs_are_left_out() -> None:
    """At an address of the node and no NodePort (keepalived), and servers of a firewall mark."""
    others = "-A -t 192.168.50.11:6443 -s rr\n-a -t 192.168.50.11:6443 -r 10.0.0.1:6443 -m -w 1\n"
    more = SERVERS + others + "-A -f 7 -s rr\n-a -f 7 -r 10.0.0.1:0 -m -w 1\n"
    assert decisions(servers=more) == decisions()
    assert read_ipvs(4, others, "", None, ()) is None


@pytest.mark.parametrize("family", [4, 6])
def test_the_rules_of_ipvs_mode_are_none_of_iptables_mode(family: int) -> None:
    assert read_iptables("iptables-nft", family, read_tables(RULES[family].read_text())) is None


def test_cleanup_knows_every_set_and_chain_of_ipvs_mode() -> None:
    """The names of two sets are cut off."""
    sets = {line.split()[1] for line in SETS.splitlines()}
    assert len(sets) == 34
    assert all(names.is_set(name) for name in sets)
    chains = {
        name
        for file in RULES.values()
        for table in read_tables(file.read_text())
        for name in table.policies
        if not table.is_built_in(name)
    }
    assert all(names.is_chain(name) for name in chains), chains
