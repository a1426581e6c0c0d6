"""The policies of a frontend in words: action, scheduler, and what becomes of connections."""

from __future__ import annotations

from bpfsvc.datapath.maps.layout import Layout
from bpfsvc.services.entries import Policies, Policy
from bpfsvc.services.scheduling.annotations import WRITTEN
from bpfsvc.services.scheduling.schedulers import Schedule, scheduler_text

KEEP, RANDOM = "keep", "random"

SAID = tuple(annotation.field for annotation in WRITTEN)
"""The names of what :meth:`PolicyTexts.said` returns."""

_COMPARED = tuple(schedule.name.lower() for schedule in Schedule if schedule.counts)
"""Schedules that compare the loads of backends."""


def action_text(policy: Policy) -> str:
    """Return what happens to clients: forward, masquerade, reject or drop."""
    if not policy.size:
        return "reject" if policy.reject else "drop"
    return "masquerade" if policy.masquerade else "forward"


class PolicyTexts:
    """Names of the numbers in policies, as a build has them; a number without a name stays one."""

    def __init__(self, layout: Layout) -> None:
        self._schedules = {0: RANDOM} | layout.constants_named("SCHEDULE_")
        self._removals = {0: KEEP} | layout.constants_named("REMOVAL_")

    def schedule(self, policies: Policies) -> str:
        """Return the kind of number that leads to a slot: ``random``, ``source``, ``wlc`` ..."""
        return self._schedules.get(policies.schedule, str(policies.schedule))

    def scheduler(self, policies: Policies) -> str:
        """Return the scheduler in ip_vs's words, as far as the maps know it.

        The maps have the kind of number and tables of slots; not the name of the scheduler. The
        name follows, but for what makes no difference: ``wrr`` with equal weights is ``rr``.
        """
        return scheduler_text(self.schedule(policies), longest_table(policies))

    def removal(self, policies: Policies) -> str:
        """Return ``keep``, ``drain`` or ``reset``."""
        return self._removals.get(policies.removal, str(policies.removal))

    def said(self, policies: Policies | None) -> dict[str, str]:
        """Return the values of annotations that are fields of policies, by :data:`SAID`.

        None, or no value: the text of the default, which is empty or ``keep``.
        """
        texts = {}
        for annotation in WRITTEN:
            value = getattr(policies, annotation.written, annotation.default)
            texts[annotation.field] = str(value) if value != annotation.default else ""
        return {**texts, "on_removal": self.removal(policies) if policies else KEEP}

    def compares(self, policies: Policies) -> bool:
        """True if the loads of backends are compared."""
        return self.schedule(policies) in _COMPARED

    def counts(self, policies: Policies) -> bool:
        """True if connections of each backend are counted."""
        return self.compares(policies) or policies.counted


def longest_table(policies: Policies) -> int:
    """Return the places in the longest table of any class of clients, 0 without a table."""
    return max(policy.table for policy in policies.by_class)
