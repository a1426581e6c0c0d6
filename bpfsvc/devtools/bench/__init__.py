"""What bpfsvc costs and how fast it is, measured on this machine, in labs of its own.

``bpfsvc bench`` as root. May import lab; starts agents as processes. From the top down::

    run          a run: the suites of a plan, carried out (progress, interruption, shortfall)
    report       what was measured, on the terminal, as CSV, HTML and Markdown
    suites       what is measured
    aims         what should be reached
    testbeds     where it is measured: labs set up for a mode or for a change
    steps        what suites are made of and runs take
    kube_proxy, baselines, cluster, supplies   what a testbed holds
    load, datagrams, clocks     what is sent, and what that costs
    results, figures, modes                    what all of them speak of

Everything compared is compared within one run, turn by turn, so that what else the machine does
affects all alike. May import the product but for the agent, and the lab; lint holds the order of
the parts (``setup.cfg``). Nothing is imported here, so that its processes start in 20 ms.
"""
