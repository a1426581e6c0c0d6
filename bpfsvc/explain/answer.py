"""An answer, and the JSON that it is written as."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What becomes of a question.

    * ``endpoints``: all backends that the client may be given, as ``ip:port`` texts, sorted.
    * ``masquerade``: every one of them sees an address of this node instead of the client's.
    * ``masquerade_endpoints``: those that do, when not all do (hairpin).
    * ``frontend``, ``service``: what matched; empty if nothing did.
    * ``reasons``: each rule that was applied, and each endpoint that is not eligible, with why.
    """

    verdict: str
    endpoints: tuple[str, ...] = ()
    masquerade: bool = False
    masquerade_endpoints: tuple[str, ...] = ()
    frontend: str = ""
    service: str = ""
    reasons: tuple[str, ...] = ()

    def to_object(self) -> dict[str, object]:
        """Give what is written as JSON."""
        found: dict[str, object] = {
            "verdict": self.verdict,
            "endpoints": list(self.endpoints),
            "masquerade": self.masquerade,
        }
        if self.masquerade_endpoints:
            found["masquerade_endpoints"] = list(self.masquerade_endpoints)
        return {
            **found,
            "frontend": self.frontend,
            "service": self.service,
            "reasons": list(self.reasons),
        }

    def lines(self) -> list[str]:
        """Give what people read."""
        head = self.verdict
        if self.frontend:
            head += f"  {self.frontend} of {self.service}"
        lines = [head]
        for endpoint in self.endpoints:
            seen = self.masquerade or endpoint in self.masquerade_endpoints
            lines.append(f"  -> {endpoint}{' (masqueraded)' if seen else ''}")
        lines += [f"  because {reason}" for reason in self.reasons]
        return lines
