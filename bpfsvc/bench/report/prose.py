"""What a report says in words: on what, how, how to repeat it, and what to be careful with."""

from __future__ import annotations

from bpfsvc.bench import words
from bpfsvc.bench.results import Results, noisy

METHOD = (
    "Everything happens in network namespaces of its own: two nodes with pods, and a client "
    "outside, joined by veth pairs. Each mode has a lab of its own, all of them stand at once, "
    "and the turns of a round go from one to the next, so that what else the machine does falls "
    "on all alike. Client and server run on one core, so that nothing waits for a core to wake "
    "up and a rate tells what the whole way costs.",
    "On every node, in every mode, netfilter tracks connections and a CNI's rule masquerades what "
    "leaves the range of pods, as it is wherever a kubelet runs. Without that, direct would be "
    "some 15 % quicker, and all modes would look worse beside it, those of netfilter most.",
    "A UDP question is a first packet in every mode: each comes from another source port, and "
    "flows, which live for a second here, are forgotten before a port has its next turn. Usual are "
    "up to two minutes: an agent of bpfsvc, which looks at all it knows every five seconds, would "
    "then look at each some 24 times in place of once or twice.",
    "A round gives each mode one figure. A ratio is that figure divided by the reference's of "
    "the same round. Reported are the median of the rounds and the quartiles, which tell whether "
    "a difference means anything.",
    "direct is the same client and the same backend without any Service. iptables, iptables-nft "
    "and nftables hold the chains and maps that kube-proxy makes, ipvs a virtual server for each "
    "Service. tc, socket, fast and xdp are bpfsvc: packets rewritten on their way through the "
    "stack, addresses rewritten in connect() and sendmsg(), translated packets sent on without "
    "the stack, and packets from outside sent on from the driver.",
    "CPU time is that of client, server and what the kernel does for them, divided by "
    "operations: it is steadier than a rate where other things run too. Agents and kube-proxy run "
    "on other cores, so that rates are without them. What agents do for connections, which is to "
    "look for those that are over until the last is removed, is measured apart, with the fewest "
    "clients, given in a table of its own, and added to the CPU time of an operation. It is that "
    "of threads that take twice as much then as when nothing happens, less what they take then. A "
    "run of less than ten minutes has no time for that, and says so. What a program costs is timed "
    "in test runs of packets that are proved to take the path they are said to take. "
    "Packets at the edge come as XDP frames from the other end of the wire: veth copies what a "
    "socket sends, which no real driver does.",
)
"""How it was measured, a paragraph each."""

COMMAND = "make bench ARGS='--json results.json --csv results.csv --html report.html'"
"""How to repeat it, in a checkout of the repository, as root."""


def setting(results: Results) -> list[str]:
    """Say on what and how long it was measured."""
    machine = ", ".join(f"{key} {value}" for key, value in results.machine.items())
    took = f"took {words.duration(results.seconds)}"
    if results.quick:
        took += "; a quick run: fewer rounds and sizes, more spread"
    return [machine or "machine unknown", took]


def remarks(results: Results) -> list[str]:
    """Give the notes of the run, and a warning for each suite whose direct case moves."""
    found = list(results.notes)
    for suite in dict.fromkeys(cell.suite for cell in results.cells):
        warning = noisy(results.find(suite=suite, mode="direct"))
        if warning and warning not in found:
            found.append(warning)
    return found
