"""Service ports by name, namespace, address and node port."""

from __future__ import annotations

import pytest

from bpfsvc.base import yaml_documents
from bpfsvc.base.errors import UsageError
from bpfsvc.inspect.maps.of_service import UnknownService
from bpfsvc.inspect.services.choice import Wanted
from bpfsvc.inspect.services.documents import write_view_yaml
from bpfsvc.inspect.services.look import look
from tests.inspect.busy import busy_node
from tests.inspect.inspected import frontend, policy

WEB, DNS = "default/web:http", "kube-system/dns:53"


def meant(*texts: str, namespace: str = "") -> list[str]:
    maps = busy_node()
    maps.service(3, "web", "metrics")
    maps.put("frontends", frontend("10.96.0.10:9090"), {"service": 3, **policy("pod", reject=1)})
    view = look(maps, [Wanted(text) for text in texts], namespace)
    return [port.text for port in view.ports]


BOTH = [WEB, "default/web:metrics"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("web", BOTH, id="a name"),
        pytest.param("default/web", BOTH, id="namespace and name"),
        pytest.param("web:http", [WEB], id="the name of a port"),
        pytest.param("default/web:80", BOTH, id="the number of a port, which both have"),
        pytest.param("10.96.0.10", BOTH, id="an address"),
        pytest.param("10.96.0.10:80", [WEB], id="an address and a port"),
        pytest.param("10.96.0.10:80/TCP", [WEB], id="a frontend as it is shown"),
        pytest.param("10.96.0.53:53/udp", [DNS], id="in lower case"),
        pytest.param(":30080", [WEB], id="a node port"),
        pytest.param("nodeport:30080", [WEB], id="the same, as it is shown"),
        pytest.param("nodeport:30080/TCP", [WEB], id="with its protocol"),
        pytest.param("192.168.50.11:30080", [WEB], id="the node's address and a node port"),
    ],
)
def test_an_argument_means_service_ports(text: str, names: list[str]) -> None:
    assert meant(text) == names


@pytest.mark.parametrize("name", ["123", "0", "1e3", "10", "2026-11-26", "80"])
def test_a_service_may_be_called_by_digits(name: str) -> None:
    """Since Kubernetes 1.37. Only an argument with a colon in front is a node port."""
    maps = busy_node()
    maps.service(3, name, "http")
    maps.put("frontends", frontend("10.96.0.11:80"), {"service": 3, **policy("pod", reject=1)})
    for text in (name, f"default/{name}", f"{name}:80", f"{name}:http", f"default/{name}:80"):
        view = look(maps, [Wanted(text)], "")
        assert [port.text for port in view.ports] == [f"default/{name}:http"]
        (document,) = yaml_documents.read("".join(write_view_yaml(view)).encode())
        assert document.value["services"][0]["name"] == name


def test_without_arguments_the_namespace_alone_decides() -> None:
    assert meant() == [*BOTH, DNS]
    assert meant(namespace="kube-system") == [DNS]
    assert meant(namespace="none") == []


def test_several_arguments_show_each_service_port_once() -> None:
    assert meant("dns", "10.96.0.53", "web:http") == [WEB, DNS]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        pytest.param("webb", "Service webb", id="another name"),
        pytest.param("kube-system/web", "Service kube-system/web", id="another namespace"),
        pytest.param("web:https", "Service web:https", id="another port"),
        pytest.param("10.96.0.10:81", "frontend 10.96.0.10:81", id="another port of an address"),
        pytest.param("10.96.0.10:80/UDP", "frontend 10.96.0.10:80/UDP", id="another protocol"),
        pytest.param(":30081", "frontend :30081", id="another node port"),
        pytest.param("192.168.50.12:30080", "frontend 192", id="another machine's address"),
        pytest.param("nodeport6:30080", "frontend nodeport6:30080", id="the other family"),
        pytest.param("fd96::10", "frontend fd96::10", id="an IPv6 address"),
    ],
)
def test_what_the_kernel_does_not_hold_is_named(text: str, what: str) -> None:
    with pytest.raises(UnknownService, match=f"the kernel holds no {what}"):
        meant(text)


def test_a_name_of_another_namespace_than_the_given_one_is_unknown() -> None:
    with pytest.raises(UnknownService, match="no Service web in namespace kube-system"):
        meant("web", namespace="kube-system")


@pytest.mark.parametrize("text", ["", "a/b/c", "/web", "web:", "Web", "10.96.0.300", ":http"])
def test_what_can_name_nothing_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="is neither the name of a Service nor an address"):
        Wanted(text)
