"""What bpfsvc costs and how fast it is, measured on this machine, in labs of its own.

``bpfsvc bench`` as root. May import lab; starts agents as processes. From the top down::

    run          a run: the suites of a plan, carried out (progress, shortfall)
    report       the results on the terminal, as CSV, HTML and Markdown
    suites       the measurements
    aims         the goals, reached or missed
    testbeds     labs set up for a mode or for a change
    steps        the parts of a run
    kube_proxy, baselines, cluster, supplies   the parts of a testbed
    load, datagrams, clocks     clients and servers, and CPU times
    results, figures, modes                    the values that all parts share

Modes are compared within one run, turn by turn, so that other work of the machine affects all modes
alike. May import the product but for the agent, and the lab; lint holds the order of
the parts (``setup.cfg``). Nothing is imported here, so that its processes start in 20 ms.
"""
