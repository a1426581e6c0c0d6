"""What ``bpfsvc maps dump`` and ``bpfsvc status`` show, read from the pinned maps alone.

May import datapath and all rooms below it. Maps of other versions are shown by their field names.
"""
