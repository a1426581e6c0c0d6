"""Check what happens to the traffic of Services: who drops, refuses or does not answer it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from bpfsvc.base.texts import count_text, list_text
from bpfsvc.doctor.facts import DroppingRule, FailingBackends, Fullness, TrafficFacts
from bpfsvc.doctor.finding import Finding, note, ok, some, warning
from bpfsvc.services.entries import frontend_text

NEARLY_FULL = 0.8
"""Above this share of its entries, a table will soon refuse new ones."""

_SHOWN = 3


def check_traffic(facts: TrafficFacts) -> Iterator[Finding]:
    """Check the rules that drop, the backends that fail, the Services that refuse, the tables."""
    findings = [
        *_dropping(facts),
        *(_failing(failing, facts.seconds) for failing in facts.failing),
        *(_refused(*refused, facts.seconds) for refused in facts.refused),
    ]
    yield from findings
    if facts.agent_runs and not facts.asked:
        yield note(
            "traffic",
            "which connections fail is not known, because the agent does not answer",
            "update the agent to the version of this command, and look at its log",
        )
    elif facts.asked and not findings:
        yield ok("traffic", f"no failing backend in the last {facts.seconds} s")
    for table in facts.tables:
        if table.entries > NEARLY_FULL * table.room:
            yield _nearly_full(table)


def _dropping(facts: TrafficFacts) -> Iterator[Finding]:
    for dropping in facts.dropping:
        names = dict.fromkeys(
            f"{served.service or 'a Service'} ({frontend_text(served.frontend)})"
            for served in facts.frontends
            if dropping.rule.concerns(served)
        )
        if names:
            yield _drops(dropping, [*names])


def _drops(dropping: DroppingRule, names: list[str]) -> Finding:
    return warning(
        "forwarding",
        f"{dropping.rule.where}: a rule drops forwarded packets to the endpoints of"
        f" {list_text(names, _SHOWN)}: {dropping.rule.text}",
        f"if that is not meant, remove it: {dropping.remove}",
    )


def _failing(failing: FailingBackends, seconds: int) -> Finding:
    which = some(failing.backends)
    every = "every backend" if len(failing.backends) == failing.of else ""
    share = f"{failing.failed} of {count_text(failing.connections, 'connection')}"
    text = (
        f"{failing.service}: {share} to {every or which} failed in the last {seconds} s:"
        f" {failing.reason}{f' by {which}' if every else ''}"
    )
    return warning("traffic", text, _advice(failing))


def _advice(failing: FailingBackends) -> str:
    namespace, _, rest = failing.service.partition("/")
    service = rest.rpartition(":")[0]
    ports = ", ".join(dict.fromkeys(text.rpartition(":")[2] for text in failing.backends))
    every = len(failing.backends) == failing.of
    if failing.reason == "refused" and every:
        return (
            f"no pod listens at port {ports}: compare the targetPort"
            f" (kubectl -n {namespace} get service {service} -o yaml) with the ports of the pods"
        )
    if failing.reason == "refused":
        return (
            f"nothing listens at port {ports} of this pod: find it with kubectl get pods -A -o wide"
            " and read its log; a readiness probe would have taken it out"
        )
    if failing.reason == "unanswered":
        return (
            "look for what drops packets on the way: the pod itself (kubectl get pods -A -o wide),"
            " a NetworkPolicy, a firewall of its node; until then bpfsvc.io/quarantine leaves"
            " such backends out"
        )
    return (
        "an ICMP error says so: look for a firewall that rejects, and for the route to the pod"
        " (ip route get ADDRESS)"
    )


_REFUSALS = {
    "rejected__no_endpoints": (
        "it has no endpoints",
        "look for ready pods: kubectl -n {namespace} get endpointslices"
        " -l kubernetes.io/service-name={name}",
    ),
    "rejected__backends_full": (
        "every backend has as many connections as bpfsvc.io/connection-limit allows",
        "add pods, or raise the limit",
    ),
    "dropped__no_endpoints": (
        "its traffic policy is Local, and no ready pod is on this node",
        "send clients to nodes with a pod (the load balancer's health check does), or set the"
        " policy to Cluster: kubectl -n {namespace} get service {name} -o yaml",
    ),
    "dropped__source_range": (
        "the client is in none of its source ranges",
        "compare the client's address, as this node sees it, with spec.loadBalancerSourceRanges:"
        " bpfsvc services {namespace}/{name} -o wide",
    ),
}


def _refused(service: str, field: str, count: int, seconds: int) -> Finding:
    namespace, _, rest = service.partition("/")
    action = field.partition("__")[0]
    reason, advice = _REFUSALS.get(field, (field.partition("__")[2].replace("_", " "), ""))
    text = f"{service}: {count} {action} in the last {seconds} s, because {reason}"
    return warning(
        "traffic", text, advice.format(namespace=namespace, name=rest.rpartition(":")[0])
    )


def _nearly_full(table: Fullness) -> Finding:
    return warning(
        "capacity",
        f"{table.name} holds {table.entries} of {table.room} entries",
        f"enlarge it with {table.option} before it is full: then new connections fail",
    )
