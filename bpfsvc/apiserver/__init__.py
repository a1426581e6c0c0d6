"""The API server: what the agent hears from it, and what it tells it.

From the inside out::

    trouble       what can go wrong
    decoding      watch events, heads of lists, refusals
    cutting       bytes as they arrive: lines, items
    connection    HTTP, by the kubernetes package; the only module that knows it
    resources     what is asked for: paths and selectors
    objects       one resource's objects, from text to values
    updates       what changed, on its way into a batch
    backoff       how long to wait
    pacing        all times in one value
    contacts      is there contact, since when, and who is told
    asking        one resource's requests
    reflector     one resource: list, watch, and every way in which they end
    source        all resources: the source of the agent
    events        Events about this node and its Services
"""
