"""A network such as a CNI builds, out of namespaces, for tests, the demo and the benchmarks.

Starts agents as processes and imports none of their rooms. The parts, from the outside in::

    sandbox      a private network, mount and cgroup namespace: nothing here can reach the machine
    topology     Lab: nodes, pods, a switch between the nodes, a client outside
    node, pod    the routed and the bridged way to attach pods; plain routes or VXLAN between nodes
    namespace    sockets and processes inside one network namespace (and one cgroup)
    server, dial the answers of pods, and how a test sends requests
    load         a steady load, counted (by the processes of pressure)
    capture      the frames seen on one interface
    patience     all time limits, in one place
    objects      Kubernetes objects as plain dictionaries
    cluster      agents on the nodes, and the manifests they read

Only ``cluster`` starts agents; nothing else here uses the programs of bpfsvc. Nothing is imported
here, so that the processes of this package (``server``, ``pressure``, ``worker``) start in 20 ms.
"""
