"""The rules for a kube-proxy replacement, as slow and obvious functions on plain objects.

A second implementation of every answer, for tests only: it checks the sample of real kube-proxy's
answers, is the reference of property tests, and makes more cases than one would write by hand. It
shares no code with bpfsvc, so nothing but ``answers`` and the tests may import it.
Functions follow the sections of docs/semantics.md, whose numbers they name. Where iptables and
nftables mode differ they follow nftables, but NodePorts answer on IPv4 loopback as in iptables
mode.
"""
