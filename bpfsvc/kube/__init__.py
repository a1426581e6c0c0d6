"""Where objects come from: the API server, a directory of manifests, a snapshot.

May import model and base. From the inside out::

    errors               what can go wrong
    decoding             watch events, heads of lists, refusals
    resources            the paths and selectors of the resources that the agent reads
    source               the interface of every source: batches of changes
    pacing               how long to wait
    stream               bytes as they arrive: lines of a watch, items of a list
    deltas               updates of one resource, and how they become a batch
    object_tracker       the objects of one resource, from text to values
    client               HTTP with the API server, logins
    manifests            a directory of manifests as a source
    requests             the requests of one resource
    connection_status    is there a connection, since when; the log lines about it
    reflector            one resource: list, watch, and every way in which they end
    event_recorder       Events about this node and its Services
    snapshot             the objects in a file, for a boot without the API server
    apiserver            all resources: the source of the agent
"""
