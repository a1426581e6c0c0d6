"""What a node is set up with: clusters of any size, in every form that somebody takes them in.

The parts::

    modes       the ways to a backend that are compared, and a cluster for each of them
    supplies    where agents get a cluster from: files, or an API server
    objects     the Services and EndpointSlices themselves
"""
