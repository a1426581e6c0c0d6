"""A run of the benchmark, from what is wanted to what was measured.

The parts::

    plan          the suites of a plan, as steps, and how they are taken
    progress      how far it is, for the person who waits
    interruption  that this person has had enough
    machine       what it was measured on
    shortfall     what was asked for and not measured
"""
