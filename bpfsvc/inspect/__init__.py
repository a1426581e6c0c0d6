"""What ``bpfsvc maps dump`` and ``bpfsvc status`` show, read from the pinned maps alone.

``maps`` has the views of ``maps dump``, ``services`` what ``bpfsvc services`` and ``top`` show. May
import datapath and all rooms below it. Maps of other versions are shown by their field names.
"""
