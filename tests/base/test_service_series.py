"""Which Services have metrics of their own."""

from __future__ import annotations

import pytest

from bpfsvc.base.service_series import (
    ALL,
    DEFAULT_SERIES,
    NONE,
    ServiceSeries,
    parse_service_series,
)

TEXTS = {
    "all": ALL,
    "none": NONE,
    "top:7": ServiceSeries(most=7),
    "shop/*": ServiceSeries(patterns=("shop/*",)),
    "shop/*, kube-system/kube-dns": ServiceSeries(patterns=("shop/*", "kube-system/kube-dns")),
}


@pytest.mark.parametrize(("text", "series"), TEXTS.items(), ids=TEXTS)
def test_a_text_says_which_services_are_shown(text: str, series: ServiceSeries) -> None:
    assert parse_service_series(text) == series


def test_by_default_two_hundred_service_ports_are_shown() -> None:
    assert parse_service_series(DEFAULT_SERIES) == ServiceSeries(most=200)


@pytest.mark.parametrize(
    "text", ["", "top", "top:", "top:x", "top:0", "top:-1", "web", "/web", "shop/", "a/b/c", "a/b,"]
)
def test_other_texts_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match="must be "):
        parse_service_series(text)


def test_a_pattern_is_of_namespace_and_name() -> None:
    series = ServiceSeries(patterns=("shop/*", "kube-*/dns"))
    assert series.matches("shop", "web")
    assert series.matches("kube-system", "dns")
    assert not series.matches("kube-system", "metrics")
    assert not series.matches("workshop", "web")
