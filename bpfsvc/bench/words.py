"""How sizes, clients and times are called, wherever the benchmark speaks."""

from __future__ import annotations


def services(number: int) -> str:
    """Name a size of cluster; 0 is where it does not matter."""
    if not number:
        return "any size"
    return "1 Service" if number == 1 else f"{number:,} Services"


def clients(number: int) -> str:
    """Name a number of clients."""
    return "1 client" if number == 1 else f"{number} clients"


def duration(seconds: float) -> str:
    """Say about how long: 45 s, 3 min 10 s, 1 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
