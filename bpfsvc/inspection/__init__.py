"""What is in the kernel, in words: read from the pinned maps alone.

Neither bcc nor a running agent is needed. Layouts are found by field names in the pinned layout, so
maps written by another version are shown too::

    reader.py        rows of the maps, as bytes
    fields.py        bytes -> values by name, and the texts of values
    records.py       values -> records: named columns, and sorted rows of them. Pure from here on
    services.py      records of Services: frontends, backends, endpoints, services
    connections.py   records of connections: up to four entries each, folded into one
    node.py          records of the node: addresses, interfaces, settings, counters
    generic.py       records of maps nobody here knows
    dump.py          which map is shown by which of these
    tables.py        records -> aligned text
    documents.py     records -> JSON and YAML
    status.py        whether this node is well: what is looked at
    verdict.py       and what is made of it
"""
