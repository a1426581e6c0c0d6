"""``bpfsvc maps dump`` and ``status`` on the maps of a node that carries connections."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
import yaml

from bpfsvc import __version__
from bpfsvc.datapath.maps.registry import MAPS
from bpfsvc.devtools.lab.patience import stretched
from bpfsvc.inspect.maps.dump import choose
from bpfsvc.inspect.policies import SAID
from tests.packets.node import Node
from tests.packets.packet import tcp, udp

CLIENT, VIP, BACKEND = "10.244.1.5:40000", "10.96.0.10:80", "10.244.2.7:8080"
STRANGER = "192.168.50.9:40000"

FRONTENDS_HEAD = "FRONTEND            SERVICE         CLIENTS     ACTION      BACKENDS       "
FRONTENDS = (
    "nodeport:30007/TCP  default/web:80  pod         forward     10.244.2.7:8080",
    "nodeport:30007/TCP  default/web:80  node,other  masquerade  10.244.2.7:8080",
    "10.96.0.10:80/TCP   default/web:80  pod         forward     10.244.2.7:8080",
    "10.96.0.10:80/TCP   default/web:80  node,other  masquerade  10.244.2.7:8080",
)


def bpfsvc(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command on the node's pins, in another process."""
    node.installation.complete()
    options = ["--pin-root", str(node.installation.root.path)]
    command = [sys.executable, "-m", "bpfsvc", *arguments, *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def dumped(node: Node, *names: str) -> dict[str, list[dict[str, Any]]]:
    """Return the records of some maps."""
    done = bpfsvc(node, "maps", "dump", *names, "-o", "json")
    assert done.returncode == 0, done.stderr
    result: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return result


def web(node: Node) -> None:
    node.service("web", [BACKEND], frontends=[VIP], node_port=30007, masquerade=True)


def test_every_map_of_this_build_has_its_own_view(node: Node) -> None:
    web(node)
    node.forward(tcp(CLIENT, VIP))
    node.forward(tcp(CLIENT, BACKEND))
    tables = dumped(node)
    assert tuple(tables) == choose(node.pinned.layout, [])
    unnamed = {
        f"{name}.{column}"
        for name, records in tables.items()
        for record in records
        for column in record
        if column in ("key", "value") and name != "settings"
    }
    assert not unnamed


def test_a_masqueraded_connection_is_one_record_from_first_packet_to_end(
    node: Node,
) -> None:
    web(node)
    common = {
        "protocol": "TCP",
        "client": STRANGER,
        "frontend": "10.96.0.10:80/TCP",
        "service": "default/web:80",
        "backend": BACKEND,
        "translation": ["destination", "source"],
    }

    def seen() -> dict[str, Any]:
        (found,) = dumped(node, "connections")["connections"]
        assert {name: found[name] for name in common} == common
        assert 0 <= found["idle"] <= found["age"] < stretched(60)
        return found

    routed = node.ingress(tcp(STRANGER, VIP))
    assert (seen()["masquerade"], seen()["state"]) == ("pending", "SYN_SENT")
    out = node.egress(routed)
    node_address = f"192.168.50.11:{out.payload.sport}"
    assert (seen()["masquerade"], seen()["state"]) == (node_address, "SYN_SENT")
    node.forward(tcp(BACKEND, node_address, flags="SA"))
    assert (seen()["masquerade"], seen()["state"]) == (node_address, "SYN_RECEIVED")
    node.forward(tcp(STRANGER, VIP, flags="A"))
    assert (seen()["masquerade"], seen()["state"]) == (node_address, "ESTABLISHED")
    node.forward(tcp(STRANGER, VIP, flags="FA"))
    assert seen()["state"] == "FIN_WAIT"
    node.forward(tcp(BACKEND, node_address, flags="FA"))
    assert seen()["state"] == "CLOSED"
    node.age(30)
    assert node.collect(node.flow("ingress", tcp(STRANGER, VIP))) == 1
    (left,) = dumped(node, "connections")["connections"]
    names = ("client", "frontend", "service", "backend", "masquerade", "state")
    kept = [STRANGER, "", "default/web:80", BACKEND, node_address, "TIME_WAIT"]
    assert [left[name] for name in names] == kept


def test_a_refused_connection_and_an_unanswered_datagram_have_their_states(node: Node) -> None:
    web(node)
    node.service("dns", ["10.244.2.7:53"], frontends=["10.96.0.53:53"], protocol="UDP")
    node.forward(tcp(CLIENT, VIP))
    node.forward(tcp(BACKEND, CLIENT, flags="RA"))
    node.forward(udp(CLIENT, "10.96.0.53:53"))

    def states() -> dict[str, str]:
        found = dumped(node, "connections")["connections"]
        return {entry["protocol"]: entry["state"] for entry in found}

    assert states() == {"TCP": "RESET", "UDP": "UNREPLIED"}
    node.forward(udp("10.244.2.7:53", CLIENT))
    assert states() == {"TCP": "RESET", "UDP": "REPLIED"}
    node.forward(udp(CLIENT, "10.96.0.53:53"))
    assert states() == {"TCP": "RESET", "UDP": "ESTABLISHED"}


def test_a_collision_shows_the_changed_source_port(node: Node) -> None:
    web(node)
    node.forward(tcp(CLIENT, BACKEND))
    out = node.forward(tcp(CLIENT, VIP))
    (connection,) = dumped(node, "connections")["connections"]
    assert connection["translation"] == ["destination", f"source-port={out.payload.sport}"]


def test_a_connection_of_netfilter_shows_the_port_that_it_got(node: Node) -> None:
    web(node)
    taken = node.forward(tcp(STRANGER, VIP)).payload.sport
    own = f"192.168.50.11:{taken}"
    moved = f"192.168.50.11:{node.egress(tcp(own, BACKEND)).payload.sport}"
    node.ingress(tcp(BACKEND, moved, flags="SA"))
    node.egress(tcp(own, BACKEND, flags="A"))
    (found,) = (
        connection
        for connection in dumped(node, "connections")["connections"]
        if connection["client"] == own
    )
    names = ("frontend", "service", "backend", "masquerade", "translation", "state")
    wanted = ["", "", BACKEND, moved, ["source"], "ESTABLISHED"]
    assert [found[name] for name in names] == wanted


def test_services_are_shown_with_names_and_traffic(node: Node) -> None:
    web(node)
    node.service("gone", [], frontends=["[fd96::1]:80"], family=6)
    # Counts belong to ids, so counts of earlier tests remain.
    before = dumped(node, "backends")["backends"][0]
    node.forward(tcp(CLIENT, VIP))
    node.forward(tcp(BACKEND, CLIENT, flags="SA"))
    tables = dumped(node, "frontends", "backends", "services", "endpoints")
    rows = [
        (frontend["frontend"], frontend["clients"], frontend["action"])
        for frontend in tables["frontends"]
    ]
    assert rows == [
        ("nodeport:30007/TCP", ["pod"], "forward"),
        ("nodeport:30007/TCP", ["node", "other"], "masquerade"),
        ("10.96.0.10:80/TCP", ["pod"], "forward"),
        ("10.96.0.10:80/TCP", ["node", "other"], "masquerade"),
        ("[fd96::1]:80/TCP", ["pod", "node", "other"], "reject"),
    ]
    (backend,) = tables["backends"]
    assert (backend["service"], backend["backend"]) == ("default/web:80", BACKEND)
    for count in ("connections", "packets", "reply_packets"):
        assert backend[count] == before[count] + 1
    assert [service["name"] for service in tables["services"]] == ["gone", "web"]
    assert tables["endpoints"] == [{"endpoint": f"{BACKEND}/TCP", "uses": 1}]


@pytest.mark.parametrize("output", ["table", "yaml"])
def test_the_other_formats_show_the_same(node: Node, output: str) -> None:
    web(node)
    done = bpfsvc(node, "maps", "dump", "frontends", "node_addresses", "-o", output)
    assert (done.returncode, done.stderr) == (0, "")
    if output == "yaml":
        assert yaml.safe_load(done.stdout) == dumped(node, "frontends", "node_addresses")
        return
    names = "  ".join(name.upper() for name in SAID)
    said = "  ".join(("keep" if name == "on_removal" else "-").ljust(len(name)) for name in SAID)
    assert done.stdout.splitlines() == [
        "frontends (4)",
        f"{FRONTENDS_HEAD}  AFFINITY  RESTRICTED  SCHEDULER  {names}",
        *(f"{row}         0  no          random     {said}".rstrip() for row in FRONTENDS),
        "",
        "node_addresses (2)",
        "ADDRESS        NODEPORTS",
        "192.168.50.11  yes",
        "fd50::11       yes",
    ]


def test_internal_maps_of_the_programs_are_not_shown(node: Node) -> None:
    """They mean nothing to users: bytes by port, fingerprints of flows, scratch space."""
    web(node)
    node.forward(tcp(CLIENT, VIP))
    node.forward(tcp(STRANGER, BACKEND))
    tables = dumped(node)
    for name in (
        "layout",
        "packets",
        "cached_routes",
        "fast_flows",
        "quotes",
        "port_filters",
        "destinations",
        "crc32c_steps",
        "peer_names",
        "direct_flows",
        "netfilter_flows",
    ):
        assert name in node.pinned.layout.maps
        assert name not in tables
        assert bpfsvc(node, "maps", "dump", name).returncode == 2


def test_every_map_of_the_programs_is_known(node: Node) -> None:
    assert node.pinned.layout.maps.keys() == MAPS.keys()


def test_sizes_shows_the_maps_that_can_fill_up(node: Node) -> None:
    web(node)
    node.forward(tcp(CLIENT, VIP))
    sizes = {each["map"]: each for each in dumped(node, "sizes")["sizes"]}
    kinds = {name: table.type for name, table in node.pinned.layout.maps.items()}
    filling = ("hash", "lru_hash", "lpm_trie", "percpu_hash")
    assert set(sizes) == {name for name, kind in kinds.items() if kind in filling}
    for name, size in sizes.items():
        assert size["rows"] == node.count(name)
        assert size["capacity"] == node.pinned.map(name).max_entries
    assert sizes["connections"]["rows"] == 2


def test_an_unknown_map_is_an_error_that_names_all_maps(node: Node) -> None:
    done = bpfsvc(node, "maps", "dump", "fronted")
    assert (done.returncode, done.stdout) == (2, "")
    error, hint = done.stderr.splitlines()
    assert error == "Error: there is no map 'fronted'; did you mean frontends?"
    assert hint.startswith("Hint: the maps are: frontends, services, backends, endpoints")


def test_status_finds_the_build_of_this_version_and_no_agent(node: Node) -> None:
    web(node)
    done = bpfsvc(node, "status")
    verdict, *rest = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert len(rest) == 10
    assert verdict.startswith("UNHEALTHY: the agent is not running")
    assert rest[0].startswith("carries:     not known")
    assert rest[1] == f"build:       {node.pinned.layout.digest}, of this version"
    assert rest[3] == "interfaces:  0 of 1 attached"
    assert rest[5] == "services:    1, with 2 frontends and 1 backend"


def test_status_finds_a_running_agent_by_its_lock(node: Node) -> None:
    node.installation.complete()
    lock = node.installation.root.lock()
    try:
        done = bpfsvc(node, "status", "-o", "json", "--healthz-bind-address", "127.0.0.1:1")
    finally:
        os.close(lock)
    facts = json.loads(done.stdout)
    assert facts["running"] is True
    health = {"status": 0, "problems": [], "notes": [], "foreign": False, "silent": False}
    assert facts["health"] == health
    assert "the agent is not running" not in facts["reasons"]


def test_status_as_json_says_how_full_each_map_is_and_what_an_upgrade_copies(node: Node) -> None:
    web(node)
    facts = json.loads(bpfsvc(node, "status", "-o", "json").stdout)
    capacity = node.pinned.map("frontends").max_entries
    assert facts["maps"]["frontends"] == {"entries": 2, "capacity": capacity}
    assert {"services", "connections"} <= facts["maps"].keys()
    assert facts["version"] == __version__
    assert facts["copied_maps"] == []
    # No agent says it.
    assert facts["lag_seconds"] is facts["repaired"] is None
