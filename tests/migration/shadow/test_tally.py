"""Counts by Service and kind, and the first text of each."""

from __future__ import annotations

from bpfsvc.migration.shadow.comparison import Comparison
from bpfsvc.migration.shadow.tally import Count, Tally

WEB, DNS = ("default", "web"), ("kube-system", "dns")


def test_connections_are_counted_and_differences_by_service_and_kind() -> None:
    tally = Tally()
    added = [
        tally.add(comparison)
        for comparison in (
            Comparison(WEB),
            Comparison(WEB, "affinity", "first"),
            Comparison(WEB, "affinity", "second"),
            Comparison(DNS, "affinity", "other"),
        )
    ]
    assert added == [False, True, False, True]
    tally.set_losses(7)
    totals = tally.totals()
    assert (totals.flows, totals.differences, totals.losses) == (4, 3, 7)
    assert totals.counts == (
        Count("default", "web", "affinity", 2, "first"),
        Count("kube-system", "dns", "affinity", 1, "other"),
    )
