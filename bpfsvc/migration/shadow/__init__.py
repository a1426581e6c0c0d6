"""Shadow mode: what kube-proxy did with a connection, and what bpfsvc would have done with it.

Pure: objects and observed connections go in, differences come out. The agent's room follows the API
server, the interfaces and netfilter (:mod:`bpfsvc.agent.shadow`).

:mod:`bpfsvc.services` decides, as for the kernel. Its entries are read here as the programs read
them (``bpf/path/schedule/backend_select.h``).
"""
