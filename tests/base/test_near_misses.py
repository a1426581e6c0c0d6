"""Near misses: the name that was meant is named, and no other one."""

from __future__ import annotations

import pytest

from bpfsvc.base.near_misses import meant_text

SERVICES = ("default/webs", "default/kubernetes", "kube-system/dns", "shop/cart")


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("default/web", SERVICES, "; did you mean default/webs?"),
        ("default/cart", SERVICES, "; did you mean shop/cart?"),
        ("kube-system/web", SERVICES, ""),
        ("kube-sytem/dns", SERVICES, "; did you mean kube-system/dns?"),
        ("other/nothing", SERVICES, ""),
        ("staus", ("status", "services"), "; did you mean status?"),
        ("frob", ("status", "services"), ""),
        ("frob", (), ""),
    ],
)
def test_the_nearest_name_is_named(name: str, known: tuple[str, ...], meant: str) -> None:
    assert meant_text(name, known) == meant
