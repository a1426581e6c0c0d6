"""Look before one leaps: is this node fit for bpfsvc, and what stands beside it?

::

    finding.py      what a person is told: a level, a subject, a sentence, the way out
    facts.py        what is looked at, as plain values; sightings.py: who else is seen
    looking/        gathers the facts, a module for each subject. Changes nothing
    judging/        facts -> findings, a module for each subject. Pure
    examination.py  all of them
    beside.py       refuses to start beside another that does Services

Gathering and judging are apart so that every judgement can be tested on a node that does not exist.
"""
