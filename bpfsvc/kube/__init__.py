"""Where objects come from: the API server, a directory of manifests, a snapshot.

May import model and base. From the inside out::

    errors               what can go wrong
    decoding             watch events, heads of lists, refusals
    stream               bytes as they arrive: lines of a watch, items of a list
    connection           HTTP, by the kubernetes package; the only module that imports it
    resources            what is read: paths and selectors
    source               the interface of every source: batches of changes
    deltas               updates of one resource, and how they become a batch
    object_tracker       one resource's objects, from text to values
    backoff, pacing      how long to wait
    connection_status    is there a connection, since when; the log lines about it
    requests             one resource's requests
    reflector            one resource: list, watch, and every way in which they end
    apiserver            all resources: the source of the agent
    event_recorder       Events about this node and its Services
    snapshot             the objects in a file, for a boot without the API server
    manifests            a directory of manifests as a source
"""
