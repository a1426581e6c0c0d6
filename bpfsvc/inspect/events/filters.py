"""Which events are shown. An event is shown if it has one of the values of each filter."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from bpfsvc.base.errors import UsageError
from bpfsvc.model.events import KERNEL_REASON, PATHS, REASONS, VERDICTS, Event

Test: TypeAlias = Callable[[Event], bool]
"""True for an event that has a value."""

WORDS = {
    "protocol": ("tcp", "udp", "sctp"),
    "verdict": tuple(dict.fromkeys(VERDICTS.values())),
    "kind": tuple(VERDICTS),
    "reason": tuple(REASONS),
    "path": PATHS,
}
"""Filters whose values are of a fixed set."""

NAMES = ("namespace", "service", "pod", "node")
"""Filters by names that the agent knows."""

_FORMS = {
    "namespace": "a Service or a pod of the event is in this namespace",
    "service": "the Service, as NAME, NAMESPACE/NAME or NAMESPACE/NAME:PORT",
    "pod": "the client or the backend, as NAME or NAMESPACE/NAME; the beginning is enough",
    "ip": "the client, the frontend or the backend has this address, or is in this network",
    "port": "the client, the frontend or the backend has this port",
    "protocol": "tcp, udp or sctp",
    "verdict": ", ".join(WORDS["verdict"]),
    "kind": ", ".join(WORDS["kind"]),
    "reason": "why it was refused or dropped, or has ended: "
    + ", ".join(WORDS["reason"])
    + f", or the kernel's {KERNEL_REASON}*",
    "path": "what carries the connection: " + ", ".join(PATHS),
    "node": "the node that saw it, or that the client or the backend is on",
}

FILTERS = tuple(_FORMS)


def help_of(name: str) -> str:
    """Return what an event has that a filter shows."""
    return _FORMS[name]


def value_test(name: str, value: str) -> Test:
    """Return the test of a filter for one value; raise :class:`UsageError` for a malformed one."""
    if name in WORDS:
        return _word_test(name, value)
    return _TESTS[name](value)


def event_filter(
    wanted: Mapping[str, Sequence[str]], unwanted: Mapping[str, Sequence[str]]
) -> Test:
    """Return the test of all filters.

    ``wanted``: values by the name of the filter; ``unwanted``: an event that has one is not shown.
    """
    needed = [[value_test(name, value) for value in values] for name, values in wanted.items()]
    refused = [value_test(name, value) for name, values in unwanted.items() for value in values]

    def shows(event: Event) -> bool:
        return all(any(test(event) for test in tests) for tests in needed if tests) and not any(
            test(event) for test in refused
        )

    return shows


def _word_test(name: str, value: str) -> Test:
    word = value.lower().replace("-", "_")
    is_kernels = name == "reason" and word.startswith(KERNEL_REASON.lower())
    if word not in WORDS[name] and not is_kernels:
        raise UsageError(
            f"there is no {name} {value!r}", f"the known ones: {', '.join(WORDS[name])}"
        )
    return lambda event: str(getattr(event, name)).lower() == word


def _namespace_test(value: str) -> Test:
    def has(event: Event) -> bool:
        pods = (end.pod.partition("/")[0] for end in event.ends() if end.pod)
        return event.service.namespace == value or value in pods

    return has


def _service_test(value: str) -> Test:
    whole, _, port = value.partition(":")
    namespace, slash, name = whole.rpartition("/")

    def has(event: Event) -> bool:
        service = event.service
        return (
            service.name == name
            and (not slash or service.namespace == namespace)
            and (not port or service.port == port)
        )

    return has


def _pod_test(value: str) -> Test:
    if "/" in value:
        return lambda event: any(end.pod.startswith(value) for end in event.ends())
    return lambda event: any(
        end.pod.partition("/")[2].startswith(value) for end in event.ends() if end.pod
    )


def _ip_test(value: str) -> Test:
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise UsageError(
            f"{value!r} is not an address or a network", "write 10.0.0.1, fd00::1 or 10.0.0.0/8"
        ) from None
    return lambda event: any(ipaddress.ip_address(end.address) in network for end in event.ends())


def _port_test(value: str) -> Test:
    if not value.isdecimal() or not 0 < int(value) < 1 << 16:
        raise UsageError(f"{value!r} is not a port", "write a number from 1 to 65535")
    return lambda event: any(end.port == int(value) for end in event.ends())


def _node_test(value: str) -> Test:
    return lambda event: event.node == value or any(end.node == value for end in event.ends())


_TESTS: dict[str, Callable[[str], Test]] = {
    "namespace": _namespace_test,
    "service": _service_test,
    "pod": _pod_test,
    "ip": _ip_test,
    "port": _port_test,
    "node": _node_test,
}
