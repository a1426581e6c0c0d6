"""A network such as a CNI builds, out of namespaces, for tests, the demo and the benchmarks.

The parts, from the outside in::

    sandbox      a private network, mount and cgroup namespace: nothing here can reach the machine
    topology     Lab: nodes, pods, a switch between the nodes, a client outside
    node, pod    the routed and the bridged way to attach pods; plain routes or VXLAN between nodes
    namespace    sockets and processes inside one network namespace (and one cgroup)
    server, dial what pods answer, and how a test asks
    load         steady pressure, counted (by the processes of pressure)
    capture      the frames seen on one interface
    patience     how long to wait for anything, in one place
    objects      Kubernetes objects as plain dictionaries
    cluster      agents on the nodes, and the manifests they read

There is no bpfsvc data path in it but for what ``cluster`` starts. Nothing is imported here, so
that the processes of this package (``server``, ``pressure``, ``worker``) start in 20 ms.
"""
