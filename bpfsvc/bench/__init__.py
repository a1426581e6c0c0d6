"""What bpfsvc costs and how fast it is, measured on this machine, in labs of its own.

``bpfsvc bench`` as root. From the outside in::

    runs        a run: the suites of a plan, carried out, watched and interrupted
    suites      what is measured, and in which order of turns
    steps       what suites are made of and runs take
    stands      where it is measured: labs, set up for a mode or for a change, and their agents
    clusters    what is set up there: modes, and clusters of any size as each mode takes them
    rivals      the rules of others
    packets     packets made by hand, and programs run on them
    load        the load itself
    processes   those that are started for it, and their clocks

    results     what was measured; figures: its numbers, and how much is measured
    aims        what should have been
    report      all of it, told; words: how sizes and times are called everywhere

Everything compared is compared within one run, turn by turn, so that what else the machine does
falls on all alike. What is above uses what is below; lint knows the order (``setup.cfg``). Nothing
is imported here, so that the processes of this package start in 20 ms.
"""
