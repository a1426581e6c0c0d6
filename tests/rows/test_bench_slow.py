"""Modes that took too long are not tried with clusters as large, and with smaller ones they are."""

from __future__ import annotations

from bpfsvc.bench.suites.durations import too_slow, was_too_slow


def test_a_mode_is_not_tried_again_where_a_cluster_as_small_took_too_long() -> None:
    """The note names the smallest that did."""
    slow: dict[str, int] = {}
    was_too_slow(slow, "nftables", 10_000)
    assert too_slow(slow, "nftables", 10_000) == "not tried: 10,000 Services took too long already"
    assert [too_slow(slow, "nftables", services) for services in (1, 9_999)] == ["", ""]
    assert too_slow(slow, "iptables", 10_000) == ""
    was_too_slow(slow, "nftables", 1000)
    was_too_slow(slow, "nftables", 10_000)
    assert "1,000 Services" in too_slow(slow, "nftables", 5000)
